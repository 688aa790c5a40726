"""Secrets do not leave the worker in what is shown; ordinary text does, unharmed."""

from __future__ import annotations

import json
import sys
import time

import pytest

from jobs_admin.core.redaction import PLACEHOLDER, redact, redact_text
from jobs_admin.core.secret_fields import is_secret_name
from tests.kit import canaries, clean_values, unseen_secrets
from tests.kit.cases import with_cases
from tests.kit.endurance import times
from tests.kit.known_secrets import FIELDS, SECRETS, field_value

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA7bq\nc2VjcmV0\n-----END RSA PRIVATE KEY-----"

# What stands in the text, and the part of it that must not be read afterwards.
CANARIES = [
    (f"token was {JWT} today", JWT),
    ("Bearer abcdef0123456789", "abcdef0123456789"),
    ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA"),
    ("key AKIAIOSFODNN7EXAMPLE refused", "AKIAIOSFODNN7EXAMPLE"),
    (f"cannot load {PEM} here", "c2VjcmV0"),
    ("-----BEGIN PRIVATE KEY-----\ncutoffsecret", "cutoffsecret"),
    ("redis://:s3cr3tpass@10.0.0.1:6379/0", "s3cr3tpass"),
    ("postgresql://bob:hunter2@db/shop", "hunter2"),
    ("card 4111 1111 1111 1111 declined", "4111 1111 1111 1111"),
    ("card 4111-1111-1111-1111 declined", "1111-1111"),
    ("amex 378282246310005 declined", "378282246310005"),
    ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "ghp_abcdefghijklmnop"),
    ("sk_live_abcdefghijklmnopqrstuvwx", "abcdefghijklmnop"),
    ("xoxb-123456789012-abcdefghijkl", "123456789012"),
    ("password=hunter2hunter2", "hunter2"),
    ("login failed (password: 'correct horse')", "correct horse"),
    ('{"api_key": "k-0123456789"}', "k-0123456789"),
    ("https://api.example.com/?access_token=abc123def&x=1", "abc123def"),
    ("DB_PASSWORD=tr0ub4dor", "tr0ub4dor"),
    ("client_secret='zzz-yyy-xxx'", "zzz-yyy-xxx"),
    ("Set-Cookie: sid=abcdef; Path=/", "abcdef"),
]

CLEAN = [
    "TimeoutError: timed out after 30.0 seconds",
    "[Errno -2] Name or service not known",
    "HTTPSConnectionPool(host='api.example.com', port=443): Max retries exceeded with url: /v1/orders?page=2",
    "order 1234567890123456 not found",
    "Basic authentication failed for user bob",
    "the token has expired",
    "invalid token: expected ',' or '}' at line 3",
    "password must have 12 characters",
    "could not convert string to float: '12,50'",
    "2026-11-21T03:40:00.123456+00:00 c0ffee00-1111-4222-8333-444455556666",
    "    password = password",
    "    token = self.fetch_token()",
    "https://shop.example.com:8443/a/b@2x.png",
    "KeyError: 'customer_id'",
    "psycopg.errors.UniqueViolation: duplicate key value violates unique constraint",
    "1.2.3.4:5432 refused",
    "the job is pinned: worker 3 only",
    "spin: 3 rounds, pinned=2",
    "author: bob, authors=2",
    "tokenizer: bert-base-uncased, tokenizer=bert-base-uncased",
    "max_tokens=1000 prompt tokens: 2500",
    "code: 503, exit code=137, ?code=503",
    "signature mismatch",
    "signature: mismatch",
    "unexpected token '<', expected 'identifier'",
    "cookie: missing",
    "password prompt was not answered",
    "ssh://git@github.com/acme/shop.git",
    "http://10.0.0.1:8080",
    "cache key=orders/17 and key: orders",
    "docker run -u 1000 shop",
    "Digest of the file differs",
    "(using password: YES)",
]


@with_cases("text, secret", CANARIES)
def test_a_secret_in_text_is_hidden_visibly(text, secret):
    shown, hidden = redact_text(text)
    assert secret not in shown
    assert PLACEHOLDER in shown
    assert hidden >= 1


def leaks(shown):
    return [secret for secret in canaries.SECRETS if secret in shown]


