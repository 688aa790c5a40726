"""Fill a desk with failures: real envelopes on the stream, filed by the real ingest.

    python bench/fill.py --failures 100000

40 errors, the n-th 1/n as often as the first; ids in messages, some 2 kB of arguments, some 3 kB of stack; tenants,
workers, releases; spread over the last hours. Uses the desk that the environment (or `up`) names.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")

from jobs_admin.core.envelope import Envelope, encode  # noqa: E402

_AT_ONCE = 500
_ON_STREAM = 20_000  # written ahead of ingest at most, so that the stream stays small

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


def reports(
    count: int, *, source: str, hours: float, now: float, seed: int = 1, dead_only: bool = False
) -> Iterator[Envelope]:
    """`count` failures in order of time; with `dead_only` each is one report, else some are retrying or recovered."""
    pick = Random(seed)
    kinds = [(_ERRORS[n % len(_ERRORS)], n) for n in range(40)]
    weights = list(itertools.accumulate(1 / (rank + 1) for rank in range(40)))
    run = f"{pick.getrandbits(32):08x}"
    for n in range(count):
        (error, text, queue), which = pick.choices(kinds, cum_weights=weights)[0]
        at = now - hours * 3600 * (1 - (n + 1) / count)
        tenant = pick.choice(_TENANTS)
        job_id = f"{run}-{n:012x}"
        said = _said(pick, error, text, queue, which, tenant, job_id)
        fate = 0.0 if dead_only else pick.random()
        common = {"source": source, "queue": queue, "job_id": job_id, "tenant": tenant, "release": _release(at, now)}
        if fate < 0.9:
            yield Envelope(**common, **said, kind="exception", attempt=1, at=at)
            continue
        yield Envelope(
            **common, **said, kind="retry", attempt=1, at=at, due_at=(now if fate < 0.95 else at) + 900, max_attempts=4
        )
        if fate >= 0.95:
            yield Envelope(**common, task=said["task"], kind="success", attempt=2, at=min(now, at + 900))


def _release(at: float, now: float) -> str:
    return "shop@2026.11.2" if now - at < 3 * 3600 else "shop@2026.11.1"


def _said(pick: Random, error: str, text: str, queue: str, which: int, tenant: str, job_id: str) -> dict[str, object]:
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
    raw = _raw(task, queue, job_id, kwargs)
    return {
        "task": task,
        "error_type": error,
        "message": message,
        "trace": _trace(queue, function, which, error, message),
        "args": "[]",
        "kwargs": json.dumps(kwargs),
        "headers": json.dumps({"lang": "py", "task": task, "id": job_id, "root_id": job_id, "retries": 0}),
        "redacted": 1,
        "worker": f"{queue}@worker-{pick.randrange(8)}",
        "host": f"worker-{pick.randrange(8)}",
        "duration_s": round(pick.expovariate(0.5), 3),
        "late_ack": True,
        "labels": ("fill",),
        "raw": raw,
        "raw_size": len(raw),
        "raw_sha256": hashlib.sha256(raw).hexdigest(),
    }


def _kwargs(pick: Random, tenant: str) -> dict[str, object]:
    lines = [
        {
            "sku": f"{pick.getrandbits(32):08x}",
            "quantity": pick.randrange(1, 9),
            "price": pick.randrange(100, 99999),
            "note": "gift wrap, no card",
        }
        for _ in range(20)
    ]
    customer = {"id": pick.randrange(10**6), "email": f"{pick.choice(_WORDS)}@{tenant}.example", "token": "[redacted]"}
    return {
        "order": {"id": pick.randrange(10**7), "currency": "EUR", "lines": lines},
        "customer": customer,
        "tenant": tenant,
    }


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


def _trace(queue: str, function: str, which: int, error: str, message: str) -> str:
    lines = ["Traceback (most recent call last):"]

    def frame(file: str, line: int, name: str, code: str) -> None:
        lines.append(f'  File "{file}", line {line}, in {name}\n    {code}')

    site = "/srv/shop/.venv/lib/python3.11/site-packages"
    frame(f"{site}/celery/app/trace.py", 453, "trace_task", "R = retval = fun(*args, **kwargs)")
    frame(f"{site}/celery/app/trace.py", 736, "__protected_call__", "return self.run(*args, **kwargs)")
    frame(f"/srv/shop/{queue}/tasks.py", 40 + which, function, f"return {queue}_{function}(order, customer)")
    frame(
        f"/srv/shop/{queue}/{function}_{chr(97 + which % 26)}.py",
        12 + which,
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
    lines.append(f"{error}: {message}")
    return "\n".join(lines) + "\n"


def write(store, envelopes: Iterator[Envelope], *, wait_at: int | None = None) -> int:
    """Put the envelopes on the stream; waits while more than `wait_at` wait there. Answers how many."""
    from jobs_admin.core import keys

    written = 0
    while part := list(itertools.islice(envelopes, _AT_ONCE)):
        with store.pipeline(transaction=False) as pipe:
            for envelope in part:
                pipe.xadd(keys.failures(), encode(envelope))
            pipe.xlen(keys.failures())
            waiting = pipe.execute()[-1]
        written += len(part)
        if wait_at is not None and waiting > wait_at:
            yield_to_ingest(store, wait_at // 2)
    return written


def yield_to_ingest(store, until: int) -> None:
    """File what waits in the stream, in this process, until no more than `until` are there."""
    from jobs_admin import ingest
    from jobs_admin.core import keys

    while store.xlen(keys.failures()) > until:
        ingest.step(f"fill:{os.getpid()}", wait_s=0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--failures", type=int, default=10_000)
    parser.add_argument("--hours", type=float, default=24, help="spread over so many hours before now")
    parser.add_argument("--source", default="shop")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the same seed writes the same jobs")
    wanted = parser.parse_args()

    import django

    django.setup()
    from jobs_admin import config
    from jobs_admin.models import Failure

    store = config.store()
    began = time.monotonic()
    envelopes = reports(wanted.failures, source=wanted.source, hours=wanted.hours, now=time.time(), seed=wanted.seed)
    written = write(store, envelopes, wait_at=_ON_STREAM)
    yield_to_ingest(store, 0)
    took = time.monotonic() - began
    figures = {
        "failures": wanted.failures,
        "reports": written,
        "seconds": round(took, 1),
        "failures_now": Failure.objects.count(),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
