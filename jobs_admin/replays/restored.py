"""Replays of a restored database: jobs that may have been sent since the backup are sent again only by an operator.

At backup, `find_ledgers` records the name (epoch) of each ledger in which sources record what open replays send. At
restore, `statements` pauses these replays and claims every unsent job under that name, in the transaction that loads
the rows. The sender settles such claims like those of a dead sender (`send_results.settle_claims`): jobs in the ledger
were sent, jobs not in it were not, and jobs of a ledger that has been lost since are uncertain.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from jobs_admin import config
from jobs_admin.models import Failure, FrozenBatch, Replay, ReplayItem
from jobs_admin.models.replay import AT_REST, SENDING, ItemState, ReplayState
from jobs_admin.sources.base import SourceError

UNKNOWN = "restored"  # the epoch of a ledger whose name was not recorded; no ledger has this epoch
_OPEN = (*SENDING, *AT_REST, ReplayState.WAITING)

Ledgers = dict[str, dict[str, str]]  # key of a replay -> source -> epoch


def find_ledgers() -> Ledgers:
    """Return the names of the ledgers of open replays. Call it before the database is copied.

    Whatever is sent later is then in a ledger of that name, or in none. Sources that do not answer are omitted.
    """
    found: Ledgers = {}
    for replay in Replay.objects.filter(state__in=_OPEN, planned__gt=0).only("key", "by_source"):
        for source in replay.by_source:
            try:
                found.setdefault(replay.key, {})[source] = config.adapter(source).epoch(replay.key)
            except (KeyError, SourceError):
                continue  # its jobs are claimed under UNKNOWN
    return found


def reason(made_at: datetime) -> str:
    return f"Restored from a backup of {made_at:%-d %b %Y %H:%M} UTC; jobs may have been sent since."


def statements(made_at: datetime, ledgers: Ledgers, now: datetime) -> list[tuple[str, list[object]]]:
    """Return SQL statements with their parameters that make the rows of a backup safe before a sender starts.

    Drafts are deleted and replays that await approval are cancelled, because they may have started since the backup.
    Frozen jobs without items are excluded for the same reason, and stay dead.
    """
    replay, item, failure, frozen = (m._meta.db_table for m in (Replay, ReplayItem, Failure, FrozenBatch))
    is_open = f"state IN ({', '.join(['%s'] * len(_OPEN))})"
    uncreated = f"(SELECT COALESCE(SUM(count), 0) FROM {frozen} WHERE {frozen}.replay_id = {replay}.id)"
    why = reason(made_at)
    left_out = f"{why} Jobs whose items had not been created at that time were left out."
    # A claim is settled only if its sender's lease has expired.
    gone = now - timedelta(days=1)
    found: list[tuple[str, list[object]]] = [
        (f"DELETE FROM {replay} WHERE state = %s", [ReplayState.DRAFT.value]),
        (
            f"UPDATE {replay} SET held_because = CASE WHEN {uncreated} > 0 THEN %s ELSE %s END, "
            f"planned = planned - {uncreated}, cancelled = cancelled + {uncreated}, state = %s, state_since = %s, sender = %s, "
            f"sender_until = %s WHERE {is_open}",
            [left_out, why, ReplayState.PAUSED.value, now, "restored", gone, *(state.value for state in _OPEN)],
        ),
        (
            f"UPDATE {replay} SET held_because = %s, cancelled = cancelled + planned, planned = 0, state = %s, "
            "state_since = %s, ended_at = %s WHERE state = %s",
            [why, ReplayState.CANCELLED.value, now, now, ReplayState.AWAITING_APPROVAL.value],
        ),
        (
            f"DELETE FROM {frozen} WHERE replay_id IN (SELECT id FROM {replay} WHERE state = %s OR ended_at = %s)",
            [ReplayState.PAUSED.value, now],
        ),
    ]
    unclaimed = f"UPDATE {item} SET claimed_at = %s, claim_epoch = %s WHERE state = %s AND claim_epoch = ''"
    for key, epochs in ledgers.items():
        for source, epoch in epochs.items():
            found.append(
                (
                    f"{unclaimed} AND replay_id = (SELECT id FROM {replay} WHERE key = %s) "
                    f"AND failure_id IN (SELECT id FROM {failure} WHERE source = %s)",
                    [now, epoch, ItemState.PLANNED.value, key, source],
                )
            )
    planned = [ItemState.PLANNED.value, ReplayState.PAUSED.value]
    opens = f"SELECT id FROM {replay} WHERE state = %s"
    found.append((f"{unclaimed} AND replay_id IN ({opens})", [now, UNKNOWN, *planned]))
    # Includes items that an earlier sender had released and might still send.
    found.append(
        (
            f"UPDATE {item} SET claimed_at = %s WHERE state = %s AND claimed_at IS NULL AND replay_id IN ({opens})",
            [now, *planned],
        )
    )
    return found