@with_cases("kind", canaries.TEXT)
def test_no_known_kind_of_secret_is_read_in_a_text(kind):
    text = canaries.TEXT[kind]
    around = f"it failed with {text}\nand goes on"
    assert leaks(redact_text(text)[0]) == leaks(redact_text(around)[0]) == []
    assert redact_text(around)[0].endswith("\nand goes on") and redact_text(around)[1] >= 1


@with_cases("kind", canaries.ARGUMENTS)
def test_no_known_kind_of_secret_is_read_in_arguments(kind):
    shown, hidden = redact(canaries.ARGUMENTS[kind])
    assert leaks(json.dumps(shown)) == [] and hidden >= 1


@with_cases("secret", SECRETS)
def test_a_secret_of_a_known_format_is_hidden_wherever_it_is_in_a_text(secret):
    text = secret.text
    standing = [text, f"it failed with {text} and goes on", f"a\n{text}\nb", repr({"m": text})]
    standing.append(json.dumps({"m": text}, ensure_ascii=False))
    for full in standing:
        shown = redact_text(full)[0]
        assert not [part for part in secret.parts if part in shown], shown
        assert redact_text(shown)[0] == shown


@with_cases("kind", FIELDS)
def test_a_field_whose_name_reveals_is_hidden_in_arguments_and_where_they_are_written_out(kind):
    value = FIELDS[kind]
    for shown in (
        json.dumps(redact(value)[0], ensure_ascii=False),
        redact_text(repr(value))[0],
        redact_text(json.dumps(value, ensure_ascii=False))[0],
    ):
        assert field_value(kind) not in shown


@with_cases("value", [value for _, value in unseen_secrets.UNSEEN] + unseen_secrets.FURTHER)
def test_a_secret_is_hidden_however_a_library_writes_it(value):
    secrets, value = unseen_secrets.secrets_in(value), unseen_secrets.unmarked(value)
    texts = [value] if isinstance(value, str) else [repr(value), json.dumps(value, ensure_ascii=False)]
    shown = [json.dumps(redact(full)[0], ensure_ascii=False) for full in (value, [value], {"note": value})]
    for text in texts:
        shown += [redact_text(full)[0] for full in (text, f"it failed with {text} and gave up", f"a\n{text}\nb")]
    assert [(secret, shown_text) for shown_text in shown for secret in secrets if secret in shown_text] == []


def test_of_a_thousand_texts_without_a_secret_at_most_one_is_touched():
    texts = unseen_secrets.clean(6_000)
    assert len([text for text in texts if redact(text)[1]]) <= len(texts) / 1_000


def test_a_secret_that_a_name_reveals_is_hidden_wherever_the_text_repeats_it():
    assert (
        redact_text("'short-Pw1' is too short: password='short-Pw1'")[0]
        == f"'{PLACEHOLDER}' is too short: password='{PLACEHOLDER}'"
    )


def test_only_the_secret_columns_of_a_statement_are_hidden():
    statement = "[SQL: INSERT INTO users (login, password, age) VALUES (?, ?, ?)] [parameters: ('mo', 'pa, ss', 7)]"
    assert redact_text(statement)[0] == statement.replace("'pa, ss'", PLACEHOLDER)
    assert redact_text("Key (tenant, token)=(42, abc)")[0] == f"Key (tenant, token)=(42, {PLACEHOLDER})"


def test_a_key_whose_beginning_was_cut_away_is_hidden_to_its_end():
    shown, hidden = redact_text(PEM.partition("\n")[2] + "\nafter")
    assert (shown, hidden) == (f"{PLACEHOLDER}\nafter", 1)


def test_of_what_is_no_secret_hardly_anything_is_hidden():
    """Values and texts like those of real jobs: at most one in a hundred, and each that is hidden is named here."""
    arguments = [(name, value) for name, value in clean_values.ARGUMENTS if redact({name: value})[1]]
    texts = [text for text in (*clean_values.TEXTS, *clean_values.errors()) if redact_text(text)[1]]
    assert len(clean_values.ARGUMENTS) > 1_000 and arguments == []
    # An account number under its name, twice: that is meant to be hidden.
    assert len(texts) == 2 and all("'iban': '[redacted]'" in redact_text(text)[0] for text in texts)


@pytest.mark.parametrize("written", [repr, json.dumps, lambda value: f"failed for {value}, giving up"])
def test_arguments_that_are_no_secrets_stay_where_they_are_written_out(written):
    assert [one for one in clean_values.ARGUMENTS if redact_text(written(dict([one])))[1]] == []


