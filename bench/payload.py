"""What a job's size costs its page: a failure of some kilobytes and one of 5 MB, on SQLite, through the views.

    python bench/payload.py [--megabytes 5] [--rounds 20]

Both are filed as a worker would report them (the copy that is shown is cut by the worker's own rules, the message is
kept whole and encrypted). Prints the median of each in milliseconds, and what the larger page costs beyond the smaller.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.rigs.empty_desk import desk  # noqa: E402


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--megabytes", type=float, default=5)
    options.add_argument("--rounds", type=int, default=20)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="redrive-payload-") as place:
        sources = Path(place, "sources.toml")
        sources.write_text('[sources.shop]\nbackend = "celery"\nurl = "redis://127.0.0.1:1/0"\n')  # never dialled
        desk(Path(place), REDRIVE_SOURCES=str(sources))
        print(json.dumps(figures(round(chosen.megabytes * 1e6), chosen.rounds), indent=1))


def figures(size: int, rounds: int) -> dict[str, object]:
    from django.contrib.auth import get_user_model
    from django.test import Client

    client = Client(SERVER_NAME="127.0.0.1")
    client.force_login(get_user_model().objects.create_superuser("bench"))
    small, large = bury(lines(2_000), "small"), bury(lines(size), "large")
    pages = {
        "page of the small one": f"/failures/{small}/",
        "page of the large one": f"/failures/{large}/",
        "its whole arguments, first levels": f"/failures/{large}/opened/?whole=1",
        "200 entries from the middle": f"/failures/{large}/opened/?whole=1&at=kwargs.1&from=20000",
        "a word that is nowhere, looked for in all of it": f"/failures/{large}/opened/?whole=1&find=nowhere+at+all",
        "copy as a Python call": f"/failures/{large}/as/python/",
    }
    took = {name: medians(lambda url=url: ask(client, url), rounds) for name, url in pages.items()}
    more = took["page of the large one"][1] - took["page of the small one"][1]
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "megabytes": round(size / 1e6, 1),
        "ms": {name: round(wall, 1) for name, (wall, _) in took.items()},
        "processor_ms": {name: round(own, 1) for name, (_, own) in took.items()},
        "more_than_the_small_page_processor_ms": round(more, 1),
    }


def ask(client: object, url: str) -> None:
    answer = client.get(url, headers={"HX-Request": "true"} if "/opened/" in url else {})
    if answer.status_code != 200:
        raise SystemExit(f"{url} answered {answer.status_code}")


def medians(call: Callable[[], None], rounds: int) -> tuple[float, float]:
    """Milliseconds by the clock, and of this process's own work: on a busy machine only the second says anything."""
    call()
    took = []
    for _ in range(rounds):
        began, worked = time.perf_counter(), time.process_time()
        call()
        took.append(((time.perf_counter() - began) * 1000, (time.process_time() - worked) * 1000))
    return statistics.median(wall for wall, _ in took), statistics.median(own for _, own in took)


def lines(size: int) -> dict[str, object]:
    """Keyword arguments of some `size` bytes of JSON."""
    one = {
        "sku": "0123abcd",
        "quantity": 3,
        "price": 1999,
        "note": "gift wrap, no card",
        "token": "s3cret-of-this-line",
    }
    return {"customer_id": 42, "lines": [one] * max(1, size // len(json.dumps(one)))}


def bury(kwargs: dict[str, object], job_id: str) -> int:
    """A dead job with these arguments; its id."""
    from django.utils import timezone

    from jobs_admin import config
    from jobs_admin.core.display import shown_json
    from jobs_admin.models import Failure, Payload

    shown, now = shown_json(kwargs), timezone.now()
    failure = Failure.objects.create(
        source="shop", queue="webhooks", first_job_id=job_id, job_id=job_id, state="dead", task="shop.deliver", kind="exception",
        error_type="TimeoutError", message="no answer", first_failed_at=now, failed_at=now, received_at=now,
        args="[]", kwargs=shown.text, redacted=shown.redacted,
    )  # fmt: skip
    body = base64.b64encode(json.dumps([[], kwargs, {}]).encode()).decode()
    headers = {"task": "shop.deliver", "id": job_id}
    raw = json.dumps(
        {"body": body, "content-type": "application/json", "content-encoding": "utf-8", "headers": headers,
         "properties": {"body_encoding": "base64"}}
    ).encode()  # fmt: skip
    Payload.objects.create(
        failure=failure,
        run=1,
        body=config.payload_keys().encrypt(raw),
        size=len(raw),
        sha256=hashlib.sha256(raw).hexdigest(),
    )
    return failure.pk


if __name__ == "__main__":
    main()
