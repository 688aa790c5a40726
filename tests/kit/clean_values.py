"""Values of real jobs that are no secrets: arguments by name, and texts. What is hidden of it is hidden wrongly.

`ARGUMENTS` are (name, value) as they stand in kwargs; `TEXTS` are messages, log lines and pieces of code. Made again in every run,
the same each time; the errors of `tests/fingerprints`, which real libraries raised, come beside them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

_WORDS = [
    "order",
    "invoice",
    "customer",
    "shipment",
    "parcel",
    "warehouse",
    "refund",
    "webhook",
    "payment",
    "report",
    "export",
    "import",
    "catalog",
    "product",
    "price",
    "stock",
    "email",
    "newsletter",
    "template",
    "locale",
    "currency",
    "region",
    "branch",
    "commit",
    "release",
    "thumbnail",
    "image",
    "video",
    "page",
    "search",
    "index",
]


def _hex(random: Random, length: int) -> str:
    return "".join(random.choice("0123456789abcdef") for _ in range(length))


def _digits(random: Random, length: int) -> str:
    return str(random.randint(1, 9)) + "".join(random.choice("0123456789") for _ in range(length - 1))


def _without_a_card(random: Random, length: int) -> str:
    """A number that does not pass Luhn's check: one in ten that is made at random does, and looks like a card."""
    while True:
        digits = _digits(random, length)
        total = sum(sum(divmod(2 * int(d), 10)) if n % 2 else int(d) for n, d in enumerate(reversed(digits)))
        if total % 10:
            return digits


