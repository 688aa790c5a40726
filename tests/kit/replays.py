"""Replays, started and moved on."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from jobs_admin import config, replays
from jobs_admin.core.refused import Refused
from jobs_admin.models import Attempt, Failure, Group, Payload, Replay, ReplayItem
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.models.failure import Caveat
from jobs_admin.replays import controlling, sending, stopping
from tests.kit.failures import dead
from tests.kit.groups import group
from tests.kit.people import ANN

BOB = Viewer("bob", {"*": OPERATOR})


def running(n: int = 3, **changes) -> Replay:
    ids = dead(n, **changes)
    return replays.start(BOB, replays.draft(BOB, selection=ids, reason="partner is back"))


def moved(replay: Replay, n: int, state: str, **changes) -> None:
    """Item `n` is in `state`, as the sender and settle would have written it."""
    now = timezone.now()
    values = {"state": state, "sent_at": now, "settled_at": now} | changes
    ReplayItem.objects.filter(replay=replay, n=n).update(**values)
    Replay.objects.filter(pk=replay.pk).update(
        **{s: ReplayItem.objects.filter(replay=replay, state=s).count() for s in ("planned", "sent", "uncertain")},
        succeeded=ReplayItem.objects.filter(replay=replay, state="succeeded").count(),
        failed_again=ReplayItem.objects.filter(replay=replay, state="failed_again").count(),
    )


def create_replay_on_hold(others: int = 0, **evidence) -> Replay:
    ids = [*dead(3, group=group()), *dead(others)]
    replay = replays.start(BOB, replays.draft(BOB, selection=ids, reason="partner is back"))
    broken = group("shop.PartnerDown", "still down")
    moved(replay, 1, "failed_again", first_at=timezone.now(), first_ok=False, first_group=broken)
    moved(replay, 2, "sent", first_at=timezone.now(), first_ok=False, first_group=Failure.objects.first().group)
    Replay.objects.filter(pk=replay.pk).update(
        state="held", state_since=timezone.now(), held_because="2 of 5 canary jobs failed again.", evidence=evidence
    )
    replay.refresh_from_db()
    return replay


def buried(n=1, *, raw=None, is_complete=True, payload=True, **changes):
    """`n` dead failures with their messages; the ids, oldest first."""
    now = timezone.now()
    values = {
        "source": "shop", "queue": "emails", "task": "shop.send", "state": "dead", "kind": "exception",
        "error_type": "TimeoutError", "message": "too slow", "args": "[1]", "kwargs": '{"to": "ann"}',
        "first_failed_at": now, "failed_at": now, "received_at": now,
        "caveats": (Caveat.NO_MESSAGE if not payload else Caveat.TRUNCATED if not is_complete else None),
    } | changes  # fmt: skip
    start = Failure.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    made = Failure.objects.bulk_create(
        Failure(**values | {"first_job_id": f"j{start + i}", "job_id": f"j{start + i}"}) for i in range(n)
    )
    ids = sorted(f.pk for f in Failure.objects.filter(pk__gt=start))
    assert len(ids) == len(made)
    raw = raw or json.dumps({"args": [1], "kwargs": {"to": "ann"}}).encode()
    if payload:
        body = config.payload_keys().encrypt(raw)
        digest = hashlib.sha256(raw).hexdigest()
        Payload.objects.bulk_create(
            Payload(failure_id=pk, run=1, body=body, size=len(raw), sha256=digest, is_whole=is_complete) for pk in ids
        )
    return ids


def came_home(item, kind, attempt=1, **changes):
    """The rows that ingest writes when a report of a sent job arrives."""
    now = timezone.now()
    state = {"success": "recovered", "retry": "retrying"}.get(kind, "dead")
    values = {"error_type": "TimeoutError", "message": "again", "group": None} | changes
    Attempt.objects.create(
        failure_id=item.failure_id, run=item.run, attempt=attempt, kind=kind, job_id=item.job_id, item=item,
        ended_at=now, received_at=now, **values,
    )  # fmt: skip
    Failure.objects.filter(pk=item.failure_id).update(run=item.run, state=state, job_id=item.job_id)


@pytest.fixture(autouse=True)
def new_senders():
    """Each test begins without what this process remembers of another test's replays, whose ids come again."""
    yield
    stopping._recalls.clear()
    for sender in sending._senders.values():
        sender.close()
    sending._senders.clear()


AT_ONCE = {"style": "at_once"}


def start_replay(ids, pace=AT_ONCE, **more):
    replay = replays.start(ANN, replays.draft(ANN, selection=ids, pace=pace, reason="fixed", **more))
    while replays.create_items():
        pass
    return replay


def sent_all(sender="one"):
    for _ in range(100):
        if not replays.send(sender):
            return
    raise AssertionError("a hundred rounds were not enough")


def counts(replay):
    replay.refresh_from_db()
    names = ("planned", "sent", "running", "succeeded", "failed_again", "uncertain", "cancelled")
    return {name: n for name in names if (n := getattr(replay, name))}


def refusal(act, *args, **more):
    with pytest.raises(Refused) as refused:
        act(*args, **more)
    return refused.value


START = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)
CAREFUL = {"style": "careful", "ramp": {"from": 5, "to": 100}}


class Steered:
    """A careful replay of jobs that died of one group, looked at in a time of our own."""

    def __init__(self, ids, pace=None, now=START):
        self.now = now
        self.replay = start_replay(ids)
        self.replay.pace = CAREFUL if pace is None else pace
        Replay.objects.filter(pk=self.replay.pk).update(started_at=now, **controlling.start_columns(self.replay, now))
        self.replay.refresh_from_db()

    def send(self, count):
        items = list(self.replay.items.filter(state="planned").order_by("n")[:count])
        self.replay.items.filter(pk__in=[i.pk for i in items]).update(state="sent", sent_at=self.now)
        Failure.objects.filter(pk__in=[i.failure_id for i in items]).update(state="replaying", run=2)
        self.replay.refresh_from_db()
        Replay.objects.filter(pk=self.replay.pk).update(
            sent=self.replay.sent + len(items), planned=self.replay.planned - len(items)
        )
        return items

    def passed(self, seconds=1.0):
        """A round of settle, that many seconds later."""
        self.now += timedelta(seconds=seconds)
        replays.settle(self.now)
        self.replay.refresh_from_db()
        return self.replay

    def come_home(self, items, kind, **changes):
        for item in items:
            came_home(item, kind, **changes)


def dated_group(name, first_seen=START - timedelta(days=1), **more):
    return Group.objects.create(
        fingerprint=f"v1-{name}", error_type="TimeoutError", message="too slow", culprit="shop/pay.py in charge",
        first_seen=first_seen, last_seen=first_seen, **more,
    )  # fmt: skip


def died_of(ids, group):
    Failure.objects.filter(pk__in=ids).update(group=group)
    Attempt.objects.bulk_create(
        Attempt(failure_id=pk, run=1, attempt=1, kind="exception", group=group, ended_at=START, received_at=START)
        for pk in ids
    )
    return ids


def rounds(n=4):
    for _ in range(n):
        replays.send("one")


def until(reached):
    for _ in range(100):
        if reached():
            return
        replays.send("one")
    raise AssertionError("a hundred rounds were not enough")


def standing():
    return list(Failure.objects.order_by("pk").values_list("state", "run", "job_id"))
