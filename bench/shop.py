"""Reports of a shop whose jobs fail: what `fill.py` files and `ingest.py` puts on the stream.

40 errors, the n-th 1/n as often as the first; ids in messages, some 2 kB of arguments, some 3 kB of stack in 25 variants
an error (a release moves lines); tenants, hosts, releases. The same seed and place give the same reports.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from collections.abc import Iterator
from functools import cache
from random import Random

from jobs_admin.core.envelope import Envelope

# type, message, queue
_ERRORS = [
    (
        "requests.exceptions.ReadTimeout",
        "POST https://hooks.{tenant}.example/v1/events/{uuid} timed out after {n} ms",
        "webhooks",
    ),
    ("smtplib.SMTPServerDisconnected", "Connection unexpectedly closed while sending to {email}", "emails"),
    ("shop.billing.CardDeclined", "Card ending {n4} of customer {n} was declined (order {uuid})", "payments"),
    (
        "requests.exceptions.HTTPError",
        "503 Server Error: Service Unavailable for url: https://api.partner.example/orders/{n}",
        "webhooks",
    ),
    ("psycopg.errors.SerializationFailure", "could not serialize access due to concurrent update", "reports"),
    ("KeyError", "'shipping_address'", "emails"),
    (
        "redis.exceptions.ConnectionError",
        "Error 111 connecting to 10.0.{n8}.{n8}:6379. Connection refused.",
        "payments",
    ),
    (
        "requests.exceptions.HTTPError",
        "429 Client Error: Too Many Requests for url: https://api.partner.example/orders/{n}",
        "webhooks",
    ),
    ("shop.reports.NoData", "no rows for report {n} between 2026-11-0{d} and 2026-11-1{d}", "reports"),
    ("AttributeError", "'NoneType' object has no attribute 'total'", "payments"),
    ("UnicodeDecodeError", "'utf-8' codec can't decode byte 0x{x} in position {n}: invalid start byte", "emails"),
    (
        "ssl.SSLCertVerificationError",
        "certificate verify failed: hostname mismatch for hooks.{tenant}.example",
        "webhooks",
    ),
    ("socket.gaierror", "[Errno -2] Name or service not known", "webhooks"),
    ("ValueError", "invalid literal for int() with base 10: '{word}'", "payments"),
    ("MemoryError", "cannot allocate {n} bytes for /var/spool/reports/{n}/{uuid}.csv", "reports"),
    ("smtplib.SMTPRecipientsRefused", "550 5.1.1 <{email}>: user unknown", "emails"),
    (
        "django.db.utils.IntegrityError",
        'duplicate key value violates unique constraint "invoice_number" ({n})',
        "payments",
    ),
    ("shop.partner.BadSignature", "signature of delivery {uuid} does not match", "webhooks"),
    ("FileNotFoundError", "[Errno 2] No such file or directory: '/var/spool/{tenant}/{n}.pdf'", "reports"),
    ("TypeError", "unsupported operand type(s) for +: 'int' and 'NoneType'", "payments"),
]
_FUNCTIONS = ("deliver", "send", "charge", "render", "fetch", "store", "prepare", "confirm")
_TENANTS = [f"tenant-{n}" for n in range(1, 25)]
_WORDS = ("alpha", "bravo", "carol", "delta", "echo")


_KINDS = [(_ERRORS[n % len(_ERRORS)], n) for n in range(40)]
_WEIGHTS = list(itertools.accumulate(1 / (rank + 1) for rank in range(40)))
_VARIANTS = 25  # of each stack


def reports(
    count: int,
    *,
    source: str,
    since: float,
    until: float,
    now: float,
    seed: str = "",
    dead_only: bool = False,
    with_arguments: bool = True,
) -> Iterator[Envelope]:
    """`count` failures in order of time, spread from `since` to `until`.

    With `dead_only` each is one report, else one in ten was tried again: it recovered, or its next attempt is due after
    `now`. Without `with_arguments` the raw message holds no arguments, which makes a desk of half the size.
    """
    pick = Random(seed)
    run = f"{pick.getrandbits(40):010x}"
    for n in range(count):
        (error, text, queue), which = pick.choices(_KINDS, cum_weights=_WEIGHTS)[0]
        at = since + (until - since) * (n + 1) / count
        tenant = pick.choice(_TENANTS)
        job_id = f"{run}-{n:08x}"
        release = _release(at, now)
        fields = _fields(pick, error, text, queue, which, tenant, job_id, with_arguments)
        common = {"source": source, "queue": queue, "job_id": job_id, "tenant": tenant, "release": release}
        if dead_only or pick.random() < 0.9:
            yield Envelope(**common, **fields, kind="exception", attempt=1, at=at)
            continue
        due_at = at + pick.uniform(600, 3 * 3600)
        yield Envelope(**common, **fields, kind="retry", attempt=1, at=at, due_at=due_at, max_attempts=4)
        if due_at < now:
            yield Envelope(**common, task=fields["task"], kind="success", attempt=2, at=min(until, due_at))


def _release(at: float, now: float) -> str:
    """A new one every two days, and one three hours ago."""
    days = 0 if now - at < 3 * 3600 else 1 + int((now - at) / (2 * 86_400))
    return f"shop@2026.11.{40 - days}"


def _fields(
    pick: Random, error: str, text: str, queue: str, which: int, tenant: str, job_id: str, with_arguments: bool
) -> dict[str, object]:
    uuid = f"{pick.getrandbits(128):032x}"
    message = text.format(
        tenant=tenant,
        uuid=f"{uuid[:8]}-{uuid[8:12]}-{uuid[12:16]}-{uuid[16:20]}-{uuid[20:]}",
        n=pick.randrange(10**6),
        n4=pick.randrange(1000, 9999),
        n8=pick.randrange(256),
        d=pick.randrange(1, 9),
        x=f"{pick.randrange(128, 256):x}",
        email=f"{pick.choice(_WORDS)}.{pick.randrange(10**4)}@{tenant}.example",
        word=pick.choice(_WORDS),
    )
    function = _FUNCTIONS[which % len(_FUNCTIONS)]
    task = f"shop.{queue}.{function}"
    kwargs = _kwargs(pick, tenant)
    raw = _raw(task, queue, job_id, kwargs if with_arguments else {})
    host = f"worker-{pick.randrange(8)}"
    return {
        "task": task,
        "error_type": error,
        "message": message,
        "trace": f"{_frames(queue, function, which, pick.randrange(_VARIANTS))}{error}: {message}\n",
        "args": "[]",
        "kwargs": json.dumps(kwargs),
        "headers": json.dumps({"lang": "py", "task": task, "id": job_id, "root_id": job_id, "retries": 0}),
        "redacted": 1,
        "worker": f"{queue}@{host}",
        "host": host,
        "duration_s": round(pick.expovariate(0.5), 3),
        "late_ack": True,
        "labels": ("fill",),
        "raw": raw,
        "raw_size": len(raw),
        "raw_sha256": hashlib.sha256(raw).hexdigest(),
    }


def _kwargs(pick: Random, tenant: str) -> dict[str, object]:
    return {
        "order": {"id": pick.randrange(10**7), "currency": "EUR", "lines": pick.sample(_LINES, 20)},
        "customer": {
            "id": pick.randrange(10**6), "email": f"{pick.choice(_WORDS)}@{tenant}.example", "token": "[redacted]",
        },
        "tenant": tenant,
    }  # fmt: skip


def _lines(pick: Random) -> list[dict[str, object]]:
    return [
        {
            "sku": f"{pick.getrandbits(32):08x}",
            "quantity": pick.randrange(1, 9),
            "price": pick.randrange(100, 99999),
            "note": "gift wrap, no card",
        }
        for _ in range(20_000)
    ]


_LINES = _lines(Random(1))  # of orders


def _raw(task: str, queue: str, job_id: str, kwargs: dict[str, object]) -> bytes:
    body = json.dumps([[], kwargs, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]).encode()
    message = {
        "body": base64.b64encode(body).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py", "task": task, "id": job_id, "root_id": job_id, "parent_id": None, "group": None, "retries": 0,
            "eta": None, "expires": None, "timelimit": [None, None], "argsrepr": "()", "kwargsrepr": "{…}", "origin": "fill",
        },
        "properties": {
            "correlation_id": job_id, "reply_to": "", "delivery_mode": 2, "priority": 0, "body_encoding": "base64",
            "delivery_info": {"exchange": "", "routing_key": queue}, "delivery_tag": job_id,
        },
    }  # fmt: skip
    return json.dumps(message).encode()


@cache
def _frames(queue: str, function: str, which: int, variant: int) -> str:
    lines = ["Traceback (most recent call last):"]

    def frame(file: str, line: int, name: str, code: str) -> None:
        lines.append(f'  File "{file}", line {line}, in {name}\n    {code}')

    site = "/srv/shop/.venv/lib/python3.11/site-packages"
    frame(f"{site}/celery/app/trace.py", 453, "trace_task", "R = retval = fun(*args, **kwargs)")
    frame(f"{site}/celery/app/trace.py", 736, "__protected_call__", "return self.run(*args, **kwargs)")
    frame(f"/srv/shop/{queue}/tasks.py", 40 + which + variant, function, f"return {queue}_{function}(order, customer)")
    frame(
        f"/srv/shop/{queue}/{function}_{chr(97 + which % 26)}.py",
        12 + which + 3 * variant,
        f"{queue}_{function}",
        "self.session.execute(self.plan(order))",
    )
    for n in range(14):
        frame(
            f"{site}/library_{which % 7}/adapter_{n}.py",
            100 + 7 * n,
            f"step_{n}",
            f"return self.pool.urlopen(method, url_{n}, retries=self.retries, timeout=t)",
        )
    return "\n".join(lines) + "\n"