def _arguments() -> Iterator[tuple[str, Any]]:
    random = Random(20261122)
    for n in range(40):
        word, other = random.choice(_WORDS), random.choice(_WORDS)
        day = f"2026-{random.randint(1, 12):02}-{random.randint(1, 28):02}"
        uuid = str(UUID(_hex(random, 32)))
        yield f"{word}_id", random.randint(1, 10**9)
        yield "id", uuid
        yield f"{word}_uuid", _hex(random, 32)
        yield "commit", _hex(random, 40)
        yield "sha256", _hex(random, 64)
        yield "etag", f'W/"{_hex(random, 32)}"'
        yield "order_number", f"{word[:2].upper()}-{_digits(random, 8)}"
        yield "reference", _without_a_card(random, 16)
        yield "tracking_number", "1Z" + _digits(random, 16)
        yield "phone", f"+49 {_digits(random, 3)} {_digits(random, 7)}"
        yield "ean", _without_a_card(random, 13)
        yield "timestamp_ms", 1_763_800_000_000 + random.randint(0, 10**9)
        yield "created_at", f"{day}T{random.randint(0, 23):02}:15:00.123456+00:00"
        yield "email", f"{word}.{other}@example.com"
        yield "path", f"/srv/{word}s/{other}/{_hex(random, 8)}.csv"
        yield "url", f"https://api.example.com:8443/v1/{word}s/{random.randint(1, 9999)}?page={n}&sort=-created_at"
        yield "s3_key", f"exports/{day}/{word}-{uuid}.parquet"
        yield "sql", f"SELECT id, {word}_id FROM {other}s WHERE status = 'open' AND total > {n} ORDER BY id LIMIT 100"
        yield "image", "data:image/png;base64,iVBORw0KGgoAAAANSUhEUg" + base64.b64encode(random.randbytes(60)).decode()
        yield "title", f"The {word} of the {other}, part {n}"
        yield "amount", f"{random.randint(1, 9999)}.{random.randint(10, 99)}"
        yield "address", f"{word.title()} Street {n}, {_digits(random, 5)} Springfield"
        yield "user_agent", "Mozilla/5.0 (X11; Linux x86_64; rv:132.0) Gecko/20100101 Firefox/132.0"
        yield "ip", f"10.{n}.{random.randint(0, 255)}.17"
        yield "version", f"{n}.{random.randint(0, 20)}.3-rc1+build.{_hex(random, 7)}"
        yield "points", [[random.random(), random.random()] for _ in range(3)]
        yield "slug", f"{word}-{other}-{_digits(random, 4)}"
    # Names that hold the beginnings of telling ones, or tell about a secret and not what it is.
    yield from {
        "key": "orders/17",
        "keys": ["id", "name"],
        "monkey": "Bobo",
        "keyboard": "QWERTZ",
        "primary_key": "id",
        "sort_key": "created_at",
        "partition_key": "2026-11",
        "cache_key": "orders:17:v2",
        "idempotency_key": "order-17-1",
        "foreign_key": "customer_id",
        "keyword": "shoes",
        "author": "Ann Smith",
        "authors": ["Ann"],
        "authority": "SEC",
        "author_id": 7,
        "authored_at": "2026-11-20",
        "passenger": "Bob",
        "passengers": 3,
        "passed": 12,
        "compass": "NE",
        "bypass_cache": True,
        "passage": "Northwest",
        "pass_rate": 0.93,
        "token_count": 1250,
        "max_tokens": 4096,
        "prompt_tokens": 811,
        "total_tokens": 2000,
        "token_type": "bearer",
        "token_expires_at": "2026-12-01T00:00:00Z",
        "token_ttl": 3600,
        "expires_in": 3600,
        "tokenizer": "cl100k_base",
        "session_length": 30,
        "session_duration_s": 3605.2,
        "session_count": 4,
        "session_timeout": "30m",
        "session_started_at": "2026-11-20T10:00:00Z",
        "session_type": "web",
        "password_changed_at": "2025-01-01",
        "password_required": "always",
        "password_policy": "NIST 800-63B",
        "password_strength": "weak",
        "password_expires_in": "30 days",
        "password_min_length": 12,
        "secretary": "Jane Roe",
        "obsession": "cheese",
        "possession": "goods",
        "signature_date": "2026-01-05",
        "signatures_required": 2,
        "cookie_domain": ".example.com",
        "cookie_policy": "strict",
        "spinner": "dots",
        "pinned": "yes",
        "shipping": "express",
        "opinion": "good",
        "hotpot": "yes",
        "option": "b",
        "laptop": "T14",
        "salted": "butter",
        "refresh_interval": 30,
        "panel": "left",
        "company": "ACME Ltd",
        "span_id": "00f067aa0ba902b7",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "public_key_algorithm": "ed25519",
        "headers": {"content-type": "application/json", "accept": "*/*", "x-request-id": "b7ad6b71"},
        "csv": "a;b;c",
        "error_code": "E1042",
        "zip_code": "10117",
        "country_code": "DE",
        "postcode": "SW1A 1AA",
        "promo_code": "SUMMER26",
        "status_code": 503,
        "barcode": "4006381333931",
        "currency": "EUR",
        "note": "Ring twice, please.",
        "code": "403",
    }.items()


