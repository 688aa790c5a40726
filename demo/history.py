"""The shop's last 24 hours, played: some thousands of failures through the real ingest. `python -m demo.history`.

Written once into the stream of envelopes, in the order of time, each labelled `demo-history`. The day had a
partner that went down in the night, a rate limit at noon, a release that broke refunds, one customer with a
misspelt endpoint, and the small mishaps of every hour.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import redis

from demo import attempts, control, orders, wire
from demo.orders import BY_NAME, Job, Mishap
from demo.shop import SOURCE, app
from jobs_admin.core import envelope, keys
from jobs_admin.core.display import shown_json
from jobs_admin.core.report_signature import SigningKey, sign
from jobs_admin.installation import COMMAND

LABEL = "demo-history"
WRITTEN = "demo:history"  # in Redrive's store: when the history was written
BEFORE, AFTER = "shop@2026.11.1", "shop@2026.11.2"
HOUR = 3600.0
DEPLOYED = -5.4 * HOUR
WORKERS = ("worker-a", "worker-b", "worker-c")


@dataclass(frozen=True, slots=True)
class Fate:
    """The course of one job. Times are in seconds before now, hence negative."""

    at: float
    mishap: Mishap
    tries: int = 0  # failed tries after which it ran well; 0: it never did
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class Trouble:
    """A time in which one mishap happened often."""

    mishap: str
    begins: float  # hours before now, hence negative
    lasts: float  # hours
    jobs: int
    falling: bool = False  # loud at first and ever quieter, as when people stop trying
    tries: int = 0
    tenant: str | None = None


TROUBLES = (
    # The partner was down for 22 minutes in the night.
    Trouble("partner answers 503", -9.2, 0.37, 460),
    Trouble("partner cuts the connection", -9.2, 0.37, 440),
    Trouble("stock not told", -9.2, 0.37, 60),
    Trouble("stock not told", -9.0, 0.17, 90, tries=3),
    Trouble("mail service cuts the connection", -9.1, 0.27, 110, tries=4),
    Trouble("charge answered 503", -9.2, 0.37, 70),
    # It limited our rate for a while; everything came through in the end, but for some.
    Trouble("partner limits the rate", -15.1, 0.2, 130, tries=2),
    Trouble("partner limits the rate", -15.0, 0.2, 30),
    Trouble("charges limited", -15.1, 0.2, 60, tries=1),
    # The release forgot that accounts may be missing.
    Trouble("customer without an account", DEPLOYED / HOUR, 1.1, 420, falling=True),
    # One customer moved and did not say where to.
    Trouble("endpoint misspelt", -2.1, 2.05, 130, tenant="cobalt"),
    # A slow partner in the morning.
    Trouble("partner is too slow", -12.3, 0.15, 80),
)
EVERYDAY = 1100  # mishaps of all kinds over the day


def day(random: Random) -> list[Fate]:
    """The fates of a day's unlucky jobs, oldest first."""
    fates = [fate for trouble in TROUBLES for fate in _suffered(trouble, random)]
    for _ in range(EVERYDAY):
        mishap = orders.mishap(random)
        fates.append(Fate(-random.uniform(60, 24 * HOUR), mishap, tries=mishap.needs_tries))
    # Each kind was seen at least once, so that nothing in the demo is new without a reason.
    fates += [Fate(-random.uniform(16, 24) * HOUR, mishap, tries=mishap.needs_tries) for mishap in orders.MISHAPS]
    return sorted(fates, key=lambda fate: fate.at)


def _suffered(trouble: Trouble, random: Random) -> Iterator[Fate]:
    for _ in range(trouble.jobs):
        when = random.random() ** 2.5 if trouble.falling else random.random()
        at = (trouble.begins + when * trouble.lasts) * HOUR
        yield Fate(at, BY_NAME[trouble.mishap], tries=trouble.tries, tenant=trouble.tenant)


def envelopes(stage: attempts.Stage, now: float) -> list[envelope.Envelope]:
    """The whole history as workers would have reported it until `now` (seconds since 1970), oldest first.

    The jobs, their ids and their fates are the same each time; only the times move with `now`.
    """
    random = Random(LABEL)
    lived: dict[tuple[str, int], attempts.Attempt] = {}
    written = []
    for n, fate in enumerate(day(random)):
        job = fate.mishap.job(random)
        if fate.tenant:
            job.kwargs["tenant"] = fate.tenant
        job_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{LABEL}/{n}"))
        written += _life(stage, lived, fate, job, job_id, now, random)
    return sorted(written, key=lambda report: report.at)


