"""Servers of the second set that refuse, each in its own way. Prints their ports as JSON and stays.

Runs in the newest environment: the SSH server is paramiko's, the others need websockets and grpcio.
"""

import asyncio
import datetime
import http.server
import json
import logging
import socket
import ssl
import struct
import sys
import tempfile
import threading
from concurrent import futures
from pathlib import Path

import grpc
import paramiko
import websockets
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

logging.disable()
PORTS = {}


def serve(name, handle):
    door = socket.socket()
    door.bind(("127.0.0.1", 0))
    door.listen(20)
    PORTS[name] = door.getsockname()[1]

    def one(link):
        try:
            handle(link)
        except Exception:  # noqa: BLE001 - a client that leaves
            pass
        finally:
            link.close()

    def loop():
        while True:
            threading.Thread(target=one, args=(door.accept()[0],), daemon=True).start()

    threading.Thread(target=loop, daemon=True).start()


def closed(name):
    door = socket.socket()
    door.bind(("127.0.0.1", 0))
    PORTS[name] = door.getsockname()[1]
    door.close()


def ssh(key=paramiko.RSAKey.generate(2048)):
    class Refusing(paramiko.ServerInterface):
        def check_auth_password(self, username, password):
            return paramiko.AUTH_FAILED

        def get_allowed_auths(self, username):
            return "password"

    def handle(link):
        transport = paramiko.Transport(link)
        transport.add_server_key(key)
        transport.start_server(server=Refusing())
        transport.join(10)

    return handle


def web(status, told, kind="application/json"):
    class Answer(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers.get("content-length") or 0))
            text = json.dumps(told).replace("@path", self.path.split("/")[1]).encode()
            self.send_response(status)
            for k, v in {"content-type": kind, "content-length": len(text), "X-Elastic-Product": "Elasticsearch"}.items():
                self.send_header(k, str(v))
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self):
            text = b'{"version": {"number": "7.17.0", "build_flavor": "default"}, "tagline": "You Know, for Search"}'
            self.send_response(200)
            for k, v in {"content-type": kind, "content-length": len(text), "X-Elastic-Product": "Elasticsearch"}.items():
                self.send_header(k, str(v))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *told):
            pass

    return Answer


def serve_web(name, *told, context=None):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), web(*told))
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    PORTS[name] = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()


def lines(greeting, answers, default):
    """A talker by lines (FTP, IMAP): the answer by the command's word; {tag} is IMAP's."""

    def handle(link):
        file = link.makefile("rwb", 0)
        file.write(greeting)
        for line in file:
            words = line.decode().split()
            tag, word = (words[0], words[1]) if greeting.startswith(b"*") else ("", words[0])
            file.write(answers.get(word.upper(), default).replace("{tag}", tag).replace("{last}", words[-1]).encode())

    return handle


def mysql(code=None, state="HY000", text="", at_once=False):
    """As MySQL answers: a handshake without a password, OK to what sets the session, an error to the rest."""

    def packet(number, body):
        return struct.pack("<I", len(body))[:3] + bytes([number]) + body

    def failure():
        return b"\xff" + struct.pack("<H", code) + b"#" + state.encode() + text.encode()

    def handle(link):
        if at_once:
            link.sendall(packet(0, failure()))
            return
        greeting = b"\x0a8.0.36\0" + struct.pack("<I", 7) + b"12345678\0" + struct.pack("<H", 0xF7DF) + b"\x21\x02\0"
        greeting += struct.pack("<H", 0x0008) + b"\x15" + b"\0" * 10 + b"123456789012\0" + b"mysql_native_password\0"
        link.sendall(packet(0, greeting))
        file = link.makefile("rb")

        def read():
            head = file.read(4)
            return head[3], file.read(int.from_bytes(head[:3], "little"))

        number, _ = read()
        ok = b"\0\0\0\x02\0\0\0"
        link.sendall(packet(number + 1, ok))
        while True:
            number, body = read()
            refused = body[:1] == b"\x03" and body[1:].lstrip().upper().startswith((b"INSERT", b"UPDATE"))
            link.sendall(packet(1, failure() if refused else ok))

    return handle


def grpcs(name, code, told):
    class Generic(grpc.GenericRpcHandler):
        def service(self, details):
            return grpc.unary_unary_rpc_method_handler(lambda asked, context: context.abort(code, told.replace("{asked}", asked.decode())))

    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Generic(),))
    PORTS[name] = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server


