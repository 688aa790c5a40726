"""Discarding, restoring and readmitting of failures, and undo. Nothing is deleted or sent.

A large act is a *sweep*: its selection is frozen when it starts (absolute times, highest id), it processes failures
from the latest to the oldest in short transactions, and it can be interrupted and continued, so that no request waits
for 45,000 jobs. The audit row of each transaction has its changes, and `undo` reverts exactly those.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from django.db import transaction
from django.db.models import Exists, Max, OuterRef, QuerySet
from django.utils import timezone

from jobs_admin import config, failures
from jobs_admin.core import query as language
from jobs_admin.core.query import Match, Value
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable, whole_number
from jobs_admin.db import audit
from jobs_admin.db.authorizing import authorize, note
from jobs_admin.db.turns import lock_writers
from jobs_admin.models import AuditEvent, Failure, FailureCount, Group, GroupAlias, ReplayItem
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.models.failure import FailureState
from jobs_admin.models.replay import OPEN_ITEM
from jobs_admin.search import scope

MOST_SELECTED = 10_000
_AT_ONCE = 500  # rows per transaction: SQLite allows no other writer meanwhile, at most 200 ms
_FOUND_AT_ONCE = 20_000  # ids per query of the scope
_FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Act:
    name: str  # in the audit
    before: tuple[FailureState, ...]
    after: FailureState
    done: str  # past participle of the act


# States that can be discarded: not running or sent jobs, which the desk cannot end, nor recovered ones, which need no
# act.
DISCARD = Act("failure.discard", (FailureState.DEAD, FailureState.QUARANTINED), FailureState.DISCARDED, "discarded")
RESTORE = Act("failure.restore", (FailureState.DISCARDED,), FailureState.DEAD, "restored")
READMIT = Act("failure.readmit", (FailureState.QUARANTINED,), FailureState.DEAD, "readmitted")
ACTS = {"discard": DISCARD, "restore": RESTORE, "readmit": READMIT}
_BY_NAME = {act.name: act for act in ACTS.values()}
NAMES = tuple(_BY_NAME)  # in the audit
UNDO_OF = "undo of "  # prefix of the reason of an undo, followed by the key of the undone act
UNDOING = "undo:"  # prefix of the key of an undo: a person can write any reason, but not a key
_STEPS_AT_ONCE = 20  # steps of a sweep whose jobs are read at once
_STEPS_CHECKED = 20  # steps of a sweep that are checked for an unchanged job
_UNDONE = {"failure.discard": "restored", "failure.restore": "discarded again", "failure.readmit": "quarantined again"}


@dataclass(frozen=True, slots=True)
class Acted:
    """Jobs actually changed. Pass `key` to `undo` to revert exactly those."""

    count: int
    ids: list[int]
    key: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Sweep:
    """A large act in progress. `key` names it in the audit; pass it to `undo` to revert the changes so far."""

    act: str  # of ACTS, or "undo"
    key: str
    query: str  # with absolute times; for an undo, the key of the undone act
    reason: str
    matched: int  # when it started
    below: int  # everything from this id on is processed
    looked: int = 0
    changed: int = 0
    is_done: bool = False


def discard(viewer: Viewer, *, selection: Sequence[int] = (), query: str = "", reason: str = "") -> Acted:
    """Discard dead or quarantined failures, except those in an open replay. More than one requires a reason.

    Raises Refused.
    """
    return _act_completely(viewer, "discard", selection, query, reason)


def restore(viewer: Viewer, *, selection: Sequence[int] = (), query: str = "", reason: str = "") -> Acted:
    """Make discarded failures dead again. Raises Refused."""
    return _act_completely(viewer, "restore", selection, query, reason)


def readmit(viewer: Viewer, *, selection: Sequence[int] = (), query: str = "", reason: str = "") -> Acted:
    """Make quarantined failures dead, so that they can be replayed. Raises Refused."""
    return _act_completely(viewer, "readmit", selection, query, reason)


def undo(viewer: Viewer, key: str) -> Acted:
    """Revert the changes of the act `key`, except of jobs changed since. Raises Refused."""
    sweep = go_on(viewer, begin_undo(viewer, key))
    return Acted(sweep.changed, _ids_of(sweep.key), sweep.key)


def _act_completely(viewer: Viewer, act: str, selection: Sequence[int], query: str, reason: str) -> Acted:
    if selection:
        return act_on(viewer, act, selection, reason=reason)
    if act != "discard" and not query:
        raise Refused("bad_scope", f"Select the failures to {act}. Nothing was changed.", field="selection")
    sweep = go_on(viewer, begin(viewer, act, query=query, reason=reason))
    return Acted(sweep.changed, _ids_of(sweep.key), sweep.key)


# --- manual selection -------------------------------------------------------------------------------------------


def act_on(viewer: Viewer, act: str, selection: Sequence[int], *, reason: str = "") -> Acted:
    """Do `act` (of ACTS) to a manual selection of failures. Raises Refused."""
    what = ACTS[act]
    _authorize(viewer, what.name, selection)
    chosen = _allowed_jobs(viewer, what.name, selection)
    ids = list(chosen.filter(state__in=what.before).order_by("-pk").values_list("pk", flat=True))
    reason = _reason(act, reason, len(ids))
    key = f"failure:{ids[0]}" if len(ids) == 1 else _new_key()
    done: list[int] = []
    event = 0
    for start in range(0, len(ids), _AT_ONCE):
        moved, event = _move(viewer, what, ids[start : start + _AT_ONCE], reason, key)
        done += moved
    # All acts on one job have the same name in the audit; the key identifies the act.
    return Acted(len(done), sorted(done), f"{key}@{event}" if len(ids) == 1 and event else key)


def _allowed_jobs(viewer: Viewer, act: str, selection: Sequence[int]) -> QuerySet[Failure]:
    chosen = _chosen(selection)
    sources = _sources(chosen)
    if sources and not any(viewer.may(OPERATOR, source) for source in sources):
        # An attempt on a hidden failure is recorded for the source's admin and answered as if the failure did not
        # exist.
        known = [source for source in sources if viewer.role_on(source)]
        message = f"You need the role operator on {', '.join(known) or 'the source'}. Nothing was changed."
        note(viewer, act, "", message, sources)
        if known:
            raise Refused("forbidden", message)
    allowed = viewer.sources(OPERATOR)
    return chosen if allowed is None else chosen.filter(source__in=allowed)


def _chosen(selection: Sequence[int]) -> QuerySet[Failure]:
    ids = {int(pk) for pk in selection if 0 < int(pk) < 2**63}
    if len(ids) > MOST_SELECTED:
        raise Refused("too_many", f"At most {MOST_SELECTED:,} failures can be selected.", field="selection")
    return Failure.objects.filter(pk__in=ids)


def _sources(chosen: QuerySet[Failure]) -> list[str]:
    return sorted(chosen.order_by().values_list("source", flat=True).distinct())


# --- all matches ------------------------------------------------------------------------------------------------


def begin(
    viewer: Viewer, act: str, *, query: str, reason: str = "", highest: int | None = None, now: datetime | None = None
) -> Sweep:
    """Freeze the scope of a large act: the matches at `now`, up to the failure `highest`. Changes nothing yet.

    Raises Refused.
    """
    what = ACTS[act]
    _authorize(viewer, what.name, ())
    read = _frozen(query, now)
    if what is RESTORE and not read.names_state:  # the default scope of a search excludes discarded jobs
        read = replace(read, terms=(*read.terms, Match("state", (Value(FailureState.DISCARDED.value),))))
    latest = Failure.objects.aggregate(latest=Max("pk"))["latest"] or 0
    sweep = Sweep(
        act=act,
        key=_new_key(),
        query=language.format(read),
        reason="",
        matched=0,
        below=min(latest, highest if highest is not None else latest) + 1,
    )
    matched = _sweep_failures(viewer, sweep).count()
    return replace(sweep, matched=matched, reason=_reason(act, reason, matched))


def require_search(query: str) -> None:
    """Refuse an empty search, as from an unset variable in a script: it would match all failures."""
    if not query.strip():
        raise Refused(
            "bad_scope", "The search is empty: give at least a state, such as state:dead. Nothing was changed.", "q"
        )


def _frozen(query: str, now: datetime | None) -> language.Query:
    """Return the search with its times fixed at `now`. Raises Refused if it cannot be the scope of an act."""
    now = now or timezone.now()
    read = language.parse(query, now)
    if why := language.unfit_for_acts(read):
        raise Refused("bad_scope", f"{why} Nothing was changed.", field="query")
    return language.pin(read, now)


def go_on(viewer: Viewer, sweep: Sweep, *, within_s: float = _FOREVER) -> Sweep:
    """Continue a sweep for about that long. Raises Refused if the right or the desk's mode has been withdrawn since."""
    ends = time.monotonic() + within_s
    if sweep.act == "undo":
        _authorize(viewer, "failure.undo", ())
        return _go_on_undoing(viewer, sweep, ends)
    what = ACTS[sweep.act]
    _authorize(viewer, what.name, ())
    while not sweep.is_done:
        found = list(_sweep_failures(viewer, sweep).order_by("-pk").values_list("pk", flat=True)[:_FOUND_AT_ONCE])
        for start in range(0, len(found), _AT_ONCE):
            if start and time.monotonic() >= ends:
                return sweep
            ids = found[start : start + _AT_ONCE]
            moved, _ = _move(viewer, what, ids, sweep.reason, sweep.key)
            sweep = replace(sweep, below=ids[-1], looked=sweep.looked + len(ids), changed=sweep.changed + len(moved))
        sweep = replace(sweep, is_done=len(found) < _FOUND_AT_ONCE)
        if time.monotonic() >= ends:
            break
    return sweep


