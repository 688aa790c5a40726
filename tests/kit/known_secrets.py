"""Secrets of known formats, each as it stands in messages, arguments, headers and logs of real programs.

Every value is made here from the name of its kind, so that it stands nowhere else: what finds it, found a leak. None of them is
anybody's. `SECRETS` are known in a text, wherever it stands; `FIELDS` by the name of the field that holds them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import string
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

ALPHANUMERIC = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
BASE64 = ALPHANUMERIC + "+/"
BASE64URL = ALPHANUMERIC + "-_"
UPPER = string.ascii_uppercase + string.digits


def build_text(kind: str, length: int, alphabet: str = ALPHANUMERIC) -> str:
    """`n` characters that look random and are the same in every run."""
    found = ""
    for n in range(length // 32 + 1):
        found += "".join(alphabet[byte % len(alphabet)] for byte in hashlib.sha256(f"{kind}/{n}".encode()).digest())
    return found[:length]


@dataclass(frozen=True, slots=True)
class Secret:
    """`text` as it stands somewhere; none of `parts` may be read afterwards."""

    kind: str
    text: str
    parts: tuple[str, ...]


def _jwt(kind: str) -> str:
    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part({'sub': kind, 'iat': 1516239022})}.{build_text(kind, 43, BASE64URL)}"


def _pem(kind: str, label: str, newline: str = "\n") -> tuple[str, tuple[str, ...]]:
    lines = [build_text(f"{kind}{n}", 64, BASE64) for n in range(4)]
    return newline.join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----"]), tuple(lines)


def _card(kind: str, prefix: str, length: int = 16) -> str:
    digits = prefix + build_text(kind, length - len(prefix) - 1, string.digits)
    total = sum(sum(divmod(2 * int(d), 10)) if n % 2 == 0 else int(d) for n, d in enumerate(reversed(digits)))
    return digits + str(-total % 10)


def _by_form() -> list[Secret]:
    """Known by what they look like, under any name and in any sentence."""
    found = []

    def add(kind: str, text: str, *parts: str) -> None:
        found.append(Secret(kind, text, parts or (text,)))

    def prefixed(kind: str, prefix: str, length: int, alphabet: str = ALPHANUMERIC, suffix: str = "") -> None:
        body = build_text(kind, length, alphabet)
        add(kind, prefix + body + suffix, body)

    jwt = _jwt("jwt")
    add("JWT", jwt, jwt.rpartition(".")[2])
    header = base64.urlsafe_b64encode(b'{"alg":"RSA-OAEP","enc":"A256GCM"}').decode().rstrip("=")
    jwe = [build_text(f"jwe{n}", size, BASE64URL) for n, size in enumerate((96, 16, 60, 22))]
    add("JWE", ".".join([header, *jwe]), jwe[0], jwe[2], jwe[3])
    prefixed("AWS access key id", "AKIA", 16, UPPER)
    prefixed("AWS temporary key id", "ASIA", 16, UPPER)
    prefixed("Google API key", "AIza", 35, BASE64URL)
    prefixed("Google OAuth token", "ya29.a0", 100, BASE64URL)
    prefixed("Google OAuth client", "GOCSPX-", 28, BASE64URL)
    prefixed("Google refresh token", "1//0g", 60, BASE64URL)
    prefixed("Azure client secret", "a1B8Q~", 34, BASE64URL)
    for kind, prefix in (
        ("Stripe secret key", "sk_live_"),
        ("Stripe test key", "sk_test_"),
        ("Stripe restricted key", "rk_live_"),
        ("Stripe webhook secret", "whsec_"),
        ("GitHub personal token", "ghp_"),
        ("GitHub OAuth token", "gho_"),
        ("GitHub user token", "ghu_"),
        ("GitHub app token", "ghs_"),
        ("GitHub refresh token", "ghr_"),
        ("npm token", "npm_"),
        ("Hugging Face token", "hf_"),
        ("Replicate token", "r8_"),
        ("Groq key", "gsk_"),
        ("DigitalOcean token", "dop_v1_"),
        ("Square token", "sq0atp-"),
        ("Linear key", "lin_api_"),
        ("Grafana service account", "glsa_"),
        ("Sentry token", "sntrys_"),
        ("Supabase token", "sbp_"),
        ("Netlify token", "nfp_"),
        ("PlanetScale password", "pscale_pw_"),
        ("Notion token", "ntn_"),
        ("RubyGems key", "rubygems_"),
        ("Mapbox token", "sk.eyJ"),
    ):
        prefixed(kind, prefix, 40)
    add(
        "GitHub fine-grained token",
        f"github_pat_{build_text('pat', 22)}_{build_text('pat2', 59)}",
        build_text("pat2", 59),
    )
    prefixed("GitLab personal token", "glpat-", 20, BASE64URL)
    prefixed("GitLab deploy token", "gldt-", 20, BASE64URL)
    prefixed("GitLab trigger token", "glptt-", 40, HEX)
    prefixed("PyPI token", "pypi-AgEIcHlwaS5vcmc", 120, BASE64URL)
    prefixed("Docker token", "dckr_pat_", 27, BASE64URL)
    add("Slack bot token", f"xoxb-17653672481-19874698323-{build_text('xoxb', 24)}", build_text("xoxb", 24))
    add(
        "Slack user token",
        f"xoxp-17653672481-19874698323-198746983-{build_text('xoxp', 32, HEX)}",
        build_text("xoxp", 32, HEX),
    )
    add(
        "Slack app token",
        f"xapp-1-A0123456789-1234567890123-{build_text('xapp', 64, HEX)}",
        build_text("xapp", 64, HEX),
    )
    hook = build_text("slack hook", 24)
    add("Slack webhook", f"https://hooks.slack.com/services/T00000000/B00000000/{hook}", hook)
    hook = build_text("discord hook", 68, BASE64URL)
    add("Discord webhook", f"https://discord.com/api/webhooks/123456789012345678/{hook}", hook)
    hook = build_text("teams hook", 32, HEX)
    add(
        "Teams webhook",
        f"https://acme.webhook.office.com/webhookb2/{build_text('t', 36, HEX)}/IncomingWebhook/{hook}/x",
        hook,
    )
    bot = build_text("discord bot", 38, BASE64URL)
    add("Discord bot token", f"MTk4NjIyNDgzNDcxOTI1MjQ4.Cl2FMQ.{bot}", bot)
    bot = build_text("telegram", 33, BASE64URL)
    add("Telegram bot token", f"https://api.telegram.org/bot123456789:AA{bot}/sendMessage", bot)
    add(
        "SendGrid key",
        f"SG.{build_text('sg', 22, BASE64URL)}.{build_text('sg2', 43, BASE64URL)}",
        build_text("sg2", 43, BASE64URL),
    )
    prefixed("Twilio key", "SK", 32, HEX)
    prefixed("Mailgun key", "key-", 32, HEX)
    prefixed("Mailchimp key", "", 32, HEX, "-us12")
    prefixed("Brevo key", "xkeysib-", 64, HEX)
    prefixed("Heroku key", "HRKU-", 60, BASE64URL)
    prefixed("Shopify token", "shpat_", 32, HEX)
    prefixed("OpenAI key", "sk-proj-", 48)
    prefixed("Anthropic key", "sk-ant-api03-", 90, BASE64URL)
    prefixed("Databricks token", "dapi", 32, HEX)
    prefixed("New Relic key", "NRAK-", 27, UPPER)
    prefixed("Vault token", "hvs.", 90, BASE64URL)
    add("Terraform token", f"{build_text('tf', 14)}.atlasv1.{build_text('tf2', 67)}", build_text("tf2", 67))
    prefixed("Atlassian token", "ATATT3x", 180, BASE64URL)
    prefixed("Tailscale key", "tskey-auth-", 40, ALPHANUMERIC)
    prefixed("age key", "AGE-SECRET-KEY-1", 58, UPPER)
    prefixed("Doppler token", "dp.pt.", 43)
    prefixed("Postman key", "PMAK-", 59, HEX)
    prefixed("Figma token", "figd_", 40, BASE64URL)
    for label in ("RSA PRIVATE KEY", "EC PRIVATE KEY", "OPENSSH PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "PRIVATE KEY",
                  "PGP PRIVATE KEY BLOCK"):  # fmt: skip
        add(label, *_flat(_pem(label, label)))
    add("PEM in one line", *_flat(_pem("one line", "PRIVATE KEY", "\\n")))
    add("PEM, indented", *_flat(_pem("indented", "RSA PRIVATE KEY", "\n    ")))
    body = json.dumps({"type": "service_account", "private_key_id": build_text("gcp", 40, HEX),
                       "private_key": _pem("gcp", "PRIVATE KEY")[0], "client_email": "a@b.iam.gserviceaccount.com"})  # fmt: skip
    add(
        "GCP service key",
        body,
        build_text("gcp", 40, HEX),
        build_text("gcp0", 64, BASE64),
        build_text("gcp3", 64, BASE64),
    )
    for scheme in ("postgresql", "mysql", "mongodb+srv", "redis", "rediss", "amqp", "amqps", "https", "ftp", "smtp",
                   "ldaps", "postgresql+psycopg"):  # fmt: skip
        password = build_text(f"{scheme} password", 14)
        add(f"password in {scheme}://", f"{scheme}://shop:{password}@db.internal:1234/orders", password)
    password = build_text("redis only", 14)
    add("password without a name in a URL", f"redis://:{password}@cache:6379/0", password)
    password = build_text("escaped url", 14)
    add("password in a URL, slashes escaped", f"https:\\/\\/shop:{password}@db.internal\\/x", password)
    sentry = build_text("sentry", 32, HEX)
    add("Sentry DSN", f"https://{sentry}@o12.ingest.sentry.io/345", sentry)
    for kind, card in (
        ("Visa", _card("visa", "4")),
        ("Mastercard", _card("mc", "55")),
        ("Amex", _card("amex", "37", 15)),
    ):
        add(f"{kind} number", card)
    card = _card("spaced", "4")
    add("card with spaces", " ".join(card[n : n + 4] for n in range(0, 16, 4)), card[4:8] + " " + card[8:12])
    card = _card("dashed", "51")
    add("card with dashes", "-".join(card[n : n + 4] for n in range(0, 16, 4)), card[4:8] + "-" + card[8:12])
    return found


def _flat(made_: tuple[str, tuple[str, ...]]) -> tuple[str, ...]:
    return (made_[0], *made_[1])


# How programs write a name and its value. `{}` is the value.
_WRITTEN = {
    "query string": "https://api.example.com/v1/orders?page=2&token={}&x=1",
    "api_key in a query": "GET /v1/orders?api_key={} HTTP/1.1",
    "access_token in a query": "for url 'https://api.example.com/me?access_token={}'",
    "signed S3 URL": "https://b.s3.amazonaws.com/k?X-Amz-Credential=x&X-Amz-Signature={}",
    "Azure SAS": "https://a.blob.core.windows.net/c?sv=2022&se=2026&sig={}%3D",
    "OAuth code": "https://shop.example.com/callback?code={}&state=xyz",
    "URL-encoded query": "https://login.example.com/?next=https%3A%2F%2Fshop%2F%3Faccess_token%3D{}%26x%3D1",
    "URL-encoded JSON": "payload=%7B%22password%22%3A%22{}%22%7D",
    "form body": "body was grant_type=password&username=ann&password={}&scope=all",
    "Azure storage": "DefaultEndpointsProtocol=https;AccountName=a;AccountKey={};EndpointSuffix=core.windows.net",
    "Azure service bus": "Endpoint=sb://a.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey={}=",
    "SQL Server": "Server=tcp:db,1433;User ID=shop;Password={};Encrypt=True",
    "ODBC": "DRIVER={{ODBC 18}};SERVER=db;UID=shop;PWD={}",
    "JDBC": "jdbc:postgresql://db/orders?user=shop&password={}&ssl=true",
    "libpq": "could not connect: host=db port=5432 user=shop password={} dbname=orders",
    "ALTER USER": "ALTER USER shop WITH PASSWORD '{}'",
    "IDENTIFIED BY": "CREATE USER shop IDENTIFIED BY '{}'",
    "Bearer": "Authorization: Bearer {}",
    "Bearer, no name": "sent Bearer {} and got 401",
    "Token scheme": "Authorization: Token {}",
    "Proxy-Authorization": "Proxy-Authorization: Basic {}==",
    "AWS signature 4": "Authorization: AWS4-HMAC-SHA256 Credential=x/y, SignedHeaders=host, Signature={}",
    "cookie": "Cookie: theme=dark; sessionid={}; csrftoken=x",
    "set-cookie": "Set-Cookie: sessionid={}; HttpOnly; Path=/",
    "X-Api-Key": "X-Api-Key: {}",
    "X-Auth-Token": "x-auth-token: {}",
    "X-Vault-Token": "X-Vault-Token: {}",
    "header pairs": "[(b'host', b'api'), (b'authorization', b'Bearer {}')]",
    "httpx headers": "Headers([('accept', '*/*'), ('x-api-key', '{}')])",
    "repr of a dict": "{{'user': 'ann', 'password': '{}'}}",
    "repr of kwargs": "deliver(order=7, client_secret='{}', retry=True)",
    "repr of a dataclass": "Account(id=7, api_key='{}', name='Ann')",
    "repr of bytes": 'b\'{{"user": "ann", "password": "{}"}}\'',
    "JSON": '{{"user": "ann", "password": "{}"}}',
    "JSON in JSON": '{{"body": "{{\\"client_secret\\": \\"{}\\"}}"}}',
    "camel case": '{{"accessToken":"{}"}}',
    "kebab case": "access-token: {}",
    "capitals": "AWS_SECRET_ACCESS_KEY={}",
    "session token": "aws_session_token = {}",
    "environment": "DATABASE_PASSWORD={} python manage.py",
    "f-string": "login failed for ann with password={}",
    "said in a message": "wrong password: '{}'",
    "YAML": "database:\n  user: ann\n  password: {}\n  port: 5432",
    "YAML block": "private:\n  secret: |\n    {}\n  next: 1",
    "INI": "[db]\npassword = {}\n",
    "XML": "<login><user>ann</user><password>{}</password></login>",
    "XML attribute": '<connection user="ann" password="{}"/>',
    "SOAP": "<wsse:Password Type='x'>{}</wsse:Password>",
    "command line": "exec: backup --db-password {} --verbose",
    "command line, =": "exec: backup --api-key={} --verbose",
    "curl": "curl -u ann:{} https://api.example.com",
    "curl header": "curl -H 'Authorization: Bearer {}' https://api.example.com",
    "sshpass": "sshpass -p {} ssh ann@host",
    "mysql": "mysqldump -u root -p{} orders",
    "PGPASSWORD": "PGPASSWORD={} psql -h db",
    "Ruby hash": '{{:password=>"{}"}}',
    "PHP array": "['password' => '{}']",
    "Go struct": "{{User:ann Password:{} Port:5432}}",
    "German": "passwort={}",
    "French": "mot_de_passe={}",
    "Spanish": "contraseña: {}",
    "Portuguese": "senha={}",
    "Dutch": "wachtwoord: {}",
    "Polish": "hasło={}",
    "Russian": "пароль: {}",
    "Chinese": "密码：{}",
    "Japanese": "パスワード={}",
    "otp": "otp={}",
    "pin": "PIN: {}",
    "private key by name": "private_key='{}'",
    "signing key": "SIGNING_KEY={}",
    "webhook secret": "webhook_secret={}",
    "refresh token": "refresh_token={}",
    "id token": "id_token={}",
    "npmrc": "//registry.npmjs.org/:_authToken={}",
    "netrc": "machine api.example.com login ann password {}",
    "two-factor": "two_factor_code={}",
    "bcrypt of it": "password_hash={}",
}


def _by_name() -> list[Secret]:
    found = []
    for kind, written in _WRITTEN.items():
        value = build_text(kind, 22)
        found.append(Secret(kind, written.format(value), (value,)))
    return found


def _fields() -> dict[str, dict[str, Any]]:
    """Arguments whose names reveal a secret, by kind; each holds `build_text("field " + kind, 18)` and nothing secret beside it."""

    def field_secret(kind: str) -> str:
        return build_text(f"field {kind}", 18)

    names = (
        "password", "Password2", "userPassword", "user-password", "new_password_confirmation", "db_pwd", "pass", "passwd",
        "passphrase", "secret", "clientSecret", "client-secret", "api_key", "apiKey", "X-API-Key", "APIKEY", "token",
        "accessToken", "refresh_token", "id_token", "authToken", "csrfmiddlewaretoken", "Authorization",
        "Proxy-Authorization", "cookie", "Set-Cookie", "sessionid", "session_key", "private_key", "privateKey",
        "encryption_key", "signing_key", "otp", "otpCode", "totp_secret", "pin", "userPin", "cvv", "cvc2", "card_number",
        "cardNumber", "iban", "ssn", "aws_secret_access_key", "AccountKey", "connection_string", "credentials", "jwt",
        "bearer", "webhook_secret", "salt", "mfa_code", "verification_code", "recovery_codes", "security_answer",
        "passwort", "kennwort", "contraseña", "contrasena", "mot_de_passe", "motDePasse", "senha", "wachtwoord", "hasło",
        "пароль", "密码", "パスワード", "비밀번호", "ｐａｓｓｗｏｒｄ",
    )  # fmt: skip
    found: dict[str, dict[str, Any]] = {name: {name: field_secret(name)} for name in names}
    found["list of pairs"] = {"headers": [["Authorization", field_secret("list of pairs")], ["Host", "api"]]}
    found["name and value"] = {"env": [{"name": "DB_PASSWORD", "value": field_secret("name and value")}]}
    found["deep"] = {"a": [{"b": [{"c": {"api_key": field_secret("deep")}}]}]}
    found["a whole branch"] = {"credentials": {"user": "ann", "key": [field_secret("a whole branch")]}}
    found["a list"] = {"tokens": [field_secret("a list")]}
    found["JSON in a string"] = {"body": json.dumps({"password": field_secret("JSON in a string")})}
    found["a URL's field"] = {"url": f"https://ann:{quote(field_secret('a URL field'))}@api.example.com/"}
    return found


def field_value(kind: str) -> str:
    """The text that must not be read of FIELDS[kind]."""
    return build_text("field a URL field" if kind == "a URL's field" else f"field {kind}", 18)


SECRETS: tuple[Secret, ...] = (*_by_form(), *_by_name())
FIELDS = _fields()