def certificate(folder, name, host, days):
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = x509.CertificateBuilder().subject_name(who).issuer_name(who).public_key(key.public_key()).serial_number(x509.random_serial_number())
    made = made.not_valid_before(now - datetime.timedelta(90)).not_valid_after(now + datetime.timedelta(days))
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), False)
    made = made.add_extension(x509.BasicConstraints(True, None), True).sign(key, hashes.SHA256())
    file = folder / f"{name}.pem"
    pem = serialization.Encoding.PEM
    file.write_bytes(made.public_bytes(pem) + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    PORTS[f"ca-{name}"] = str(file)
    return context


def websocket(name, code, reason):
    async def main():
        async def one(link):
            await link.close(code, reason)

        async with websockets.serve(one, "127.0.0.1", 0) as server:
            PORTS[name] = list(server.sockets)[0].getsockname()[1]
            await asyncio.Future()

    threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()


def main():
    for b in ("", "-b"):
        closed(f"closed{b}")
        serve(f"ssh{b}", ssh())
        serve(f"rude{b}", lambda link: link.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
        serve(f"sleepy{b}", lambda link: threading.Event().wait(30))
        serve_web(f"es-missing{b}", 404, {"error": {"root_cause": [{"type": "index_not_found_exception", "reason": "no such index [@path]", "index": "@path"}], "type": "index_not_found_exception", "reason": "no such index [@path]", "index": "@path"}, "status": 404})
        serve_web(f"es-busy{b}", 429, {"error": {"root_cause": [{"type": "circuit_breaking_exception", "reason": "[parent] Data too large"}], "type": "circuit_breaking_exception", "reason": "[parent] Data too large, data for [<http_request>] would be [986061904/940.3mb]"}, "status": 429})
        serve_web(f"es-denied{b}", 403, {"error": {"root_cause": [{"type": "security_exception", "reason": "action [indices:data/read/search] is unauthorized for user [clinic]"}], "type": "security_exception", "reason": "action [indices:data/read/search] is unauthorized for user [clinic]"}, "status": 403})
        serve_web(f"grant{b}", 400, {"error": "invalid_grant", "error_description": "Token has been expired or revoked."})
        serve_web(f"client{b}", 401, {"error": "invalid_client", "error_description": "The OAuth client was not found."})
        amz = "application/x-amz-json-1.0"
        kind = "com.amazonaws.dynamodb.v20120810#"
        serve_web(f"dynamo-missing{b}", 400, {"__type": kind + "ResourceNotFoundException", "message": "Requested resource not found"}, amz)
        serve_web(f"dynamo-busy{b}", 400, {"__type": kind + "ProvisionedThroughputExceededException", "message": "The level of configured provisioned throughput for the table was exceeded. Consider increasing your provisioning level with the UpdateTable API."}, amz)
        serve_web(f"dynamo-taken{b}", 400, {"__type": kind + "ConditionalCheckFailedException", "message": "The conditional request failed"}, amz)
        who = "anna.k@praxis-nord.example" if not b else "j.okafor@medi.example"
        serve(f"my-email{b}", mysql(1062, "23000", f"Duplicate entry '{who}' for key 'patients.uq_email'"))
        serve(f"my-number{b}", mysql(1062, "23000", f"Duplicate entry '{'P-1088' if b else '20931'}' for key 'patients.uq_number'"))
        serve(f"my-deadlock{b}", mysql(1213, "40001", "Deadlock found when trying to get lock; try restarting transaction"))
        serve(f"my-wait{b}", mysql(1205, "HY000", "Lock wait timeout exceeded; try restarting transaction"))
        serve(f"my-table{b}", mysql(1146, "42S02", f"Table '{'clinic_sued' if b else 'clinic_nord'}.beds' doesn't exist"))
        serve(f"my-readonly{b}", mysql(1290, "HY000", "The MySQL server is running with the --read-only option so it cannot execute this statement"))
        serve(f"my-many{b}", mysql(1040, "08004", "Too many connections", at_once=True))
        serve(f"my-blocked{b}", mysql(1129, "HY000", f"Host '10.0.{'7.31' if b else '2.9'}' is blocked because of many connection errors; unblock with 'mysqladmin flush-hosts'", at_once=True))
        pasv = {"USER": "331 Password required for {last}.\r\n", "TYPE": "200 ok\r\n"}
        serve(f"ftp-530{b}", lines(b"220 ftp ready\r\n", {**pasv, "PASS": "530 Login incorrect.\r\n"}, "200 ok\r\n"))
        data = socket.create_server(("127.0.0.1", 0))
        PORTS[f"_{b}"] = data
        high, low = divmod(data.getsockname()[1], 256)
        into = {**pasv, "PASS": "230 welcome\r\n", "PASV": f"227 Entering Passive Mode (127,0,0,1,{high},{low})\r\n", "EPSV": "500 no\r\n"}
        serve(f"ftp-550{b}", lines(b"220 ftp ready\r\n", {**into, "STOR": "550 {last}: Permission denied\r\n"}, "200 ok\r\n"))
        serve(f"ftp-552{b}", lines(b"220 ftp ready\r\n", {**into, "STOR": "552 {last}: Quota exceeded\r\n"}, "200 ok\r\n"))
        able = {"CAPABILITY": "* CAPABILITY IMAP4rev1\r\n{tag} OK done\r\n", "LOGIN": "{tag} OK in\r\n"}
        serve(f"imap-no{b}", lines(b"* OK ready\r\n", {**able, "SELECT": "{tag} NO Mailbox doesn't exist\r\n"}, "{tag} OK\r\n"))
        serve(f"imap-login{b}", lines(b"* OK ready\r\n", {**able, "LOGIN": "{tag} NO [AUTHENTICATIONFAILED] Authentication failed.\r\n"}, "{tag} OK\r\n"))
        websocket(f"ws-1011{b}", 1011, "feed of ward lost")
        websocket(f"ws-1008{b}", 1008, "token is no longer valid")
        PORTS[f"_g{b}"] = [grpcs(f"grpc-missing{b}", grpc.StatusCode.NOT_FOUND, "no patient {asked}"),
            grpcs(f"grpc-denied{b}", grpc.StatusCode.PERMISSION_DENIED, "caller may not read doses of {asked}")]
        folder = Path(tempfile.mkdtemp())
        serve_web(f"tls-old{b}", 200, {}, "text/plain", context=certificate(folder, f"old{b}", "localhost", -3))
        serve_web(f"tls-name{b}", 200, {}, "text/plain", context=certificate(folder, f"name{b}", "api.insurer.example", 90))
    busy = [socket.create_server(("127.0.0.1", 0)) for _ in "ab"]
    PORTS["busy"], PORTS["busy-b"] = (one.getsockname()[1] for one in busy)
    threading.Event().wait(1)
    print(json.dumps({k: v for k, v in PORTS.items() if not k.startswith("_")}), flush=True)
    sys.stdin.read()


main()