def _sweep_failures(viewer: Viewer, sweep: Sweep) -> QuerySet[Failure]:
    matching = failures.find_matching(viewer, language.parse(sweep.query), role=OPERATOR)
    return matching.filter(pk__lt=sweep.below, state__in=ACTS[sweep.act].before)


def fingerprints_of(
    viewer: Viewer,
    *,
    selection: Sequence[int] = (),
    query: str = "",
    highest: int | None = None,
    now: datetime | None = None,
    limit: int = 1_001,
) -> list[str]:
    """Return the fingerprints of the selection's groups, at most `limit`. `query` is frozen as by `begin`.

    Raises Refused.
    """
    if selection:
        ids = _groups_of(_chosen(selection).filter(scope.visible(viewer, OPERATOR)))
    else:
        read = _frozen(query, now)
        if highest is not None:
            ids = _groups_of(failures.find_matching(viewer, read, role=OPERATOR).filter(pk__lte=highest))
        elif scope.is_counted(read):
            ids = _groups_of(scope.matching_counts(viewer, read, OPERATOR))
        else:
            ids = _groups_of(failures.find_matching(viewer, read, role=OPERATOR))
    known = Group.objects.filter(pk__in=list(ids[:limit])).order_by("-last_seen")
    names = [group.name for group in known.only("fingerprint")]
    # A group that is being merged is replaced by the group that it is merged into.
    heirs = dict(GroupAlias.objects.filter(fingerprint__in=names).values_list("fingerprint", "group__fingerprint"))
    return list(dict.fromkeys(heirs.get(name, name) for name in names))


