"""What breaks in the second set, each with two sets of values (the first in the old environment, the second in the new)."""

import base64
import hashlib
import hmac
import json
import pickle
import struct
import zlib

KEYS = ['JUft-4Tmq6D0X-tH9Xwo7XLHzwcKmIKG43spwNLQji4=', 't90pEpShXI6LwgP0J_sElYVp2kb9ZBlSmt8QfPuLuIM=']
NOTES = ['gAAAAABrAU7C04ZJUw6s52UWIvy1PxPGBRPFF27TEYRX535yv0bNNpIxTff50D2BWQ4zq19KOCRFx9QWrrhgYnk_z7YSKF4VVw==', 'gAAAAABrAU7CZ3Uxkc80Lu_DIMJakOrjN88SaJkkD5Wj5Gmn_Tmxwq2Txi-Ay-5gFfip7da_g1aXtQqP4xWsnO2pWxu5FZLiog==']
SECRETS = ["n0rd-" * 8, "sued-9-" * 6]


def token(secret, **claims):
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "HS256", "typ": "JWT"}, claims)]
    signed = hmac.new(secret.encode(), b".".join(parts), hashlib.sha256).digest()
    return b".".join([*parts, base64.urlsafe_b64encode(signed).rstrip(b"=")]).decode()


def png(side):
    """A picture of one grey, made by hand: this process needs no Pillow."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    raw = b"".join(b"\0" + bytes((x * y * 7) % 251 for x in range(side)) for y in range(side))
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def b64(data):
    return base64.b64encode(data).decode()


LATE, EARLY = 4102444800, 1000000000
ANN = {"iban": "DE02120300000000202051", "email": "anna.k@praxis-nord.example", "amount": 120.5, "patient": "20931"}
JON = {"email": "j.okafor@medi.example", "iban": "CH9300762011623852957", "amount": 17, "patient": "P-1088", "notes": ["first", "second visit"]}


def without(claim, key, **more):
    return {k: v for k, v in claim.items() if k != key} | more


FTP = {"host": "127.0.0.1", "user": "nord-export", "name": "claims-2026-10-31.csv"}, {"host": "localhost", "user": "medisued", "name": "claims_7781.csv"}
SSH = {"host": "127.0.0.1", "user": "praxis", "password": "x", "name": "report-11.pdf"}, {"host": "127.0.0.2", "user": "lab-7", "password": "yy", "name": "r_20261119.pdf"}
ADMIT = {"email": "anna.k@praxis-nord.example", "number": "20931"}, {"email": "j.okafor@medi.example", "number": "P-1088"}
LEAVE = {"patient": 20931}, {"patient": 7, "tenant": "sued"}
SEARCH = {"index": "notes-nord-2026.10", "words": "fever"}, {"index": "notes-sued-2026.11", "words": "knee pain"}


def ports(function, name, both):
    left, right = both
    return (function, {"port": f"@{name}", **left}, {"port": f"@{name}-b", **right})


SCENARIOS = {
    "ssh-refused": ports("transfer.upload_report", "closed", ({**SSH[0]}, {**SSH[1]})),
    "ssh-auth": ports("transfer.upload_report", "ssh", (SSH[0], {**SSH[1], "host": "127.0.0.1"})),
    "ssh-banner": ports("transfer.upload_report", "rude", (SSH[0], {**SSH[1], "host": "127.0.0.1"})),
    "ftp-login": ports("transfer.ftp_put", "ftp-530", FTP),
    "ftp-denied": ports("transfer.ftp_put", "ftp-550", FTP),
    "ftp-quota": ports("transfer.ftp_put", "ftp-552", FTP),
    "deliver-login": ports("transfer.deliver", "ftp-530", [without(x, "host") for x in FTP]),
    "deliver-quota": ports("transfer.deliver", "ftp-552", [without(x, "host") for x in FTP]),
    "imap-folder": ports("transfer.read_mail", "imap-no", ({"user": "nord", "folder": "Befunde"}, {"user": "sued@clinic.example", "folder": "INBOX.Results"})),
    "imap-login": ports("transfer.read_mail", "imap-login", ({"user": "nord", "folder": "Befunde"}, {"user": "sued@clinic.example", "folder": "INBOX.Results"})),
    "bind-busy": ("transfer.listen", {"port": "@busy"}, {"port": "@busy-b"}),
    "amqp-refused": ports("queue.announce", "closed", ({"host": "127.0.0.1", "patient": "20931"}, {"host": "127.0.0.3", "patient": "P-1088"})),
    "amqp-http": ports("queue.announce", "rude", ({"host": "127.0.0.1", "patient": "20931"}, {"host": "127.0.0.1", "patient": "P-1088"})),
    "ws-lost": ports("queue.follow", "ws-1011", ({"ward": "3b"}, {"ward": "intensive"})),
    "ws-token": ports("queue.follow", "ws-1008", ({"ward": "3b"}, {"ward": "intensive"})),
    "grpc-down": ports("queue.dose", "closed", ({"patient": "20931"}, {"patient": "P-1088"})),
    "grpc-late": ports("queue.dose", "sleepy", ({"patient": "20931", "timeout": 1}, {"patient": "P-1088", "timeout": 1.5})),
    "grpc-missing": ports("queue.dose", "grpc-missing", ({"patient": "20931"}, {"patient": "P-1088"})),
    "grpc-denied": ports("queue.dose", "grpc-denied", ({"patient": "20931"}, {"patient": "P-1088"})),
    "dynamo-missing": ports("queue.book_bed", "dynamo-missing", ({"table": "beds-nord", "bed": "12"}, {"table": "beds-sued", "bed": "3b-4"})),
    "dynamo-busy": ports("queue.book_bed", "dynamo-busy", ({"table": "beds-nord", "bed": "12"}, {"table": "beds-sued", "bed": "3b-4"})),
    "dynamo-taken": ports("queue.book_bed", "dynamo-taken", ({"table": "beds-nord", "bed": "12"}, {"table": "beds-sued", "bed": "3b-4"})),
    "es-down": ports("store.search", "closed", SEARCH),
    "es-missing": ports("store.search", "es-missing", SEARCH),
    "es-busy": ports("store.search", "es-busy", SEARCH),
    "es-denied": ports("store.search", "es-denied", SEARCH),
    "my-down": ports("store.admit", "closed", ADMIT),
    "my-email": ports("store.admit", "my-email", ADMIT),
    "my-number": ports("store.admit", "my-number", ADMIT),
    "my-many": ports("store.admit", "my-many", ADMIT),
    "my-blocked": ports("store.admit", "my-blocked", ADMIT),
    "leave-down": ports("store.discharge", "closed", LEAVE),
    "leave-deadlock": ports("store.discharge", "my-deadlock", LEAVE),
    "leave-wait": ports("store.discharge", "my-wait", LEAVE),
    "leave-table": ports("store.discharge", "my-table", LEAVE),
    "leave-readonly": ports("store.discharge", "my-readonly", LEAVE),
    "claim-iban": ("papers.check_claim", {"claim": without(ANN, "iban")}, {"claim": without(JON, "iban")}),
    "claim-email": ("papers.check_claim", {"claim": without(ANN, "email")}, {"claim": without(JON, "email")}),
    "claim-amount": ("papers.check_claim", {"claim": {**ANN, "amount": "120,50"}}, {"claim": {**JON, "amount": "CHF 17.-"}}),
    "picture-what": ("papers.thumbnail", {"data": b64(b"<html>please sign in</html>"), "width": 200}, {"data": b64(b"%PDF-1.7 and so on"), "width": 64}),
    "picture-cut": ("papers.thumbnail", {"data": b64(png(90)[:-600]), "width": 200}, {"data": b64(png(130)[:-700]), "width": 64}),
    "roster-sheet": ("papers.roster", {"path": "@files/roster.xlsx", "sheet": "Oktober 2026"}, {"path": "@files/roster.xlsx", "sheet": "November 2026"}),
    "roster-text": ("papers.roster", {"path": "@files/notes.xlsx", "sheet": "Oktober 2026"}, {"path": "@files/plan.xlsx", "sheet": "November 2026"}),
    "day-words": ("papers.appointment", {"text": "nach Vereinbarung"}, {"text": "tbd w/ dr. moss"}),
    "day-range": ("papers.appointment", {"text": "2026-13-40"}, {"text": "2025-02-31"}),
    "zone": ("papers.local_time", {"zone": "Europe/Berln"}, {"zone": "Zurich/Europe"}),
    "no-tar": ("papers.unpack", {"path": "@files/notes.tgz"}, {"path": "@files/plan-77.tgz"}),
    "cut-tar": ("papers.unpack", {"path": "@files/cut.tgz"}, {"path": "@files/cut-2.tgz"}),
    "config-iban": ("papers.account_of", {"path": "@files/tenants.ini", "tenant": "nord", "option": "iban"}, {"path": "@files/tenants.ini", "tenant": "medisued", "option": "iban"}),
    "config-bic": ("papers.account_of", {"path": "@files/tenants.ini", "tenant": "nord", "option": "bic"}, {"path": "@files/tenants.ini", "tenant": "medisued", "option": "bic"}),
    "copay-text": ("papers.copay", {"amount": "12,50", "share": "2"}, {"amount": "EUR 7", "share": "3"}),
    "copay-zero": ("papers.copay", {"amount": "12.50", "share": "0"}, {"amount": "7", "share": "0.0"}),
    "copay-huge": ("papers.copay", {"amount": "1e40", "share": "2"}, {"amount": "7e33", "share": "3"}),
    "reading-short": ("papers.reading", {"data": "01020304"}, {"data": "0102030405"}),
    "reading-big": ("papers.reading", {"data": "ffffff0001000000"}, {"data": "01ff030002000000"}),
    "resume-cut": ("papers.resume", {"data": pickle.dumps({"a": list(range(9))}, 2)[:-4].hex()}, {"data": pickle.dumps({"b": 1}, 2)[:-1].hex()}),
    "resume-module": ("papers.resume", {"data": b"cclinic_old.bills\nBill\n.".hex()}, {"data": b"cclinic_old.bills\nBill\n)R.".hex()}),
    "resume-class": ("papers.resume", {"data": b"cclinic.papers\nBill\n.".hex()}, {"data": b"cclinic.papers\nBill\n)R.".hex()}),
    "attachment": ("papers.attachment", {"text": "SGFsbG8gV2Vs"[:-1]}, {"text": "QmVmdW5kIDIwMjYtMTE"}),
    "export-full": ("papers.export", {"path": "/dev/full", "rows": ["x"]}, {"path": "/dev/full", "rows": ["anna", "jon"] * 20}),
    "export-folder": ("papers.export", {"path": "@files/nord/out.csv", "rows": ["x"]}, {"path": "@files/sued/2026/out.csv", "rows": ["anna"]}),
    "row-empty": ("papers.import_row", {"number": 17, "row": {}}, {"number": 2204, "row": {"amount": "", "currency": "EUR"}}),
    "row-currency": ("papers.import_row", {"number": 18, "row": {"amount": 5, "currency": "USD"}}, {"number": 3, "row": {"amount": 5, "currency": "GBP"}}),
    "no-payer": ("papers.transfer", {"payer": None, "payee": "DE02"}, {"payer": None, "payee": "CH93"}),
    "no-payee": ("papers.transfer", {"payer": "DE03", "payee": None}, {"payer": "CH94", "payee": None}),
    "deep": ("papers.tree", {"node": "ward"}, {"node": "house"}),
    "scan-gone": ("papers.remove_scan", {"folder": "@files", "name": "scan-4711.tif"}, {"folder": "@files", "name": "IMG_0007.tif"}),
    "jwt-old": ("access.whoami", {"token": token(SECRETS[0], exp=EARLY, sub="1", aud="nord"), "key": SECRETS[0], "audience": "nord"}, {"token": token(SECRETS[1], exp=EARLY + 5, sub="u-2", aud="sued"), "key": SECRETS[1], "audience": "sued"}),
    "jwt-forged": ("access.whoami", {"token": token(SECRETS[1], exp=LATE, sub="1", aud="nord"), "key": SECRETS[0], "audience": "nord"}, {"token": token(SECRETS[0], exp=LATE, sub="u-2", aud="sued"), "key": SECRETS[1], "audience": "sued"}),
    "jwt-no-sub": ("access.whoami", {"token": token(SECRETS[0], exp=LATE, aud="nord"), "key": SECRETS[0], "audience": "nord"}, {"token": token(SECRETS[1], exp=LATE, aud="sued"), "key": SECRETS[1], "audience": "sued"}),
    "jwt-no-exp": ("access.whoami", {"token": token(SECRETS[0], sub="1", aud="nord"), "key": SECRETS[0], "audience": "nord"}, {"token": token(SECRETS[1], sub="u-2", aud="sued"), "key": SECRETS[1], "audience": "sued"}),
    "signed-old": ("access.signed_in", {"token": token(SECRETS[0], exp=EARLY, sub="1", aud="nord"), "key": SECRETS[0], "audience": "nord"}, {"token": token(SECRETS[1], exp=EARLY + 5, sub="u-2", aud="sued"), "key": SECRETS[1], "audience": "sued"}),
    "signed-forged": ("access.signed_in", {"token": token(SECRETS[1], exp=LATE, sub="1", aud="nord"), "key": SECRETS[0], "audience": "nord"}, {"token": token(SECRETS[0], exp=LATE, sub="u-2", aud="sued"), "key": SECRETS[1], "audience": "sued"}),
    "note-key": ("access.read_note", {"key": KEYS[0], "token": NOTES[0]}, {"key": KEYS[1], "token": NOTES[1]}),
    "letter-key": ("access.read_letter", {"key": KEYS[0], "token": NOTES[0]}, {"key": KEYS[1], "token": NOTES[1]}),
    "grant": ports("access.calendar", "grant", ({"account": "anna"}, {"account": "jon"})),
    "client": ports("access.calendar", "client", ({"account": "anna"}, {"account": "jon"})),
    "tls-old": ("access.insurer", {"host": "localhost", "port": "@tls-old", "ca": "@ca-old", "policy": "A-7"}, {"host": "localhost", "port": "@tls-old-b", "ca": "@ca-old-b", "policy": "99120"}),
    "tls-name": ("access.insurer", {"host": "localhost", "port": "@tls-name", "ca": "@ca-name", "policy": "A-7"}, {"host": "localhost", "port": "@tls-name-b", "ca": "@ca-name-b", "policy": "99120"}),
    "tls-unknown": ("access.insurer", {"host": "localhost", "port": "@tls-name", "ca": "@ca-old", "policy": "A-7"}, {"host": "localhost", "port": "@tls-name-b", "ca": "@ca-old-b", "policy": "99120"}),
    "shapes": ("figures.scale", {"readings": [[1, 2, 3]], "weights": [1, 2]}, {"readings": [[1, 2, 3, 4], [1, 2, 3, 4]], "weights": [1, 2, 3]}),
    "columns": ("figures.scale", {"readings": [[1, 2]], "weights": [1, 2]}, {"readings": [[1, 2, 3, 4]], "weights": [1, 2, 3, 4]}),
    "singular": ("figures.trend", {"matrix": [[1, 2], [2, 4]]}, {"matrix": [[0, 0, 0]] * 3}),
    "bill-text": ("figures.bills", {"rows": [{"amount": "12,50"}]}, {"rows": [{"amount": 3}, {"amount": "offen"}]}),
    "bill-missing": ("figures.bills", {"rows": [{"net": 3}]}, {"rows": [{"amount": 3}, {"gross": 3}]}),
    "apart-text": ("figures.bills_apart", {"rows": [{"amount": "12,50"}]}, {"rows": [{"amount": 3}, {"amount": "offen"}]}),
    "apart-died": ("figures.bills_apart", {"rows": [{"die": 1}]}, {"rows": [{"amount": 3}, {"die": 1}]}),
}
