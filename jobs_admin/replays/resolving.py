"""An operator's word on jobs whose outcome is unknown: each ran, or was lost and is dead again. One job, or all at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

from django.db import transaction
from django.db.models import Case, F, OuterRef, QuerySet, Subquery, Value, When
from django.utils import timezone

from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable
from jobs_admin.db import turns
from jobs_admin.models import Failure, Replay, ReplayItem
from jobs_admin.models.access import Viewer
from jobs_admin.models.failure import FailureState
from jobs_admin.models.replay import ItemState
from jobs_admin.replays import outcomes, rights, scoping

_AT_ONCE = 500  # jobs of one write transaction: on SQLite no one else writes meanwhile
_WITHIN_S = 4.0  # that an operator waits for; the same act goes on with more
_BECOMES = {
    "ran": (ItemState.SUCCEEDED, FailureState.RECOVERED),
    "lost": (ItemState.FAILED_AGAIN, FailureState.DEAD),
}
_UNTOLD = (FailureState.REPLAYING, FailureState.GONE)  # states of a failure whose run has an unknown outcome


def resolve_item(viewer: Viewer, replay: Replay, n: int, as_: str, now: datetime | None = None) -> ReplayItem:
    """Settle item `n`, whose outcome is unknown: it `ran`, or it was `lost` and is dead again.

    It is uncertain, or was sent where its source does not report how a job ends.
    """
    _refuse_other_words(as_)
    rights.must_act(viewer, replay, "replay.resolve")
    now = now or timezone.now()
    item = ReplayItem.objects.filter(replay=replay, n=n).select_related("failure").first()
    if item is None:
        raise Refused("bad_scope", f"Replay #{replay.pk} has no item {n}.", field="n")
    unknown = [ItemState.UNCERTAIN]
    if not outcomes.are_reported(item.failure.source):
        unknown.append(ItemState.SENT)
    with transaction.atomic():
        was = item.state
        if was not in unknown or not _settle(viewer, replay, [item.pk], was, as_, now):
            raise Refused(
                "wrong_state",
                "Only an item of which nothing is known can be settled by hand; this one is not (any more). "
                "Nothing was changed.",
            )
        rights.record(
            viewer,
            "replay.resolve",
            replay,
            [item.failure.source],
            before={"item": n, "state": was},
            after={"item": n, "state": _BECOMES[as_][0], "failure": item.failure_id},
        )
    item.refresh_from_db()
    return item


def resolve_all(viewer: Viewer, replay: Replay, as_: str, query: str = "", now: datetime | None = None) -> int:
    """Settle every uncertain job, or those that match the search `query`, as `ran` or `lost`. Return their number.

    Some hundred in each transaction, with its audit row. Raises Refused where there are none, or where time was up
    before the last: the same act goes on.
    """
    _refuse_other_words(as_)
    sources = rights.must_act(viewer, replay, "replay.resolve")
    now = now or timezone.now()
    ids = list(uncertain(viewer, replay, query, now).order_by("n").values_list("pk", flat=True))
    ends, count = time.monotonic() + _WITHIN_S, 0
    for start in range(0, len(ids), _AT_ONCE):
        began = time.monotonic()
        with transaction.atomic():
            some = _settle(viewer, replay, ids[start : start + _AT_ONCE], ItemState.UNCERTAIN, as_, now)
            if some:
                after = {"state": _BECOMES[as_][0], "count": some} | ({"query": query} if query else {})
                before = {"state": ItemState.UNCERTAIN}
                rights.record(viewer, "replay.resolve", replay, sources, before=before, after=after)
        count += some
        if (rest := len(ids) - start - _AT_ONCE) > 0 and time.monotonic() > ends:
            raise Refused(
                "changed", f"{count:,} jobs are settled, {rest:,} are not yet. Do the same again for the rest."
            )
        turns.rest(began)
    if not count:
        which = " matches the search" if query else ""
        raise Refused("wrong_state", f"No uncertain job of this replay{which}. Nothing was changed.", "q")
    return count


def uncertain(viewer: Viewer, replay: Replay, query: str = "", now: datetime | None = None) -> QuerySet[ReplayItem]:
    """Return the uncertain items of a replay, of jobs that match the search. Raises Refused for one unfit for acts."""
    items = ReplayItem.objects.filter(replay=replay, state=ItemState.UNCERTAIN)
    if not query.strip():
        return items
    return items.filter(failure__in=scoping.matching(viewer, query, now or timezone.now(), "q"))


def _refuse_other_words(as_: str) -> None:
    if as_ not in _BECOMES:
        raise Refused("bad_scope", "Settle it as ran or as lost.", field="as")


def _settle(viewer: Viewer, replay: Replay, ids: Sequence[int], was: str, as_: str, now: datetime) -> int:
    """Settle these items, of those that are still in the state `was`. Return how many."""
    settled, dead_or_not = _BECOMES[as_]
    mine = ReplayItem.objects.select_for_update().filter(pk__in=ids, state=was)
    moved = dict(mine.order_by("pk").values_list("pk", "failure"))
    if not moved:
        return 0
    outcome = representable(f"{as_}, says {viewer.name}")[:255]
    ReplayItem.objects.filter(pk__in=moved).update(state=settled, settled_at=now, outcome=outcome)
    run = ReplayItem.objects.filter(replay=replay, failure=OuterRef("pk")).values("run")[:1]
    on_their_way = Failure.objects.filter(pk__in=moved.values(), run=Subquery(run), state__in=_UNTOLD)
    why = Case(When(state=FailureState.GONE, then=Value("")), default=F("reason"))  # why it was gone
    on_their_way.update(state=dead_or_not, reason=why)
    Replay.objects.filter(pk=replay.pk).update(**{was: F(was) - len(moved), settled: F(settled) + len(moved)})
    return len(moved)