TEXTS_BY_HAND = """\
[Errno -2] Name or service not known
HTTPSConnectionPool(host='api.example.com', port=443): Max retries exceeded with url: /v1/orders?page=2
401 Client Error: Unauthorized for url: https://api.example.com/v1/orders/17?expand=lines
the token has expired
invalid token: expected ',' or '}' at line 3
unexpected token '<', expected 'identifier'
Invalid or expired token
Authentication token not provided
token must be a string, not int
password must have 12 characters
password authentication failed for user "shop"
(using password: YES)
Basic authentication failed for user bob
Bearer authentication is required
signature mismatch
signature: mismatch
The signature of the webhook does not match
cookie: missing
CSRF verification failed. Request aborted.
session expired, please log in again
session: closed
secret not found
Secret "shop-db" not found in namespace "shop"
auth: failed for bob
authorization required
key error: 'customer_id'
KeyError: 'api_key'
KeyError: 'password'
missing 1 required positional argument: 'token'
missing 2 required keyword-only arguments: 'password' and 'username'
__init__() got an unexpected keyword argument 'secret'
name 'token' is not defined
'NoneType' object has no attribute 'password'
dict_keys(['id', 'token', 'name'])
pass: 120 rows, fail: 3
first pass: 1000 rows
pin: 3 rounds, pinned=2
mapping: orders -> parcels, shipping=express
max_tokens=1000 prompt tokens: 2500
This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (8000 in the messages, 1000 in the completion).
tokenizer: bert-base-uncased, tokenizer=bert-base-uncased
token_type=Bearer
code: 503, exit code=137, ?code=503
cache key=orders/17 and key: orders
npm_config_registry_and_cache=set npm_lifecycle_event_name
key-based-authentication-required
hf_hub_download_failed_for_model
sk-learn-pipeline-without-digits
docker run -u 1000 shop
ssh://git@github.com/acme/shop.git
git@github.com:acme/shop.git
https://shop.example.com:8443/a/b@2x.png
mailto:ann@example.com
postgresql://db.internal:5432/orders
redis://127.0.0.1:6379/0
commit 9fceb02d0ae598e95dc970b74767f19372d61af8 (HEAD -> main)
Digest of the file differs
sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg==
order 1234567890123456 not found
invoice 2026-000123-4567 was paid twice
card declined: insufficient funds
duplicate key value violates unique constraint "orders_pkey"
DETAIL:  Key (email)=(ann@example.com) already exists.
null value in column "signature" of relation "documents" violates not-null constraint
column "password_hash" does not exist
SELECT "auth_user"."id", "auth_user"."password", "auth_user"."last_login" FROM "auth_user" WHERE "auth_user"."id" = 7
INSERT INTO sessions (id, user_id) VALUES (7, 8)
ALTER TABLE users ADD COLUMN token_expires_at timestamptz
    password = password
    token = self.fetch_token()
    token = await self._tokens.get(user.id)
    token: str = Field(...)
    tokens = [t for t in text.split() if t]
    def login(self, username, password, *, otp=None):
    return jwt.decode(token, key, algorithms=["RS256"])
    raise AuthenticationFailed("Invalid token.")
    session = requests.Session()
    session.cookies.clear()
    client = Client(api_key=settings.API_KEY, timeout=30)
    client = Client(api_key=os.environ["API_KEY"])
    auth = HTTPBasicAuth(user, password)
    headers = {"Authorization": f"Bearer {token}"}
    getattr(account, 'password', None)
    if not check_password(password, user.password):
    cookie = request.COOKIES.get(settings.SESSION_COOKIE_NAME)
    secret = get_secret("shop/db")
    self.signature = inspect.signature(func)
  File "/srv/app/auth/tokens.py", line 17, in refresh_token
  File "/usr/lib/python3.11/secrets.py", line 3, in token_urlsafe
  File "/srv/app/session/cookies.py", line 88, in set_cookie
2026-11-22 10:00:00,123 INFO worker-3 task shop.deliver[4f0ac6d6-8f0e-4e6e-8b1c-0a8e5d7b9c11] succeeded in 0.31s
{"event": "order.created", "id": 17, "lines": [{"sku": "AB-1", "qty": 2}], "total": "19.90"}
<soap:Fault><faultcode>Server</faultcode><faultstring>no such order</faultstring></soap:Fault>
<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>
""".splitlines()


def errors() -> list[str]:
    """Messages and tracebacks that real libraries raised (tests/fingerprints)."""
    found: dict[str, None] = {}
    for file in sorted((Path(__file__).parents[1] / "fingerprints").glob("*.jsonl")):
        for line in file.read_text().splitlines():
            pair = json.loads(line)
            for side in (pair["left"], pair["right"]):
                found |= dict.fromkeys((side["message"], side["trace"]))
    return list(found)


ARGUMENTS: tuple[tuple[str, Any], ...] = tuple(_arguments())
TEXTS: tuple[str, ...] = tuple(TEXTS_BY_HAND)
