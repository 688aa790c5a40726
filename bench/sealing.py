"""Costs for a failing job of having its raw message encrypted for the desk (REDRIVE_PUBLIC_KEY). Microseconds.

    python -m bench.sealing [--jobs 3000]        half a minute

One process. `sealed` is the encryption alone, `encoded` the whole of what makes a report's bytes of an envelope, and `opened` what the desk
does when it files it. Medians, and 99th percentiles, of processor time. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import django
from cryptography.fernet import Fernet
from django.conf import settings

from bench.machine import machine
from jobs_admin.core.envelope import Envelope, decode, encode
from jobs_admin.worker.sealing import sealer

SIZES = (1_500, 100_000, 5_000_000)  # bytes of a message


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.sealing")
    parser.add_argument("--jobs", type=int, default=3_000)
    jobs = parser.parse_args(arguments).jobs
    apps = ["django.contrib.contenttypes", "django.contrib.auth", "jobs_admin"]
    settings.configure(REDRIVE={"PAYLOAD_KEYS": [Fernet.generate_key().decode()]}, INSTALLED_APPS=apps)
    django.setup()
    from jobs_admin.trust import unsealing

    seal = sealer(unsealing.public_key())
    found = {}
    for size in SIZES:
        envelope = Envelope(
            "shop", "emails", "shop.send", "j", "exception", 1, 1.0, args="x" * 500, raw=b"x" * size, raw_size=size
        )
        sealed = seal(envelope)
        entry = encode(sealed)
        times = max(20, jobs * 1_500 // size)
        found[f"{size:,} bytes"] = {
            "encoded in clear": _us(lambda envelope=envelope: encode(envelope), times),
            "sealed": _us(lambda envelope=envelope: seal(envelope), times),
            "sealed and encoded": _us(lambda envelope=envelope: encode(seal(envelope)), times),
            "decoded": _us(lambda envelope=envelope: decode(encode(envelope)), times),
            "opened": _us(lambda entry=entry: unsealing.opened(decode(entry)), times),
            "bytes more": len(sealed.raw or b"") - size,
        }
    print(json.dumps({"machine": machine(), "microseconds": found}, indent=1))
    return 0


def _us(act: Callable[[], object], times: int) -> dict[str, float]:
    taken = []
    for _ in range(times):
        began = time.thread_time()
        act()
        taken.append((time.thread_time() - began) * 1e6)
    return {"median": round(statistics.median(taken), 1), "p99": round(sorted(taken)[int(len(taken) * 0.99)], 1)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
