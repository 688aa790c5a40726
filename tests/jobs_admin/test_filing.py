"""The message of a failure, in whatever order its reports come."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import permutations

import pytest

from jobs_admin import config, ingest
from jobs_admin.core.envelope import Envelope, Lineage, encode
from jobs_admin.models import Failure, Payload
from jobs_admin.models.failure import Caveat
from tests.kit.sources import forget_configuration

pytestmark = [pytest.mark.django_db, pytest.mark.databases]

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SOON = NOW + timedelta(hours=1)


@pytest.fixture(autouse=True)
def shop(settings, tmp_path):
    file = tmp_path / "sources.toml"
    file.write_text('[sources.shop]\nbackend = "memory"\nurl = "memory:"\n')
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    forget_configuration(config)
    yield
    forget_configuration(config)


def report(attempt=1, *, message=None, is_complete=True, run=1, **changes):
    """`says`: what stands in the message; None: no message came."""
    raw = None if message is None else json.dumps({"args": [], "kwargs": {}, **message}).encode()
    size = len(raw or b"") + (0 if is_complete else 9)
    lineage = Lineage(queue="emails", job_id="j1", run=run) if run > 1 else None
    fields = {
        "kind": "retry" if attempt == 1 else "exception",
        "error_type": "KeyError",
        "at": NOW.timestamp() + attempt,
    }
    return Envelope(
        source="shop", queue="emails", job_id="j1" if run == 1 else f"r{run}", task="t", attempt=attempt, raw=raw,
        raw_size=size, raw_sha256="0", lineage=lineage, **fields | changes,
    )  # fmt: skip


def filed(*reports):
    """The same, whether they come at once or one by one, in whatever order."""
    found = set()
    for order in permutations(reports):
        for at_once in (True, False):
            Failure.objects.all().delete()
            entries = [(b"%d-0" % n, encode(one)) for n, one in enumerate(order, 1)]
            for part in [entries] if at_once else [[entry] for entry in entries]:
                ingest.file(part, SOON + timedelta(hours=5))
            found.add(Failure.objects.values_list("caveats", "expires_at").get())
    (only,) = found
    return only


def test_an_ordinary_job_has_nothing_to_report():
    assert filed(report(message={})) == (None, None)


def test_no_message_a_part_of_it_and_all_of_it():
    assert filed(report()) == (Caveat.NO_MESSAGE, None)
    assert filed(report(message={}, is_complete=False)) == (Caveat.TRUNCATED, None)
    assert filed(report(), report(2, message={}, is_complete=False)) == (Caveat.TRUNCATED, None)
    assert filed(report(message={}), report(2)) == (None, None)


def test_a_complete_message_is_not_given_away_for_a_part():
    assert filed(report(message={}), report(2, message={}, is_complete=False)) == (None, None)
    assert Payload.objects.get().is_whole


def test_who_waits_for_it_and_when_it_expires():
    assert filed(report(message={"chord": True})) == (Caveat.CHORD, None)
    assert filed(report(message={"expires": SOON.isoformat()})) == (Caveat.EXPIRES, SOON)
    both = report(message={"chord": True, "expires": SOON.isoformat()}, is_complete=True)
    assert filed(both) == (Caveat.CHORD | Caveat.EXPIRES, SOON)


def test_a_replayed_message_has_no_expiry_any_more():
    first, again = (
        report(2, message={"chord": True, "expires": SOON.isoformat()}),
        report(2, message={"chord": True}, run=2),
    )
    assert filed(first, again) == (Caveat.CHORD, None)
