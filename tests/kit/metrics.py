"""The page of metrics, and sources with something to count."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from jobs_admin import policies
from jobs_admin.core import keys
from jobs_admin.db import audit, counters
from jobs_admin.db.counters import Counted
from jobs_admin.fleet import heartbeats, uncaptured
from jobs_admin.management.commands.token import create
from jobs_admin.models import (
    Alert,
    Channel,
    Delivery,
    DepthSample,
    Failure,
    FailureCount,
    Notice,
    Replay,
    ReplayItem,
    Rule,
    Source,
    Total,
)
from jobs_admin.models.access import ENGINE
from jobs_admin.worker import budget as counted

LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)+)\})? (-?[0-9.e+]+)\Z')


@pytest.fixture
def fleet(watched):
    """Two sources; a policy with a budget of ten in force on both, of which one retry was made at the shop."""
    heartbeats._last_heard.clear()
    now = timezone.now()
    for source in ("shop", "bank"):
        Source.objects.create(name=source)
        DepthSample.objects.create(
            source=source, queue="emails", at=now, waiting=7, active=2, delayed=0, oldest_dead_at=now
        )
        FailureCount.objects.create(source=source, queue="emails", task="mail", state="dead", count=3)
        fields = {"source": source, "name": f"{source}-1", "boot": "b", "at": now.timestamp(), "queues": ["emails"],
                "mode": "enforce", "policies": {"mail": 1}}  # fmt: skip
        watched.hset(keys.workers(source), f"{source}-1", json.dumps(fields))
    heartbeats.count_heartbeats(now)
    rule = {"match": {"task": "mail"}, "mode": "enforce", "budget": {"per_minute": 0.001, "burst": 10}}
    policies.publish(ENGINE, "mail", rule, expected_version=0)
    watched.eval(counted.SCRIPT.text, 1, keys.budget("shop"), *counted.arguments("mail", 0.001, 10, spent=1))
    return watched


@pytest.fixture
def history(fleet):
    """Jobs of both sources: counted, replayed, reported and lost."""
    now = timezone.now()
    for source in ("shop", "bank"):
        Total.objects.create(
            metric=uncaptured.METRIC, source=source, queue="web-3", task="a", error=now.isoformat(), value=5
        )
    channel = Channel.objects.create(name="chat", kind="webhook", url="https://chat.example/")
    rule = Rule.objects.create(name="many", metric="dead", threshold=1)
    for n, source in enumerate(("shop", "bank"), start=1):
        counters.add_totals(
            {
                Counted(counters.DIED, source, "emails", "mail"): 3 * n,
                Counted(counters.FAILURES, source, "emails", "mail", 'Time"out\\\n'): 7 * n,
                Counted(counters.RETRIES, source, "emails"): 4 * n,
                Counted(counters.RECOVERED, source, "emails"): 2 * n,
                Counted(counters.COMPLETED, source, "emails"): 90 * n,
                Counted(counters.BUSY_S, source, "emails"): 12.5 * n,
                Counted(counters.ENDED, source, "emails"): 97 * n,
                Counted(counters.REFUSED, source, "unsigned"): 4 * n,
            }
        )
        Source.objects.filter(name=source).update(is_reachable=source == "shop", sampled_at=now - timedelta(seconds=5))
        alert = Alert.objects.create(
            rule=rule, source=source, subject="emails", state="firing", severity="warning", value=3, threshold=1,
            opened_at=now,
        )  # fmt: skip
        notice = Notice.objects.create(key=f"alert-{n}", type="alert.firing", source=source, alert=alert, body={})
        Delivery.objects.create(notice=notice, channel=channel, state="parked")
    counters.add_totals({Counted(counters.REFUSED, "", "unknown"): 3})
    replayed(["shop"], sent=2, planned=3)
    replayed(["shop", "bank"], sent=1, planned=1)
    return fleet


def replayed(sources, **counts):
    """A replay that runs; the first source has all of its items but the last."""
    replay = Replay.objects.create(
        state="running", scope_max_id=0, actor="ann", started_at=timezone.now(), total=sum(counts.values()), **counts
    )
    states = [state for state, n in counts.items() for _ in range(n)]
    now = timezone.now()
    for n, state in enumerate(states, start=1):
        failure = Failure.objects.create(
            source=sources[0 if n < len(states) else -1], queue="old", task="mail", first_job_id=f"{replay.pk}-{n}",
            job_id=f"{replay.pk}-{n}", state="dead", kind="exception", first_failed_at=now, failed_at=now, received_at=now,
        )  # fmt: skip
        ReplayItem.objects.create(replay=replay, n=n, failure=failure, run=2, state=state)
    with transaction.atomic():
        for source in sources:
            audit.record(ENGINE, "replay.start", f"replay:{replay.pk}", source=source)


def scrape(client, source="*"):
    token = create(f"scraper of {source}", "viewer", source)
    return client.get("/metrics", headers={"Authorization": f"Bearer {token}"})


def samples(response) -> dict[str, dict[str, float]]:
    """Name -> labels -> value, of a page on which every line is in form and in its place."""
    found: dict[str, dict[str, float]] = {}
    types: dict[str, str] = {}
    latest = ""
    lines = response.text.split("\n")
    assert lines.pop() == "", "the last line ends too"
    for line in lines:
        if line.startswith("# TYPE "):
            _, _, latest, kind = line.split()
            assert latest not in types, "a metric stands in one place"
            types[latest] = kind
        elif not line.startswith("# HELP "):
            name, labels, value = LINE.match(line).groups()
            ends = ("_sum", "_count") if types[latest] == "summary" else ("",)
            assert name in {latest + end for end in ends}, "its type comes first"
            assert (types[latest] == "counter") == name.endswith("_total")
            assert (labels or "") not in found.setdefault(name, {}), "no series comes twice"
            found[name][labels or ""] = float(value)
    return found
