"""Notices that a replay awaits approval, is held or is done, written in the transaction of the transition.

`jobs_admin.notices` delivers them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobs_admin.models import Notice, Replay
from jobs_admin.models.access import EVERY_SOURCE
from jobs_admin.models.notice import REPLAY_AWAITING_APPROVAL

_COUNTS = ("total", "planned", "sent", "running", "succeeded", "failed_again", "uncertain", "cancelled")


def notify_approval(replay: Replay, sources: Sequence[str], why: str, dangerous: Sequence[str]) -> None:
    """Write the notice that a started replay awaits approval. `dangerous`: its tasks that need approval."""
    reason = " ".join(replay.reason.split())  # it cannot pass for another line
    message = f"{why}\nRequested by {replay.actor}{f': {reason}' if reason else '.'}"
    title = f"Replay #{replay.pk} awaits approval"
    more = {"dangerous_tasks": list(dangerous)}
    _write(replay, sources, REPLAY_AWAITING_APPROVAL, "approval", "warning", title, message, **more)


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
    **more: Any,
) -> None:
    body = {
        "title": title,
        "message": message[:1_000],
        "replay": replay.pk,
        "reason": replay.reason,
        "by": replay.actor,
        "counts": {name: getattr(replay, name) for name in _COUNTS},
        **more,
    }
    # A notice about jobs of several sources requires access to all sources.
    source = sources[0] if len(sources) == 1 else EVERY_SOURCE
    notice = Notice(key=f"replay:{replay.pk}:{number}", type=type_, severity=severity, source=source, body=body)
    Notice.objects.bulk_create([notice], ignore_conflicts=True)
