"""Plans of reschedules: waiting retries in their scope, preview, the row that `watch` carries out, and undo."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Max, QuerySet
from django.utils import timezone

from jobs_admin import failures
from jobs_admin.core import query as language
from jobs_admin.core.refused import Refused
from jobs_admin.core.retry_change import Change, read
from jobs_admin.core.text import representable, whole_number
from jobs_admin.db import abilities, audit
from jobs_admin.db.authorizing import authorize
from jobs_admin.models import Failure, Reschedule
from jobs_admin.models.access import ENGINE, OPERATOR, VIEWER, Viewer
from jobs_admin.models.failure import FailureState
from jobs_admin.models.reschedule import RescheduleState
from jobs_admin.search import scope as scopes

MOST_SAMPLED = 20_000  # rows that a preview reads
BINS = 60
MOST_LINES = 40

_LISTED_FOR = timedelta(days=90)
_LAST = 2**63 - 1  # also includes the batch being written now
_BEFORE = "This change was already undone. Nothing was changed."
MOST_SELECTED = 10_000
ACT = "retry.reschedule"  # in the audit


@dataclass(frozen=True, slots=True)
class Line:
    """Jobs with this number of attempts. Waits are seconds since the failure; None if unknown."""

    attempts: int
    jobs: int
    before: tuple[float, float] | None  # shortest, longest
    after: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Herd:
    """Number of retries in each of BINS equal intervals from now, and the maximum within one second."""

    counts: list[int]
    at_once: int  # already due
    busiest: int


@dataclass(frozen=True, slots=True)
class Preview:
    source: str
    query: str  # with absolute times
    selection: tuple[int, ...]
    highest: int  # the latest failure in scope
    matched: int
    sample_size: int  # the latest of these, on which the rest is based
    beyond: int  # jobs that have already used as many attempts as they would have: unchanged
    lines: list[Line]
    more_lines: int
    before: Herd
    after: Herd
    span_s: float  # of the herds, from `at`
    at: datetime
    change: Change


def parse_change(change: dict[str, Any], now: datetime) -> Change:
    """Parse a change. Raises Refused."""
    return read(change, now.timestamp())


def preview(
    viewer: Viewer,
    *,
    query: str = "",
    selection: Sequence[int] = (),
    change: dict[str, Any],
    now: datetime | None = None,
) -> Preview:
    """Return the preview of a reschedule. Raises Refused."""
    now = now or timezone.now()
    what, pinned = parse_change(change, now), "" if selection else pin_query(query, now)
    rows = find_waiting(viewer, pinned, selection)
    source = source_of(viewer, rows)
    rows = rows.filter(source=source)
    matched = rows.count()
    highest = rows.aggregate(highest=Max("pk"))["highest"] or 0
    columns = ("pk", "attempts", "failed_at", "due_at")
    sampled = list(rows.order_by("-pk").values_list(*columns)[:MOST_SAMPLED])
    at = now.timestamp()
    fitting = [one for one in sampled if what.may_have(one[1])]
    before = [(one[3].timestamp() if one[3] else at) for one in fitting]
    after = [
        due if (due := what.due(pk, attempts, failed_at.timestamp(), at)) is not None else former
        for (pk, attempts, failed_at, _), former in zip(fitting, before, strict=True)
    ]
    span_s = max([1.0, *(due - at for due in [*before, *after])])
    lines = _lines(fitting, before, after)
    return Preview(
        source, pinned, tuple(selection), highest, matched, len(sampled), len(sampled) - len(fitting), lines[:MOST_LINES],
        max(0, len(lines) - MOST_LINES), _herd(before, at, span_s), _herd(after, at, span_s), span_s, now, what,
    )  # fmt: skip


def _lines(
    rows: Sequence[tuple[int, int, datetime, datetime | None]], before: list[float], after: list[float]
) -> list[Line]:
    waits: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for (_, attempts, failed_at, _), old, new in zip(rows, before, after, strict=True):
        waits[attempts].append((old - failed_at.timestamp(), new - failed_at.timestamp()))
    return [
        Line(
            attempts,
            len(theirs),
            (min(old for old, _ in theirs), max(old for old, _ in theirs)),
            (min(new for _, new in theirs), max(new for _, new in theirs)),
        )
        for attempts, theirs in sorted(waits.items())
    ]


def _herd(dues: Sequence[float], at: float, span_s: float) -> Herd:
    counts, seconds = [0] * BINS, defaultdict[int, int](int)
    for due in dues:
        counts[min(BINS - 1, max(0, int((due - at) / span_s * BINS)))] += 1
        seconds[max(0, int(due - at))] += 1
    return Herd(counts, sum(due <= at for due in dues), max(seconds.values(), default=0))


def plan(
    viewer: Viewer,
    *,
    query: str = "",
    selection: Sequence[int] = (),
    change: dict[str, Any],
    reason: str = "",
    highest: int | None = None,
    now: datetime | None = None,
) -> Reschedule:
    """Plan a reschedule, which `watch` carries out within seconds.

    `highest` is that of the preview: later failures are not included. Raises Refused.
    """
    allow(viewer)
    now = now or timezone.now()
    what, pinned = parse_change(change, now), "" if selection else pin_query(query, now)
    rows = find_waiting(viewer, pinned, selection)
    source = source_of(viewer, rows)
    rows = rows.filter(source=source)
    if highest is not None:
        rows = rows.filter(pk__lte=highest)
    latest = rows.aggregate(highest=Max("pk"))["highest"] or 0
    matched = rows.count()
    reason = representable(reason.strip())[:500]
    if matched > 1 and not reason:
        raise Refused("reason_required", "Changing more than one job needs a reason.", field="reason")
    values = {"query": pinned, "selection": sorted(set(selection)), "scope_max_id": latest, "change": what.document()}
    with transaction.atomic():
        planned = _write(viewer, source, reason, now, below=latest + 1, matched=matched, **values)
        audit.record(
            viewer, ACT, f"reschedule:{planned.pk}", source=source, reason=reason,
            after={"query": pinned, "selection": len(values["selection"]), "matched": matched, "change": planned.change},
        )  # fmt: skip
    return planned


def undo(viewer: Viewer, planned: Reschedule, *, reason: str = "", now: datetime | None = None) -> Reschedule:
    """Restore the former waits of jobs that still wait as it left them. Raises Refused."""
    allow(viewer, planned.source)
    now = now or timezone.now()
    if planned.undo_of_id is not None or not planned.changed:
        raise Refused("wrong_state", "There is nothing to undo. Nothing was changed.")
    with transaction.atomic():
        # A reschedule in progress stops before it is undone.
        Reschedule.objects.filter(pk=planned.pk, state=RescheduleState.PLANNED).update(
            state=RescheduleState.STOPPED, ended_at=now, why="The change was undone."
        )
        if Reschedule.objects.filter(undo_of=planned).exists():
            raise Refused("wrong_state", _BEFORE)
        try:
            back = _write(
                viewer, planned.source, representable(reason.strip())[:500], now, query=planned.query, selection=[],
                scope_max_id=planned.scope_max_id, change={}, undo_of=planned, below=_LAST, matched=planned.changed,
            )  # fmt: skip
        except IntegrityError as error:  # each act has one undo: another one was written concurrently
            raise Refused("wrong_state", _BEFORE) from error
        audit.record(
            viewer, f"{ACT}.undo", f"reschedule:{planned.pk}", source=planned.source, reason=back.reason,
            after={"by": f"reschedule:{back.pk}", "matched": back.matched},
        )  # fmt: skip
    return back


def _write(viewer: Viewer, source: str, reason: str, now: datetime, **values: Any) -> Reschedule:
    old = Reschedule.objects.filter(created_at__lt=now - _LISTED_FOR).exclude(state=RescheduleState.PLANNED)
    Reschedule.objects.filter(pk__in=list(old.values_list("pk", flat=True)[:20])).delete()
    name = representable(viewer.name)[:150]
    person = viewer.person_id
    return Reschedule.objects.create(
        source=source, reason=reason, actor=name, created_by_id=person, created_at=now, **values
    )


@dataclass(frozen=True, slots=True)
class Listed:
    rows: list[Reschedule]
    next: str | None  # `after` of the next page; None on the last
    count: int


def listing(viewer: Viewer, *, after: str | None = None, limit: int = 50) -> Listed:
    """Return a page, latest first, of the sources that the viewer sees."""
    found = _visible(viewer).order_by("-pk")
    count = found.count()
    if (below := whole_number(after)) is not None:
        found = found.filter(pk__lt=below)
    rows = list(found[: limit + 1])
    return Listed(rows[:limit], str(rows[limit - 1].pk) if len(rows) > limit else None, count)


def find(viewer: Viewer, pk: int) -> Reschedule:
    """Return a reschedule. Raises Reschedule.DoesNotExist, also if its source is hidden."""
    return _visible(viewer).get(pk=pk)


def _visible(viewer: Viewer) -> Any:
    sources = viewer.sources(VIEWER)
    found = Reschedule.objects.all()
    return found if sources is None else found.filter(source__in=sources)


def may_change(viewer: Viewer, planned: Reschedule) -> bool:
    return viewer.may(OPERATOR, planned.source)


def pin_query(query: str, now: datetime) -> str:
    """Return the search with its times fixed at `now`. Raises Refused if it cannot be the scope of an act."""
    parsed = language.parse(query, now)
    if why := language.unfit_for_acts(parsed):
        raise Refused("bad_scope", f"{why} Nothing was changed.", field="q")
    return language.format(language.pin(parsed, now))


def find_waiting(viewer: Viewer, query: str, selection: Sequence[int]) -> QuerySet[Failure]:
    """Return jobs that wait for a retry, where the viewer is operator. `query` as `pin_query` returns it."""
    if selection:
        ids = {pk for pk in selection if 0 < pk < 2**63}
        if len(ids) > MOST_SELECTED:
            raise Refused("too_many", f"At most {MOST_SELECTED:,} can be chosen by hand.", field="selection")
        found = Failure.objects.filter(scopes.visible(viewer, OPERATOR), pk__in=ids)
    else:
        found = failures.find_matching(viewer, language.parse(query), role=OPERATOR)
    return found.filter(state=FailureState.RETRYING)


def remaining(planned: Reschedule) -> QuerySet[Failure]:
    """Return the jobs of a reschedule that are not done."""
    found = find_waiting(ENGINE, planned.query, planned.selection)
    return found.filter(source=planned.source, pk__lt=planned.below, pk__lte=planned.scope_max_id)


def source_of(viewer: Viewer, rows: QuerySet[Failure]) -> str:
    """Return the single source of the jobs, which must support rescheduling. Raises Refused."""
    sources = sorted(set(rows.order_by().values_list("source", flat=True).distinct()))
    able = [name for name in sources if (can := abilities.capabilities(name)) is not None and can.reschedule]
    if len(able) == 1:
        return able[0]
    if able:
        names = ", ".join(able)
        raise Refused(
            "bad_scope",
            f"These retries are on several sources: {names}. Choose one with source:…  Nothing was changed.",
            "q",
            sources=able,
        )
    if sources:
        raise Refused("bad_scope", f"Retries of {', '.join(sources)} cannot be rescheduled. Nothing was changed.", "q")
    raise Refused(
        "bad_scope",
        "None of these jobs is waiting for a retry on a source where you are operator. Nothing was changed.",
        "q",
    )


def allow(viewer: Viewer, source: str = "") -> None:
    """Raise Refused, and record that in the audit, if the viewer may not change anything there."""
    message = "You are not operator of {where}. Nothing was changed."
    authorize(viewer, OPERATOR, source or None, ACT, message=message)
