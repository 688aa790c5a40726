"""Notices that a replay awaits approval, is held or is done, written in the transaction of the transition.

`jobs_admin.notices` delivers them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, QuerySet

from jobs_admin.core.pacing.text import pace_text
from jobs_admin.core.text import list_some, terminal_line
from jobs_admin.models import Failure, Notice, Replay
from jobs_admin.models.access import EVERY_SOURCE, Viewer
from jobs_admin.models.notice import REPLAY_AWAITING_APPROVAL
from jobs_admin.replays import prognosis

_COUNTS = ("total", "planned", "sent", "running", "succeeded", "failed_again", "uncertain", "cancelled")
_MOST_QUEUES, _MOST_GROUPS, _LONGEST_LINE = 5, 100, 190


@dataclass(frozen=True, slots=True)
class Foreseen:
    """Queues and prognosis of a replay, as of its start, for the person who approves it."""

    queues: str
    prognosis: str


def foresee(viewer: Viewer, rows: QuerySet[Failure], now: datetime) -> Foreseen:
    """Return the queues and the prognosis of the jobs in these rows."""
    counted = rows.order_by().values_list("source", "queue").annotate(n=Count("pk")).order_by("-n", "source", "queue")
    queues = [f"{queue} ({source}) {n:,}" for source, queue, n in counted]
    groups = dict(rows.order_by().values_list("group").annotate(n=Count("pk")).order_by("-n")[:_MOST_GROUPS])
    groups.pop(None, None)
    failing = sum(groups[pk] for pk in prognosis.predict_groups(viewer, groups, now))
    words = f"{failing:,} jobs are likely to fail again" if failing else "no group is likely to fail again"
    return Foreseen(list_some(queues, _MOST_QUEUES), words)


def notify_approval(replay: Replay, sources: Sequence[str], foreseen: Foreseen) -> None:
    """Write the notice that a started replay awaits approval."""
    shown = content(replay)
    jobs = "1 job" if replay.total == 1 else f"{replay.total:,} jobs"
    search = f"search {replay.query}" if replay.query else "no search: all dead jobs"
    lines = [
        f"{jobs}: {'selected by hand' if replay.selection else search}",
        f"Queues: {foreseen.queues}",
        f"Pace: {pace_text(replay.pace)}{', with changed arguments' if shown['is_edited'] else ''}",
        f"Requested by {replay.actor}: {replay.reason or 'no reason given'}",
        f"Prognosis: {foreseen.prognosis}",
    ]
    lines = [terminal_line(line, _LONGEST_LINE) for line in lines]  # a reason cannot pass for another line
    title = f"Replay #{replay.pk} awaits approval"
    _write(replay, sources, REPLAY_AWAITING_APPROVAL, "approval", "warning", title, "\n".join(lines), shown)


def content(replay: Replay) -> dict[str, Any]:
    """Return what an approver decides on, as the notice stores it: a replay that now differs is not approved by it."""
    return {
        "search": replay.query,
        "jobs": replay.total,
        "pace": replay.pace,
        "is_edited": replay.edit is not None or replay.patch is not None,
    }


def notify_hold(replay: Replay, sources: Sequence[str], why: str, n: int) -> None:
    """Write the notice that a replay is held. `n` numbers its verdicts, so that each has one notice."""
    _write(replay, sources, "replay.held", f"held:{n}", "warning", f"Replay #{replay.pk} is held", why)


def notify_done(replay: Replay, sources: Sequence[str]) -> None:
    again, unknown = replay.failed_again, replay.uncertain
    ran = [f"{replay.succeeded:,} of {replay.total:,} jobs succeeded"]
    ran += [f"{again:,} failed again"] if again else []
    ran += [f"{unknown:,} uncertain"] if unknown else []
    ran += [f"{replay.sent:,} sent, outcomes not reported"] if replay.sent else []
    severity = "warning" if again or unknown else "info"
    _write(replay, sources, "replay.done", "done", severity, f"Replay #{replay.pk} is done", f"{', '.join(ran)}.")


def _write(
    replay: Replay,
    sources: Sequence[str],
    type_: str,
    number: str,
    severity: str,
    title: str,
    message: str,
    more: Mapping[str, Any] | None = None,
) -> None:
    body = {
        "title": title,
        "message": message[:1_000],
        "replay": replay.pk,
        "reason": replay.reason,
        "by": replay.actor,
        "counts": {name: getattr(replay, name) for name in _COUNTS},
        **(more or {}),
    }
    # A notice about jobs of several sources requires access to all sources.
    source = sources[0] if len(sources) == 1 else EVERY_SOURCE
    notice = Notice(key=f"replay:{replay.pk}:{number}", type=type_, severity=severity, source=source, body=body)
    Notice.objects.bulk_create([notice], ignore_conflicts=True)
