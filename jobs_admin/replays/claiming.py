"""Claiming of planned items in SQL before they are sent, so that a later process knows what to look up after a crash."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import Q

from jobs_admin.models import Failure, Payload, Replay, ReplayItem
from jobs_admin.models.failure import FailureState
from jobs_admin.models.replay import SENDING, ItemState

LEASE_S = 5.0

_ITEM, _FAILURE, _PAYLOAD = (model._meta.db_table for model in (ReplayItem, Failure, Payload))


@dataclass(slots=True)
class Claimed:
    """An item with the parts of its outgoing message. Not a model: tens of thousands are created per second."""

    pk: int
    n: int
    run: int
    failure: int
    key: str
    claim_epoch: str
    source: str
    queue: str  # of the failure
    first_job_id: str
    last_job_id: str
    state: str  # of the failure
    last_run: int
    max_attempts: int | None
    args: str  # as displayed; empty unless the replay has an edit
    kwargs: str
    task: str  # empty unless the replay has a patch
    payload: int | None  # the latest complete message from before this run
    size: int  # its size in bytes
    caveats: int | None  # of the failure
    job_id: str = ""  # of the run that the item starts
    body: bytes = b""  # of the message, encrypted, until the outgoing message is built
    is_open: bool = False  # the body is already decrypted
    went_at: float = 0.0  # time of sending, by the monotonic clock

    @property
    def is_dead_still(self) -> bool:
        return self.state == FailureState.DEAD and self.last_run == self.run - 1


def take_lease(replay: Replay, sender: str, now: datetime) -> bool:
    """Become the only sender of this replay for LEASE_S seconds.

    Return False if another process sends it or it is not running.
    """
    free = Q(sender=sender) | Q(sender="") | Q(sender_until__isnull=True) | Q(sender_until__lt=now)
    return bool(
        Replay.objects.filter(free, pk=replay.pk, state__in=SENDING).update(
            sender=sender, sender_until=now + timedelta(seconds=LEASE_S)
        )
    )


def find_planned(replay: Replay, after: int, limit: int) -> list[Claimed]:
    """Return the next unclaimed items after place `after`, in the order of sending. Read-only."""
    goes, groups = _excluded_groups_condition(replay)
    return _read(
        replay, f"item.claimed_at IS NULL AND item.n > %s {goes} ORDER BY item.n LIMIT %s", after, *groups, limit
    )


def find_planned_by_key(replay: Replay, wanted: Sequence[tuple[str, int]]) -> list[Claimed]:
    """Return the first unclaimed items of each wanted (key, count)."""
    if not wanted:
        return []
    # One index lookup per key, so that a key's other waiting jobs are not scanned.
    first = (
        f"SELECT * FROM (SELECT id FROM {_ITEM} WHERE replay_id = %s AND NOT (key = '') AND key = %s AND state = %s "
        "AND claimed_at IS NULL ORDER BY n LIMIT %s) AS first_of_key"
    )
    ids = " UNION ALL ".join([first] * len(wanted))
    parameters = [value for key, count in wanted for value in (replay.pk, key, ItemState.PLANNED, count)]
    goes, groups = _excluded_groups_condition(replay)
    return _read(replay, f"item.id IN ({ids}) {goes} ORDER BY item.n", *parameters, *groups)


def _excluded_groups_condition(replay: Replay) -> tuple[str, list[object]]:
    """Return the SQL condition that skips jobs of groups set aside, until `setting_aside` has cancelled them."""
    if not replay.without_groups:
        return "", []
    one_of, given = in_values(replay.without_groups)
    return f"AND (failure.group_id IS NULL OR NOT failure.group_id {one_of})", [given]


def find_claimed(replay: Replay) -> list[Claimed]:
    """Return claimed items in the order of sending. Whether they were sent is not recorded."""
    return _read(replay, "item.claimed_at IS NOT NULL ORDER BY item.n")


def find_returned(replay: Replay, pks: Collection[int]) -> list[Claimed]:
    """Return the unclaimed items among these that a stalled sender may still send (`send_results.mark_unsent`)."""
    one_of, given = in_values(sorted(pks))
    return _read(replay, f"item.claimed_at IS NULL AND NOT (item.claim_epoch = '') AND item.id {one_of}", given)


def count_unsettled_by_key(replay: Replay, keys: Sequence[str]) -> dict[str, int]:
    """Return key -> number of its jobs that were sent and have not ended."""
    one_of, given = in_values(keys)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT key, COUNT(*) FROM {_ITEM} WHERE replay_id = %s AND NOT (key = '') AND key {one_of} "
            "AND state IN (%s, %s) GROUP BY key",
            [replay.pk, given, ItemState.SENT, ItemState.RUNNING],
        )
        return dict(cursor.fetchall())


def claim(
    replay: Replay, sender: str, items: Sequence[Claimed], epochs: dict[str, str], now: datetime
) -> list[Claimed]:
    """Claim the items and return the claimed ones with their messages; none if the lease was lost or the state changed.

    `epochs`: source -> epoch of its ledger.
    """
    by_epoch: dict[str, list[int]] = {}
    for item in items:
        by_epoch.setdefault(epochs[item.source], []).append(item.pk)
    ours: set[int] = set()
    with transaction.atomic():
        # The lock makes a concurrent pause or cancel wait for the claim and then see it. (SQLite's write transactions
        # are serial, and Django omits the lock there.)
        if not Replay.objects.select_for_update().filter(pk=replay.pk, state__in=SENDING, sender=sender).exists():
            return []
        for epoch, pks in by_epoch.items():
            ours |= _write_claims(pks, epoch, now)
    bodies = _bodies([item.payload for item in items if item.payload is not None and item.pk in ours])
    claimed = [item for item in items if item.pk in ours]
    for item in claimed:
        item.body = bodies.get(item.payload, b"")
    return claimed


def _write_claims(pks: Sequence[int], epoch: str, now: datetime) -> set[int]:
    one_of, given = in_values(pks)
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {_ITEM} SET claimed_at = %s, claim_epoch = %s "
            f"WHERE id {one_of} AND state = %s AND claimed_at IS NULL RETURNING id",
            [connection.ops.adapt_datetimefield_value(now), epoch, given, ItemState.PLANNED],
        )
        return {pk for (pk,) in cursor.fetchall()}


def _bodies(payloads: Sequence[int]) -> dict[int | None, bytes]:
    one_of, given = in_values(payloads)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT id, body FROM {_PAYLOAD} WHERE id {one_of}", [given])
        return {pk: bytes(body) for pk, body in cursor.fetchall()}


def _read(replay: Replay, which: str, *parameters: Any) -> list[Claimed]:
    shown = "failure.args, failure.kwargs" if replay.edit is not None else "'', ''"
    task = "failure.task" if replay.patch is not None else "''"
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT item.id, item.n, item.run, item.failure_id, item.key, item.claim_epoch, failure.source, failure.queue, "
            "failure.first_job_id, failure.job_id, failure.state, failure.run, failure.max_attempts, "
            f"{shown}, {task}, payload.id, COALESCE(payload.size, 0), failure.caveats "
            f"FROM {_ITEM} AS item JOIN {_FAILURE} AS failure ON failure.id = item.failure_id "
            f"LEFT JOIN {_PAYLOAD} AS payload ON payload.id = (SELECT kept.id FROM {_PAYLOAD} AS kept WHERE "
            "kept.failure_id = item.failure_id AND kept.run < item.run AND kept.is_whole ORDER BY kept.run DESC LIMIT 1) "
            f"WHERE item.replay_id = %s AND item.state = %s AND {which}",
            [replay.pk, ItemState.PLANNED, *parameters],
        )
        return [Claimed(*row) for row in cursor.fetchall()]


def in_values(values: Sequence[Any]) -> tuple[str, object]:
    """Return an `IN (…)` clause with all values in one parameter, and that parameter.

    Binding values one by one costs more than reading the rows.
    """
    if connection.vendor == "sqlite":
        return "IN (SELECT value FROM json_each(%s))", json.dumps(list(values))
    return "= ANY(%s)", list(values)