def _life(
    stage: attempts.Stage,
    lived: dict[tuple[str, int], attempts.Attempt],
    fate: Fate,
    job: Job,
    job_id: str,
    now: float,
    random: Random,
) -> Iterator[envelope.Envelope]:
    """Yield the reports of one job, attempt after attempt, until it succeeded, died, or waits for its next."""
    task = app.tasks[job.task]
    at, retries = now + fate.at, 0
    while at < now:
        worker = random.choice(WORKERS)
        report = {
            "source": SOURCE,
            "queue": app.amqp.router.route({}, task.name)["queue"].name,
            "task": task.name,
            "job_id": job_id,
            "attempt": retries + 1,
            "at": at,
            "max_attempts": None if task.max_retries is None else task.max_retries + 1,
            "duration_s": round(random.uniform(0.01, 0.4), 4),
            "worker": f"shop@{worker}",
            "host": worker,
            "release": AFTER if at - now > DEPLOYED else BEFORE,
            "tenant": job.kwargs["tenant"],
            "late_ack": True,
            "labels": (LABEL,),
        }
        if fate.tries and retries >= fate.tries:
            yield envelope.Envelope(**report, kind="success")
            return
        key = (fate.mishap.name, retries)
        if key not in lived:
            lived[key] = stage.attempt(fate.mishap, random, retries)
        end = lived[key].redacted(job.kwargs)
        raw = stage.message(job, job_id, retries)
        kwargs = shown_json(job.kwargs)
        yield envelope.Envelope(
            **report,
            kind=end.kind,
            error_type=end.error_type,
            message=end.message,
            trace=end.trace,
            due_at=None if end.wait_s is None else at + end.wait_s,
            args="[]",
            kwargs=kwargs.text,
            redacted=kwargs.redacted,
            headers=shown_json({"lang": "py", "task": task.name, "id": job_id, "retries": retries}).text,
            raw=raw,
            raw_size=len(raw),
            raw_sha256=hashlib.sha256(raw).hexdigest(),
        )
        if end.wait_s is None:
            return
        at += end.wait_s + random.uniform(0.02, 0.6)
        retries += 1


def depths(reports: list[envelope.Envelope]) -> dict[str, dict[str, list[int]]]:
    """Return queue -> times in seconds since 1970 at which its attempts `failed` and its jobs `died`, oldest first."""
    last = {report.job_id: report for report in reports}
    found: dict[str, dict[str, list[int]]] = {}
    for report in reports:
        times = found.setdefault(report.queue, {"failed": [], "died": []})
        if report.kind != "success":
            times["failed"].append(int(report.at))
        if report is last[report.job_id] and report.kind not in ("success", "retry"):
            times["died"].append(int(report.at))
    return found


def write(store: redis.Redis, reports: list[envelope.Envelope], source_key: str = "") -> None:
    """Put the reports onto the stream, as the workers would: signed where the source has a key."""
    key = SigningKey.parse(source_key) if source_key else None
    for start in range(0, len(reports), 500):
        with store.pipeline(transaction=False) as pipe:
            for report in reports[start : start + 500]:
                entry = envelope.encode(report)
                pipe.xadd(keys.failures(report.source), sign(entry, key) if key else entry)
            pipe.execute()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m demo.history", description=(__doc__ or "").splitlines()[0])
    parser.parse_args()
    url = os.environ.get("REDRIVE_REDIS_URL")
    if not url:
        sys.exit(f"REDRIVE_REDIS_URL is not set: the desk's store is unknown. `{COMMAND} up` sets it.")
    store = redis.Redis.from_url(url, socket_timeout=10, socket_connect_timeout=5)
    try:
        if store.exists(WRITTEN):
            print("The history exists already. Nothing was added.")
            return
        began = time.monotonic()
        with attempts.stage(wire.partner_url()) as stage:
            reports = envelopes(stage, time.time())
        write(store, reports, os.environ.get("REDRIVE_SOURCE_KEY", ""))
        store.set(WRITTEN, int(time.time()))
        store.set(control.DEPTHS, json.dumps(depths(reports)))
    except redis.RedisError as error:
        sys.exit(f"REDRIVE_REDIS_URL: the store does not answer ({error}). Start it, then run this again.")
    print(f"{len(reports)} reports of the last 24 hours written in {time.monotonic() - began:.1f} s.")


if __name__ == "__main__":
    main()
