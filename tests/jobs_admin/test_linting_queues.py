"""From jobs that lie in a real BullMQ's queues to lint: `sample` looks at them, and page, call and command quote them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
import redis
from django.core.management import call_command

from jobs_admin import config
from jobs_admin.core import lint
from jobs_admin.lint import linting
from jobs_admin.models.access import ENGINE, Viewer
from jobs_admin.queues import sampling
from tests.kit import node
from tests.kit.sources import forget_configuration
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.django_db]

SOUND = {"attempts": 8, "backoff": {"type": "exponential", "delay": 5000, "jitter": 0.5}}
FIXED = {"attempts": 5, "backoff": {"type": "fixed", "delay": 1000}, "removeOnFail": True}


@pytest.fixture
def sources(store, engine, settings, tmp_path):
    """`tidy` and `shop`, each with a prefix of its own."""
    try:
        node.packages()
    except node.OutOfReach as error:
        pytest.skip(str(error))
    url = engine.url.removesuffix("/0") + "/6"
    (tmp_path / "sources.toml").write_text(
        "".join(
            f'[sources.{name}]\nbackend = "bullmq"\nurl = "{url}"\nprefix = "{name}"\n' for name in ("shop", "tidy")
        )
    )
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(tmp_path / "sources.toml")}
    forget_configuration(config)
    sampling._checked_at.clear()
    yield url
    redis.Redis.from_url(url).flushdb()


def sampled(now: datetime) -> linting.Report:
    def are_known():
        report = linting.report(ENGINE, now)
        return len(report.lying.found) == 2 and report.options and report

    report = wait_until(are_known, "both queues and the options", meanwhile=lambda: sampling.sample(now))
    return report


def test_what_is_in_queues_is_sampled_judged_and_quoted(sources):
    for prefix, name, options, jobs in (("tidy", "mail", SOUND, 1), ("shop", "hook", FIXED, 2)):
        with node.Bullmq(5, sources, prefix=prefix) as bull:
            for _ in range(jobs):
                bull.add("work", name, {}, **options)
    now = datetime.now(UTC)
    report = sampled(now)
    assert linting.coverage(report) == "2 sets of options of 3 queued jobs"
    assert linting.reservations(report) == []
    found = [(str(one.where), one.id, json.loads(one.quoted)) for one in report.findings]
    assert found == [
        ("shop · hook", lint.GROWTH, FIXED),
        ("shop · hook", "dead-letters-dropped-at-once", FIXED),
        ("shop · hook", "gives-up-before-outage", FIXED),
    ]
    assert "2 of 2 jobs checked in work" in report.findings[0].evidence
    tidy = linting.report(Viewer("ann", {"tidy": "viewer"}), now)
    assert (tidy.findings, tidy.check.passes, tidy.check.count("pass")) == ((), True, 1)
    later = linting.reservations(linting.report(ENGINE, now + timedelta(minutes=10)))
    assert [finding.partition(" on ")[0] for finding in later] == [
        f"The queued jobs of {name} were last checked" for name in ("shop", "tidy")
    ]
    output = StringIO()
    with pytest.raises(SystemExit):
        call_command("policies", "lint", stdout=output)
    lines = [line.strip() for line in output.getvalue().splitlines()]
    there = lines.index("Options of queued jobs:")
    assert lines[there + 1 : there + 5] == [
        "shop · work · hook: 2 of 2 jobs checked, latest 2", json.dumps(FIXED),
        "tidy · work · mail: 1 of 1 jobs checked, latest 1", json.dumps(SOUND),
    ]  # fmt: skip


def test_a_queue_of_dead_letters_is_known_by_what_waits_in_it(sources):
    with node.Bullmq(6, sources, prefix="shop") as bull:
        bull.add("work", "hook", {}, **SOUND)
        job = {"id": "1", "name": "hook", "data": {}, "opts": SOUND, "attemptsMade": 8, "stacktrace": []}
        fields = {"originalJob": job, "error": "down", "failedAt": "2026-11-22T10:00:00.000Z"}
        bull.add("dlq", "failed-job", fields, priority=1)
    sampling.sample(datetime.now(UTC))

    def with_options():
        report = linting.report(ENGINE)
        return report.options and report

    report = wait_until(with_options, "the options", meanwhile=lambda: sampling.sample(datetime.now(UTC)))
    assert [(one.id, str(one.where)) for one in report.findings] == [("dead-letters-go-first", "shop · failed-job")]