def _groups_of(rows: QuerySet[Failure] | QuerySet[FailureCount]) -> QuerySet:
    return rows.order_by().values_list("group_id", flat=True).distinct()


# --- undo -------------------------------------------------------------------------------------------------------


def begin_undo(viewer: Viewer, key: str) -> Sweep:
    """Freeze the scope of an undo. Changes nothing yet. Raises Refused."""
    _authorize(viewer, "failure.undo", ())
    events = list(_events(viewer, key).values_list("pk", "after")[:1_000_000])
    if not events:
        raise Refused("not_found", "Nothing to undo. Nothing was changed.")
    matched = sum((after or {}).get("count", 0) for _, after in events)
    return Sweep("undo", _new_key(UNDOING), key, f"{UNDO_OF}{key}", matched, below=events[0][0] + 1)


def undoable(viewer: Viewer, key: str) -> int:
    """Return how many jobs the act changed if `undo` would revert some of them; otherwise 0."""
    if config.is_read_only():
        return 0
    events = list(_events(viewer, key).only("act", "actor", "object", "source", "after")[:1_000_000])
    if not any(_is_unchanged(event) for event in events[:_STEPS_CHECKED]):
        return 0
    return sum((event.after or {}).get("count", 0) for event in events)


def _is_unchanged(event: AuditEvent) -> bool:
    """Return whether a job is still as the event left it, unchanged by later acts."""
    after, mark = event.after or {}, _reason_text(event.actor, _BY_NAME[event.act].done)
    left = _free().filter(pk__in=after.get("ids", ()), state=after.get("state"), reason=mark, source=event.source)
    if not (jobs := set(left.values_list("pk", flat=True))):
        return False
    later = _TakenUp(jobs, {event.source}, event.pk)
    later.read(_later(event.pk, event.object, later.sources))
    return bool(jobs - later.since(event.pk))


def _go_on_undoing(viewer: Viewer, sweep: Sweep, ends: float) -> Sweep:
    numbers = list(_events(viewer, sweep.query, below=sweep.below).values_list("pk", flat=True))
    for place, number in enumerate(numbers):
        if place and time.monotonic() >= ends:
            return sweep
        if place % _STEPS_AT_ONCE == 0:
            later = _taken_up(numbers[place : place + _STEPS_AT_ONCE], sweep)
        event = AuditEvent.objects.get(pk=number)
        moved = _undo_event(viewer, event, sweep, later)
        count = (event.after or {}).get("count", 0)
        sweep = replace(sweep, below=event.pk, looked=sweep.looked + count, changed=sweep.changed + moved)
    return replace(sweep, is_done=True)


