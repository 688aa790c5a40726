"""Costs for a failing job of having its report signed (REDRIVE_SOURCE_KEY), and the desk to check it. Microseconds.

    python -m bench.signing [--jobs 3000]        half a minute

One process. `signed` is the signature alone, beside `encoded`, which makes a report's bytes of an envelope, and `checked`, what the desk
does before it reads a report. Medians, and 99th percentiles, of processor time. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import sys

from bench.machine import machine
from bench.sealing import SIZES, _us
from jobs_admin.core.envelope import Envelope, encode
from jobs_admin.core.report_signature import SigningKey, is_signed_with, sign


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.signing")
    parser.add_argument("--jobs", type=int, default=3_000)
    jobs = parser.parse_args(arguments).jobs
    key = SigningKey("shop", "0123456789ab", bytes(32))
    found = {}
    for size in SIZES:
        envelope = Envelope(
            "shop", "emails", "shop.send", "j", "exception", 1, 1.0, args="x" * 500, raw=b"x" * size, raw_size=size
        )
        entry = encode(envelope)
        signed = sign(entry, key)
        times = max(20, jobs * 1_500 // size)
        found[f"{size:,} bytes"] = {
            "encoded": _us(lambda envelope=envelope: encode(envelope), times),
            "signed": _us(lambda entry=entry: sign(entry, key), times),
            "checked": _us(lambda signed=signed: is_signed_with(signed, key), times),
            "bytes more": sum(map(len, signed.values())) - sum(map(len, entry.values())),
        }
    print(json.dumps({"machine": machine(), "microseconds": found}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
