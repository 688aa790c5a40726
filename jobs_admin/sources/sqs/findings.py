"""Findings on SQS queues whose settings lose dead letters, or prevent Redrive from reading or sending them."""

from __future__ import annotations

from jobs_admin.core.text import list_some
from jobs_admin.sources.base import READ_ONLY, Finding
from jobs_admin.sources.sqs.queues import MOST_QUEUES, Found, QueueState, States
from jobs_admin.sources.sqs.settings import Settings

READ_ONLY_TEXT = "This source has read_only = true: Redrive counts its messages, but receives none."
_SHOWN = 5  # names of queues per sentence


def collect_findings(found: Found, states: States, settings: Settings) -> list[Finding]:
    dead = [one.name for one in found.dead]
    collected = []
    if settings.is_read_only:
        fix = "Remove read_only from the source to file and replay its dead letters."
        collected.append(Finding(READ_ONLY, "high", READ_ONLY_TEXT, fix))
    if unread := [name for name, state in states.items() if not isinstance(state, QueueState)]:
        text = f"Cannot read {_names(unread)}. {states[unread[0]]}"
        collected.append(
            Finding(
                "unread-queue", "high", text, "Correct the name, allow the call, or remove the queue from the source."
            )
        )
    if not settings.dead and (bare := _without_policy(found, states)):
        text = f"No redrive policy on {_names(bare)}: a message that fails is received again until it expires."
        fix = "Set a redrive policy with a dead-letter queue in SQS."
        collected.append(Finding("no-redrive-policy", "warning", text, fix))
    if found.live:
        text = (
            f"Not drained: {_names(list(found.live))}. A redrive policy sends dead letters there, but the queue has its own "
            "redrive policy or is listed in queues, so its messages count as waiting jobs."
        )
        fix = "List all dead-letter queues of this source in dead_letter_queues. Include this queue if its messages are dead."
        collected.append(Finding("live-target", "warning", text, fix))
    if foreign := sorted({origin for one in found.dead for origin in one.of if not settings.is_of_source(origin)}):
        text = (
            f"Not in queues or prefix: {_names(foreign)}. They share a dead-letter queue of this source, so their dead letters "
            "are drained too."
        )
        fix = "Give them their own dead-letter queue in SQS, or add them to queues."
        collected.append(Finding("foreign-queue", "warning", text, fix))
    if short := [name for name in dead if _expires_early(found, states, name)]:
        text = (
            f"Retention of {_names(short)} is not longer than that of the source queue. On a standard queue retention starts "
            "when a message is first sent, so dead letters may expire before Redrive reads them."
        )
        fix = "Set MessageRetentionPeriod of the dead-letter queue to 1209600 (14 days)."
        collected.append(Finding("dead-letter-retention", "warning", text, fix))
    if once := [name for name in found.queues if _max_receives(states, name) == 1]:
        text = f"maxReceiveCount is 1 on {_names(once)}: a message is dead after one receive, even if its consumer restarted."
        collected.append(Finding("max-receive-count", "info", text, "Set maxReceiveCount to 3 or more."))
    if found.left_out:
        text = f"{found.left_out:,} queues with this prefix are not read: the limit is {MOST_QUEUES:,}."
        collected.append(Finding("left-out-queues", "warning", text, "Choose a longer prefix, or name the queues."))
    return collected


def _names(names: list[str]) -> str:
    return list_some(sorted(names), _SHOWN)


def _without_policy(found: Found, states: States) -> list[str]:
    queues = [name for name in found.queues if name not in found.live]
    return [name for name in queues if isinstance(state := states.get(name), QueueState) and not state.target]


def _max_receives(states: States, name: str) -> int | None:
    state = states.get(name)
    return state.max_receives if isinstance(state, QueueState) else None


def _expires_early(found: Found, states: States, dead: str) -> bool:
    state = states.get(dead)
    if not isinstance(state, QueueState) or dead.endswith(".fifo"):
        return False
    of = next(one.of for one in found.dead if one.name == dead)
    origins = [origin for name in of if isinstance(origin := states.get(name), QueueState)]
    return any(state.retention_s <= origin.retention_s for origin in origins)