def _events(viewer: Viewer, key: str, *, below: int = 2**63 - 1) -> QuerySet[AuditEvent]:
    """Return the events with this key where the viewer is operator, latest first; for one job, a single act.

    Events of hidden jobs are excluded, which does not disclose their existence.
    """
    name, _, number = representable(key).partition("@")
    found = AuditEvent.objects.filter(object=name, act__in=list(_BY_NAME), allowed=True, pk__lt=below).order_by("-pk")
    own = viewer.sources(OPERATOR)
    found = found if own is None else found.filter(source__in=own)
    if not name.startswith("failure:"):
        return found
    if number:
        pk = whole_number(number)
        return found.none() if pk is None else found.filter(pk=pk)
    return found[:1]


class _TakenUp:
    """Jobs that later acts changed. They belong to the later act, even if their state is still that of the undone act.

    A later act that was itself undone does not count: its jobs belong to the earlier act again.
    """

    def __init__(self, jobs: set[int], sources: set[str], until: int) -> None:
        self.sources = sources  # sources of the jobs; each read includes all of them
        self.until = until  # events up to this one are included
        self._jobs = jobs
        self._standing: dict[int, list[tuple[int, str]]] = defaultdict(
            list
        )  # job -> (number, key) of each, latest last

    def read(self, later: QuerySet) -> None:
        """Add later events, (number, object, reason, after) each."""
        for number, name, reason, after in later.order_by("pk").iterator(chunk_size=200):
            undone = reason.removeprefix(UNDO_OF) if name.startswith(UNDOING) else ""
            for pk in (after or {}).get("ids", ()):
                if pk in self._jobs:
                    self._note(self._standing[pk], number, name, undone)
            self.until = max(self.until, number)

    @staticmethod
    def _note(standing: list[tuple[int, str]], number: int, name: str, undone: str) -> None:
        if undone and standing and undone in (standing[-1][1], f"{standing[-1][1]}@{standing[-1][0]}"):
            standing.pop()
        else:
            standing.append((number, name))

    def since(self, event: int) -> set[int]:
        """Return the jobs that an act after this event changed, unless it was undone."""
        return {pk for pk, standing in self._standing.items() if standing and standing[-1][0] > event}


def _taken_up(numbers: Sequence[int], sweep: Sweep) -> _TakenUp:
    """Return the jobs of these events that later acts changed.

    Read before any transaction, because a later act may include a million jobs.
    """
    until = AuditEvent.objects.aggregate(highest=Max("pk"))["highest"] or 0
    events = list(AuditEvent.objects.filter(pk__in=numbers).only("pk", "object", "source", "after"))
    jobs = {pk for event in events for pk in (event.after or {}).get("ids", ())}
    found = _TakenUp(jobs, {event.source for event in events}, 0)
    if events:
        later = _later(min(numbers), events[0].object, found.sources, sweep.key)
        found.read(later.filter(pk__lte=until))
    found.until = until
    return found


def _later(than: int, name: str, sources: set[str], undoing: str = "") -> QuerySet:
    """Return later events, except those of the same sweep and of the undo in progress, which concern other jobs."""
    found = AuditEvent.objects.filter(
        pk__gt=than, act__in=[*_BY_NAME, "failure.quarantine"], allowed=True, source__in=sources
    )
    if not name.startswith("failure:"):
        found = found.exclude(object=name)
    return found.exclude(object=undoing).values_list("pk", "object", "reason", "after")


def _undo_event(viewer: Viewer, event: AuditEvent, sweep: Sweep, later: _TakenUp) -> int:
    """Return jobs that are still as the event left them to their former state and reason. Return their number."""
    after, before = event.after or {}, event.before or {}
    if not viewer.may(OPERATOR, event.source) or "state" not in before:
        return 0
    act = _BY_NAME[event.act]
    mark = _reason_text(event.actor, act.done)
    reasons = {int(pk): text for text, ids in (before.get("reasons") or {}).items() for pk in ids}
    back = Act(_taken_back(act), (FailureState(after["state"]),), FailureState(before["state"]), _UNDONE[act.name])
    with transaction.atomic():
        lock_writers()
        # A job changed since has another reason and is not reverted.
        rows = _lock(_free().filter(pk__in=after["ids"], state__in=back.before, reason=mark, source=event.source))
        if rows:
            later.read(_later(later.until, event.object, later.sources, sweep.key))
        since = later.since(event.pk)
        rows = [row for row in rows if row[0] not in since]
        if not rows:
            return 0
        by_reason: dict[str, list[int]] = defaultdict(list)
        for pk, *_ in rows:
            by_reason[reasons.get(pk, "")].append(pk)
        for text, ids in by_reason.items():
            Failure.objects.filter(pk__in=ids).update(state=back.after, reason=text)
        ids = [pk for pk, *_ in rows]
        _record(viewer, back, sweep.key, sweep.reason, event.source, after["state"], [(pk, mark) for pk in ids])
    return len(ids)


