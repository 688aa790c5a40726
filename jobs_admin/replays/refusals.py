"""Why an act on a replay was not done."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.utils import timezone

from jobs_admin.core.clock import dated
from jobs_admin.models import Replay


class ReplayRefused(Exception):
    """Nothing was changed. `code` is for programs, the message for people, `field` names the input that is to blame,
    `accept` the options by which it would go all the same.

    Codes: forbidden, read_only, bad_pace, bad_edit, bad_option, reason_required, nothing_to_replay, already_open, changed,
    wrong_state, too_many, bad_scope, key_reused.
    """

    def __init__(self, code: str, message: str, field: str | None = None, accept: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.accept = tuple(accept)


class AlreadyOpen(ReplayRefused):
    """Somebody is replaying it: who, in which replay, and since when."""

    def __init__(self, replay_id: int, actor: str, since: datetime) -> None:
        super().__init__(
            "already_open",
            f"{actor} is replaying it already: replay #{replay_id}, since {dated(since, timezone.now(), with_seconds=True)} UTC. "
            "Nothing was changed.",
        )
        self.replay_id = replay_id
        self.actor = actor
        self.since = since


def wrong_state(replay: Replay, done: str) -> ReplayRefused:
    """`done`: what was asked for, as it would be said afterwards: paused, started."""
    state = Replay.objects.values_list("state", flat=True).filter(pk=replay.pk).first() or "discarded"
    state = state.replace("_", " ")
    return ReplayRefused("wrong_state", f"Replay #{replay.pk} is {state}, so it cannot be {done}. Nothing was changed.")