def test_a_pair_whose_name_is_harmless_stays():
    value = {"a": [["colour", "red"]], "b": {"name": "colour", "value": "red"}, "n": 4111111111111112}
    assert redact(value) == (value, 0)


@with_cases("text", CLEAN)
def test_ordinary_text_stays_as_it_is(text):
    assert redact_text(text) == (text, 0)


@with_cases(
    "name", ["password", "Password2", "X-Api-Key", "apiKey", "AUTHORIZATION", "set-cookie", "sessionid", "csrfToken",
             "credit_card", "client_secret", "aws_secret_access_key", "PIN", "cvv", "private-key"],
)  # fmt: skip
def test_a_name_reveals_that_its_value_is_secret(name):
    assert redact({name: "value"}) == ({name: PLACEHOLDER}, 1)


@with_cases(
    "name",
    [
        "author",
        "passenger",
        "keyboard",
        "spinner",
        "customer_id",
        "compass",
        "company",
        "authors",
        "tokenizer",
        "pinned",
        "author_id",
        "keys",
        "spin_count",
        "passed",
        "shipping_pinned",
    ],
)
def test_a_harmless_name_keeps_its_value(name):
    assert not is_secret_name(name)
    assert redact({name: "value"}) == ({name: "value"}, 0)


def test_a_key_whose_value_was_drawn_is_hidden_in_arguments_as_in_texts():
    drawn, digest = "Zr8pQ2mXv7LkT4wN9sBd", "0123456789abcdef" * 4
    value = {
        "tenant_key": drawn,
        "x-qf-sign": digest,
        "cache_key": drawn,
        "object_key": digest,
        "tenant_key2": "eu-1",
        "sign": "+",
    }
    assert redact(value)[0] == {**value, "tenant_key": PLACEHOLDER, "x-qf-sign": PLACEHOLDER}
    assert redact_text(f"tenant_key={drawn} sign={digest}")[0] == f"tenant_key={PLACEHOLDER} sign={PLACEHOLDER}"


def test_what_one_field_reports_of_another_is_believed():
    manifest = {"kind": "Secret", "metadata": {"name": "db"}, "data": {"root": "c2VjcmV0"}}
    assert redact(manifest)[0] == {**manifest, "data": PLACEHOLDER}
    assert redact({"kind": "ConfigMap", "data": {"a": "b"}}) == ({"kind": "ConfigMap", "data": {"a": "b"}}, 0)
    assert redact({"kty": "EC", "x": "open", "d": "closed"})[0] == {"kty": "EC", "x": "open", "d": PLACEHOLDER}
    assert redact({"grant_type": "authorization_code", "code": "4/0Ab"})[0]["code"] == PLACEHOLDER


@with_cases(
    "text",
    [
        "getpass(prompt='Password: ', stream=None)",
        '("auth", "0001_initial"),',
        "GB82 WEST 1234 5698 7654 33",
        "AB12 CD34 EF56 7890",
    ],
)
def test_what_only_resembles_a_rule_stays(text):
    assert redact_text(text) == (text, 0)


@with_cases(
    "text, secret",
    [
        ("password=next_password", "next_password"),
        ("password=Correct.Horse", "Correct.Horse"),
        ("token=NEXT_TOKEN", "NEXT_TOKEN"),
        ("token: k7.Qz9.xY", "k7.Qz9.xY"),
        ("api_key=monkey", "monkey"),
        ("SECRET_KEY=my_key", "my_key"),
        ('"token": "swordfish"', "swordfish"),
        ("deploy --token BlueHorse", "BlueHorse"),
        ('["deploy", "--token", "BlueHorse"]', "BlueHorse"),
        ("<password>@x9z!</password>", "@x9z!"),
        ("POST https://x/v1?api_key=CorrectHorseBattery", "CorrectHorse"),
        ("{'api_key': 'CorrectHorseBattery'}", "CorrectHorse"),
        ("AUTH_TOKEN=SuperSecretToken", "SuperSecret"),
        ('AES_KEY="SixteenByteKeyyy"', "SixteenByte"),
        ("master_key=OpenSesameNow", "OpenSesame"),
        ("signing_key = keyboard.cat", "keyboard"),
        ("encryption_key = 'my_secret_encryption_key'", "my_secret"),
        ('ENCRYPTION_KEY: "SuperSecretKey"', "SuperSecret"),
        ("X-Auth-Token: correct.horse.battery", "correct.horse"),
        ("deploy --token=BlueHorse", "BlueHorse"),
        ("['deploy', '--api-key=CorrectHorse']", "CorrectHorse"),
        ("redis.hset('user:7', 'password', 'CorrectHorse')", "CorrectHorse"),
        ("VALUES ('smtp_password', 'CorrectHorse', 1)", "CorrectHorse"),
        ("rawHeaders: ['X-Api-Key', 'CorrectHorse', 'b']", "CorrectHorse"),
        ("<SecretKey>/kq7Zb+9xPq==", "kq7Zb"),
        ("<wsse:Password>@kq7Zb9xPq", "kq7Zb"),
        ("<USERPASS>@x9z!kq7<ORG>", "x9z!"),
    ],
)
def test_a_secret_that_resembles_code_is_hidden(text, secret):
    assert secret not in redact_text(text)[0]