def _taken_back(act: Act) -> str:
    return "failure.restore" if act is DISCARD else "failure.discard" if act is RESTORE else "failure.quarantine"


def has_changed(key: str) -> bool:
    """Return whether the act of this key has changed a job."""
    return AuditEvent.objects.filter(object=key, allowed=True).exists()


def _ids_of(key: str) -> list[int]:
    changed = AuditEvent.objects.filter(object=key, allowed=True).order_by("pk").values_list("after", flat=True)
    return sorted(pk for after in changed for pk in (after or {}).get("ids", ()))


# --- one transaction --------------------------------------------------------------------------------------------


def _move(viewer: Viewer, act: Act, ids: list[int], reason: str, key: str) -> tuple[list[int], int]:
    """Move those of `ids` that are still in `before` and in no open replay. Concurrent acts move a job only once.

    Return them with the number of the last event; 0 if nothing was moved.
    """
    with transaction.atomic():
        lock_writers()
        rows = _lock(_free().filter(pk__in=ids, state__in=act.before))
        if not rows:
            return [], 0
        moved = [pk for pk, *_ in rows]
        changed = Failure.objects.filter(pk__in=moved, state__in=act.before).update(
            state=act.after, reason=_reason_text(viewer.name, act.done)
        )
        if changed != len(moved):
            raise RuntimeError(
                f"{act.name}: {changed} of {len(moved)} locked rows changed; rolled back, nothing was changed."
            )
        for source, state, theirs in _parted(rows):
            event = _record(viewer, act, key, reason, source, state, theirs)
    return moved, event.pk


def _free() -> QuerySet[Failure]:
    return Failure.objects.filter(~Exists(ReplayItem.objects.filter(failure=OuterRef("pk"), state__in=OPEN_ITEM)))


def _lock(moving: QuerySet[Failure]) -> list[tuple[int, str, str, str]]:
    """Lock and return the rows, where the database locks rows, so that their ids are those that the update changes."""
    return list(moving.select_for_update().order_by("pk").values_list("pk", "source", "state", "reason"))


def _parted(rows: list[tuple[int, str, str, str]]) -> Iterator[tuple[str, str, list[tuple[int, str]]]]:
    """Yield rows by source, so that its admin sees the act on its jobs, and by state, so that it can be reverted."""
    parts: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for pk, source, state, reason in rows:
        parts[source, state].append((pk, reason))
    for (source, state), theirs in sorted(parts.items()):
        yield source, state, theirs


def _record(
    viewer: Viewer, act: Act, key: str, reason: str, source: str, state: str, rows: list[tuple[int, str]]
) -> AuditEvent:
    reasons: dict[str, list[int]] = defaultdict(list)
    for pk, text in rows:
        if text:
            reasons[text].append(pk)
    return audit.record(
        viewer,
        act.name,
        key,
        source=source,
        reason=reason,
        before={"state": state, **({"reasons": dict(reasons)} if reasons else {})},
        after={"state": act.after, "count": len(rows), "ids": [pk for pk, _ in rows]},
    )


def _reason_text(name: str, done: str) -> str:
    return f"{done} by {representable(name)}"[:200]


def _new_key(begins: str = "failures:") -> str:
    return f"{begins}{secrets.token_hex(8)}"


def _reason(act: str, reason: str, count: int) -> str:
    reason = representable(reason.strip())[:500]
    if act == "discard" and count > 1 and not reason:
        raise Refused("reason_required", "A reason is required to discard more than one job.", field="reason")
    return reason


# --- rights -----------------------------------------------------------------------------------------------------


def _authorize(viewer: Viewer, act: str, selection: Sequence[int]) -> None:
    # The sources are read only to refuse.
    sources = _chosen(selection).order_by().values_list("source", flat=True).distinct()
    message = "You have read-only access. Changes need the role operator."
    authorize(viewer, OPERATOR, None, act, message=message, noted_at=sources)