def test_an_amount_of_tokens_is_no_secret_but_a_pin_is():
    assert redact({"max_tokens": 100, "token_count": 3, "pin": 1234})[0] == {
        "max_tokens": 100,
        "token_count": 3,
        "pin": PLACEHOLDER,
    }


def test_nothing_true_and_false_are_shown_under_a_secret_name():
    value = {"token": None, "password": "", "session": False}
    assert redact(value) == (value, 0)


def test_secrets_are_found_at_every_depth_and_counted():
    value = {"a": [{"b": {"password": "x"}}, "redis://:pw1@h"], "c": ({"d": JWT},)}
    shown, hidden = redact(value)
    assert hidden == 3
    assert "pw1" not in json.dumps(shown)
    assert JWT not in json.dumps(shown)


def test_a_secret_used_as_a_name_is_hidden_too():
    assert JWT not in json.dumps(redact({JWT: 1})[0])


def test_a_name_that_reveals_one_and_holds_a_secret_itself_is_hidden_too():
    assert redact({"password=hunter2": "x"}) == ({"password=[redacted]": PLACEHOLDER}, 2)


def test_the_value_itself_is_never_changed():
    value = {"password": "x", "list": ["Bearer abc123456789"]}
    redact(value)
    assert value == {"password": "x", "list": ["Bearer abc123456789"]}


def test_a_complete_branch_under_a_secret_name_is_hidden():
    assert redact({"credentials": {"user": "bob", "key": "k"}})[0] == {"credentials": PLACEHOLDER}


def test_nesting_without_end_does_not_overflow():
    value: object = "end"
    for _ in range(20_000):
        value = [value]
    shown, hidden = redact(value)
    assert hidden == 1
    assert "end" not in json.dumps(shown)


def test_redacting_twice_changes_nothing_more():
    for text in [text for text, _ in CANARIES] + list(canaries.TEXT.values()):
        once = redact_text(text)[0]
        assert redact_text(once)[0] == once


HOSTILE = """a|eyJ|eyJa.|eyJ-|1 |4111 |4111111111111111|password|password=|token: |Bearer |Basic a|://a:|://
ghp_|sk-|SG.|-----BEGIN PRIVATE KEY-----|-----BEGIN |AKIA|=|:'|"|pwd|\\|access_|password,|"password", |password>|<password>|--password |password '|cookie: |cookie: a=|authorization: bearer |://a:1/|mysql -p|mysql | -u a:|?code=|digest a="|bot1234567:AA|hooks.slack.com/a/|\\"password\\": \\"|\\\\"|token 'a|<a |<password |password%3D|%3D%22|password: |\\n |'tokens': [|'tokens': [{"a": |1//0|a.atlasv1.|MNOP|:\\/\\/|:\\/\\/a:|authpass|pwpw|sshpass -p |identified by '|login a password |dp.pt.|npm_|secret_|'password', 'value': |-----END PRIVATE KEY-----|{"token":{|(password)=(|(a,pw) values (?,|token ? params: (|token=? args=(|token input_value='|token\n [input_value=|token (lower(|name="token" value=x |token login -p |secret got |AUTH a |a:b1@|a/b@|$a$|/reset/|api key |set_password('|BasicAuth('a', |password b-|password a1..|token aaaa|password for a|?(a,token)=(%s, |login('a', '|login('|connect('a', '|connect('a', 'b', '|crypt(a, '|mnemonic |mnemonic abc abc |UGFzc3dvcmQ6\\n|UGFzc3dvcmQ6 send: |kind: Secret data: {a: b, |kind: Secret data:\\n  a: b|credential a/|credentials for |token a b c d e f: |secret a |GB82 WEST |GB82WEST|AA00 |AC0|token=''''a|password=''''|Duplicate entry 'aaa' for key '|mot de passe « |"kty" "d":"|a_password |a-a-|kty 'd': '| -u a -p | -u a |sql> conn a/|sqlplus -s -s |bind('a=', '|set_password('a', |set_password('|'PASS |CommunityData('|/hooks/|/incoming/a1|authorization_code 'code': '|?sign=|?appid=a1|identified by "|x_sign=|macaroon=|echo a|echo 'a' |zip a |zip -P |snmpget -c |htpasswd -b a b |mysqladmin |smbclient -U a%|set password for |create a password |password=f('a|jwt.encode(a, |hmac.new('|createhmac('a', |attach a key |config set token |setuser a >|sp_addlogin 'a', '|credentials ('a', '|constraint 'a' duplicate key value is (|secret is aA1|a1=; path=|aaaaaaaaaaaaaaaaaaa1=a1; path=/|Private-Lines: 1\\n|priv: 00:11:|<D>inverseq|MIIEAAIBAA|----BEGIN A |----BEGIN A PRIVATE KEY|----BEGIN%20PRIVATE%20KEY-----|LOGIN a "|v4.local.|wordpress_a=|{password,|password <<|send "a|net use a |username a |neighbor a |a:5432:b:c:|fs.azure.|https -a a:|lftp -u a,|tacacs-server a |"A1A1A1A1A1A1A1A1", |private key a |/v1/aA1|connect("a/1|password: "" => |"password": "a" -> |EAA|live_|token=&quot;|token\\u0022:\\u0022|&quot;|WIFI:A:;|/magic?a=a&|/reset?|PSK "a |-keypass a| ably a.a:|/ical/a/private-|cookies:\\na=""".replace(
    "\n", "|"
).split("|")


@pytest.mark.long("Reads half a megabyte of each piece that a pattern could stumble over.")
@with_cases("piece", [*HOSTILE, "x" * 99 + " "])
def test_a_large_hostile_text_is_read_in_linear_time(piece):
    size = times(20_000, 500_000)
    text = (piece * (size // len(piece) + 1))[:size]
    started = time.process_time()
    redact_text(text)
    # Generous: a quadratic pattern needs minutes for half a megabyte, and seconds for a twenty-fifth of it.
    assert time.process_time() - started < size / 100_000 + 0.1


def lines_run(text: str) -> int:
    """The number of lines of the redaction that are run for it: its work, whatever else the machine does."""
    count = 0

    def counting(frame, event, argument):
        nonlocal count
        if "jobs_admin/core/" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return counting

    before = sys.gettrace()
    sys.settrace(counting)
    try:
        redact_text(text)
    finally:
        sys.settrace(before)
    return count


OPEN = [
    "token=[",
    "pw={",
    "password=(",
    "密码=[",
    "密码={ ",
    "(tokenpassword=",
    "=[>  密码",
    "--:token=[",
    "token=[)",
    "auth=[auth=(",
]
OPEN += ["'token':[", '"token":{', "token={'type': 'string' ", "token=[redacted ", "'tokens': [{", "token=[\\'"]


@with_cases("piece", [*HOSTILE, *OPEN])
def test_twice_the_hostile_text_is_twice_the_work(piece):
    redact_text(piece * 3)  # its words are remembered
    for end in ("", "]", "1", '"') if piece in OPEN else ("",):
        # Of one word of more than 2,000 characters, all patterns are looked for, whatever its words: some 1,400 lines.
        assert lines_run(piece * 300 + end * 300) < 2.5 * lines_run(piece * 150 + end * 150) + 2_000


@with_cases("text", ["token=[" * 2_000 + "]" * 2_000, "'token', " + "'value': " * 5_000])
def test_what_is_nested_is_read_once(text):
    assert lines_run(text) < 30 * len(text)


def test_a_list_that_was_cut_is_hidden_to_its_end():
    assert redact_text("password=[5") == (f"password={PLACEHOLDER}", 1)
    assert redact_text("tokens=[a, b, 'c") == (f"tokens={PLACEHOLDER}", 1)


def test_a_name_in_a_list_that_is_code_is_still_read():
    assert redact_text("tokens=[make(password=hunter), other]")[0] == f"tokens=[make(password={PLACEHOLDER}), other]"
