"""Reports that are not filed: stored within limits until an operator accepts their source, files or discards them.

`refiling` files what was accepted. Every act is audited.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Count, F, Q, QuerySet, Sum

from jobs_admin import config, trust
from jobs_admin.core.envelope import ENDS_READER
from jobs_admin.core.figures import dated
from jobs_admin.core.keys import valid_source
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable
from jobs_admin.db import audit, counters
from jobs_admin.db.authorizing import authorize
from jobs_admin.db.counters import Counted
from jobs_admin.installation import COMMAND
from jobs_admin.models import RefusedReports, Source, Unfiled, UnsignedReports
from jobs_admin.models.access import ADMIN, ENGINE, EVERY_SOURCE, Viewer
from jobs_admin.sources.base import Finding
from jobs_admin.trust import Cause, unsealing

MOST_WAITING = 20  # unknown sources
MOST_AUTOMATIC = 5  # unknown sources accepted automatically while unsigned reports are accepted
LONGEST_AHEAD = timedelta(days=90)  # maximum extension of unsigned reports


@dataclass(frozen=True, slots=True)
class _Bound:
    reports: int
    bytes: int


# Limits per source and cause. Beyond them, refused reports are dropped and counted; reports that cannot be filed stay
# where they are.
_BOUNDS = {
    Cause.UNKNOWN: _Bound(1_000, 32 * 2**20),
    Cause.UNSIGNED: _Bound(10_000, 256 * 2**20),
    Cause.SIGNATURE: _Bound(1_000, 32 * 2**20),
    Cause.UNFILED: _Bound(10_000, 256 * 2**20),
}
# Maximum size of a report that cannot be filed, larger than any report with the largest message that is stored.
_LARGEST = 17 * 2**20
_HEAD = 64 * 1024
# Reports without room are tried again at least this often, so an older row is obsolete.
_NO_ROOM_FOR = timedelta(minutes=10)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RefusedEntry:
    """Entry of the stream that is refused, or could not be read or written."""

    entry_id: str
    source: str
    cause: Cause
    why: str
    fields: Mapping[bytes, bytes]

    @property
    def size(self) -> int:
        return unsealing.entry_size(self.fields)

    def bounded(self) -> RefusedEntry:
        """Return the entry, or only its head if it cannot be filed and is larger than any report."""
        if self.cause != Cause.UNFILED or self.size <= _LARGEST:
            return self
        why = f"{self.why[:1_000]} (only its head is kept: it has {self.size:,} bytes)"
        return replace(self, why=why, fields=unsealing.entry_head(self.fields, _HEAD))


@dataclass(frozen=True, slots=True)
class Stored:
    """Result of storing entries."""

    new: int = 0
    known: int = 0  # stored earlier
    # Names of entries that cannot be filed and have no room here: they must stay where they are.
    left: frozenset[str] = frozenset()

    def __add__(self, other: Stored) -> Stored:
        return Stored(self.new + other.new, self.known + other.known, self.left | other.left)


def store(refused: Sequence[RefusedEntry], now: datetime) -> Stored:
    """Store the entries, each once, within the limits.

    Beyond them, drop and count refused entries, and leave those that cannot be filed.
    """
    by_kind: dict[tuple[str, Cause], list[RefusedEntry]] = defaultdict(list)
    for one in refused:
        by_kind[one.source, one.cause].append(one.bounded())
    parts = (_store(source, cause, some, now) for (source, cause), some in sorted(by_kind.items()))
    return sum(parts, start=Stored())


def _store(source: str, cause: Cause, refused: Sequence[RefusedEntry], now: datetime) -> Stored:
    # Encrypted before the transaction, and only as much as fits: a flood must not keep the desk busy.
    seal = config.payload_keys().encrypt
    known = _known_entries(refused)
    unknown = [one for one in refused if one.entry_id not in known]
    sealed = {one.entry_id: seal(unsealing.encode_entry(one.fields)) for one in _fitting(source, cause, unknown)}
    with transaction.atomic():
        _lock()
        # Stored earlier: a batch is repeated after a crash, or an unreadable entry became readable and is refused now.
        known = _known_entries(refused)
        for one in refused:
            if one.entry_id in known:
                _update(one)
        news = list({one.entry_id: one for one in refused if one.entry_id not in known}.values())
        if not news:
            return Stored(known=len(known))
        has_room = cause != Cause.UNKNOWN or _may_wait(source)
        fitting = _fitting(source, cause, news) if has_room and sealed else []
        storable = [one for one in fitting if one.entry_id in sealed]
        rows = [
            Unfiled(
                entry_id=one.entry_id,
                source=source,
                cause=cause,
                received_at=now,
                why=_why(one),
                body=sealed[one.entry_id],
                size=one.size,
                payload_key=unsealing.key_ids()[0],
            )
            for one in storable
        ]
        Unfiled.objects.bulk_create(rows)
        left = {one.entry_id: one for one in news} if cause == Cause.UNFILED else {}
        for one in storable:
            left.pop(one.entry_id, None)
        if left:
            _note_left(list(left.values()), now)
        elif cause != Cause.UNFILED:
            name = source if has_room else ""
            why = _why(news[-1]) if has_room else f"{MOST_WAITING} unknown sources are waiting to be accepted already"
            _count(name, cause, why, len(news), len(news) - len(storable), now)
    if cause == Cause.UNFILED:
        for one in storable:
            log.warning("A report (%s) could not be filed and is kept raw: %s", one.entry_id, one.why[:300])
    return Stored(len(rows), len(known), frozenset(left))


def _note_left(left: Sequence[RefusedEntry], now: datetime) -> None:
    """Record that there is no room for reports of a source that cannot be filed."""
    latest = {"refused": len(left), "last_at": now, "why": _why(left[-1])}
    name = {"source": left[-1].source, "cause": Cause.UNFILED}
    current = RefusedReports.objects.filter(**name, last_at__gte=now - _NO_ROOM_FOR)
    if not current.update(**latest):
        RefusedReports.objects.update_or_create(**name, defaults=latest | {"first_at": now, "dropped": 0})


def count_dropped(source: str, count: int) -> None:
    """Count events without room as dropped: they are stored nowhere else."""
    RefusedReports.objects.filter(source=source, cause=Cause.UNFILED).update(dropped=F("dropped") + count)


def _update(refused: RefusedEntry) -> None:
    """Update the reason why a stored report cannot be filed."""
    row = Unfiled.objects.filter(entry_id=refused.entry_id)
    if refused.cause == Cause.UNFILED:
        row.update(why=_why(refused))
    else:
        row.filter(cause="").update(source=refused.source, cause=refused.cause, why=_why(refused))


def drop(refused: RefusedEntry, now: datetime) -> Stored:
    """Drop an entry that cannot be stored: count it if it is refused, otherwise leave it in place."""
    with transaction.atomic():
        _lock()
        if refused.cause == Cause.UNFILED:
            _note_left([replace(refused, why=f"the report cannot be stored; {refused.why}")], now)
            return Stored(left=frozenset({refused.entry_id}))
        has_room = refused.cause != Cause.UNKNOWN or _may_wait(refused.source)
        _count(refused.source if has_room else "", refused.cause, "the report cannot be stored", 1, 1, now)
    return Stored()


def _why(refused: RefusedEntry) -> str:
    return representable(refused.why)[:2000]


def _count(source: str, cause: Cause, why: str, refused: int, dropped: int, now: datetime) -> None:
    """Count refused reports, `dropped` of them not stored. `source`: "" for unknown sources beyond the limit."""
    row, is_first = RefusedReports.objects.get_or_create(
        source=source, cause=cause, defaults={"first_at": now, "last_at": now, "why": why}
    )
    RefusedReports.objects.filter(pk=row.pk).update(
        refused=F("refused") + refused, dropped=F("dropped") + dropped, last_at=now, why=why
    )
    # Anyone can invent a source, so only accepted sources become labels.
    counters.add_totals({Counted(counters.REFUSED, "" if cause == Cause.UNKNOWN else source, cause.value): refused})
    if is_first:
        log.warning(
            f"Reports of source %s are refused: %s. `{COMMAND} doctor` says what to do.",
            source or "(unknown ones)",
            why,
        )


def _fitting(source: str, cause: Cause, refused: Sequence[RefusedEntry]) -> list[RefusedEntry]:
    """Return the entries that fit."""
    stored = Unfiled.objects.filter(source=source, cause=cause)
    totals_stored = stored.aggregate(count=Count("id"), size=Sum("size"))
    count, size, bound = totals_stored["count"], totals_stored["size"] or 0, _BOUNDS[cause]
    found = []
    for one in refused:
        if count < bound.reports and size + one.size <= bound.bytes:
            found.append(one)
            count, size = count + 1, size + one.size
    return found


def _known_entries(refused: Sequence[RefusedEntry]) -> set[str]:
    """Return the ids of the entries that are already stored."""
    known = Unfiled.objects.filter(entry_id__in=[one.entry_id for one in refused])
    return set(known.values_list("entry_id", flat=True))


def _may_wait(source: str) -> bool:
    others = set(_waiting().values_list("source", flat=True))
    return source in others or len(others) < MOST_WAITING


def _lock() -> UnsignedReports | None:
    """Lock decisions on limits and sources until the end of the transaction, so that only one process decides."""
    return UnsignedReports.objects.select_for_update().first()


def _waiting() -> QuerySet[RefusedReports]:
    return RefusedReports.objects.filter(cause=Cause.UNKNOWN).exclude(source="")


# -- unknown sources ----------------------------------------------------------------------------------------------


def accept_first(sources: Collection[str], now: datetime) -> set[str]:
    """Accept a few unknown sources automatically, over the desk's lifetime, while unsigned reports are accepted.

    A first trial of a worker then needs no act. Return the accepted sources, including those that another process just
    accepted.
    """
    accepted: set[str] = set()
    with transaction.atomic():
        unsigned = _lock()
        known = set(Source.objects.filter(name__in=sources).values_list("name", flat=True))
        if unsigned is None or now >= unsigned.until or unsigned.accepted_sources >= MOST_AUTOMATIC:
            return known
        for source in sorted({*sources} - known):
            if unsigned.accepted_sources + len(accepted) < MOST_AUTOMATIC and _register(source):
                accepted.add(source)
        for source in sorted(accepted):
            reason = f"accepted automatically, as one of the first {MOST_AUTOMATIC} while unsigned reports are accepted"
            audit.record(ENGINE, "source.accept", f"source:{source}", source=source, reason=reason)
        UnsignedReports.objects.update(accepted_sources=F("accepted_sources") + len(accepted))
    trust.forget()
    return accepted | known


def _register(source: str) -> bool:
    return Source.objects.get_or_create(name=source, defaults={"is_configured": source in config.sources()})[1]


def accept(viewer: Viewer, source: str) -> int:
    """Accept an unknown source, whose stored reports `watch` files; return their number. Raises Refused."""
    _need(viewer, EVERY_SOURCE, "source.accept", source)
    if not valid_source(source):
        raise Refused("invalid", f"{source!r} cannot name a source: use a-z, 0-9, - and _. Nothing was changed.")
    with transaction.atomic():
        _lock()
        is_waiting = _waiting().filter(source=source).exists()
        if not _register(source) and not is_waiting:
            raise Refused("wrong_state", f"The source {source} is accepted already. Nothing was changed.")
        count = _to_file(source, [Cause.UNKNOWN])
        audit.record(viewer, "source.accept", f"source:{source}", source=source, after={"reports": count})
    trust.forget()
    return count


def discard(viewer: Viewer, source: str) -> int:
    """Delete the stored reports of an unknown source; return their number. Raises Refused.

    Later reports of the source are stored again until it is accepted.
    """
    _need(viewer, EVERY_SOURCE, "source.discard", source)
    with transaction.atomic():
        _lock()
        if not _waiting().filter(source=source).exists():
            raise Refused("wrong_state", f"No source {source} is waiting to be accepted. Nothing was changed.")
        count = _delete(source, [Cause.UNKNOWN])
        audit.record(viewer, "source.discard", f"source:{source}", after={"reports": count})
    return count


# -- refused reports -------------------------------------------------------------------------------------------------


def file_unsigned(viewer: Viewer, source: str) -> int:
    """Let `watch` file the stored unsigned and unfiled reports of a source; return their number. Raises Refused.

    Reports with a wrong signature, or that ended their reader, are never filed. A report that still cannot be filed
    stays stored.
    """
    _need(viewer, source, "reports.file", source)
    if not source:  # from the stream that guards of the previous version share
        raise Refused("invalid", "Signatures of reports without a source were not checked. Nothing was changed.")
    with transaction.atomic():
        _lock()
        count = _to_file(source, [Cause.UNSIGNED, Cause.UNFILED])
        if not count:
            raise Refused("wrong_state", f"No unsigned or unfiled report of {source} is stored. Nothing was changed.")
        audit.record(viewer, "reports.file", f"source:{source}", source=source, after={"reports": count})
    return count


def discard_refused(viewer: Viewer, source: str) -> int:
    """Delete the stored refused reports of a known source, and their counts; return the number. Raises Refused."""
    _need(viewer, source, "reports.discard", source)
    causes = [Cause.UNSIGNED, Cause.SIGNATURE]
    with transaction.atomic():
        _lock()
        counts = RefusedReports.objects.filter(source=source, cause__in=[*causes, Cause.UNFILED])
        if not counts.exists():
            raise Refused("wrong_state", f"No refused report of {source} is stored. Nothing was changed.")
        counts.delete()  # for unfiled reports only the count: they stay stored for a newer version of the desk
        count = _delete(source, causes)
        audit.record(viewer, "reports.discard", f"source:{source}", source=source, after={"reports": count})
    return count


def discard_unfiled(viewer: Viewer, numbers: Collection[int]) -> int:
    """Delete these unfiled or refused reports; return their number. Raises Refused."""
    _need(viewer, EVERY_SOURCE, "reports.discard", "")
    with transaction.atomic():
        _lock()
        count = Unfiled.objects.filter(pk__in=numbers).delete()[0]
        audit.record(viewer, "reports.discard", after={"reports": count, "numbers": sorted(numbers)[:100]})
    return count


def _to_file(source: str, causes: Iterable[Cause]) -> int:
    RefusedReports.objects.filter(source=source, cause__in=list(causes)).delete()
    rows = Unfiled.objects.filter(source=source, cause__in=list(causes))
    # Reports that ended their reader are never checked, and would end `watch` each time.
    return rows.exclude(cause=Cause.UNFILED, why__startswith=ENDS_READER).update(cause=Cause.ACCEPTED)


def _delete(source: str, causes: Iterable[Cause]) -> int:
    RefusedReports.objects.filter(source=source, cause__in=list(causes)).delete()
    return Unfiled.objects.filter(source=source, cause__in=list(causes)).delete()[0]


# -- end of unsigned reports -----------------------------------------------------------------------------------------


def extend(viewer: Viewer, until: datetime, now: datetime) -> None:
    """Extend the acceptance of unsigned reports. Raises Refused."""
    _need(viewer, EVERY_SOURCE, "unsigned_reports.extend", "")
    if not now < until <= now + LONGEST_AHEAD:
        raise Refused("invalid", f"Give a time from now to {LONGEST_AHEAD.days} days ahead. Nothing was changed.")
    _set(viewer, "unsigned_reports.extend", until)


def end(viewer: Viewer, now: datetime) -> None:
    """End the acceptance of unsigned reports. Raises Refused."""
    _need(viewer, EVERY_SOURCE, "unsigned_reports.end", "")
    _set(viewer, "unsigned_reports.end", now)


def _set(viewer: Viewer, act: str, until: datetime) -> None:
    with transaction.atomic():
        before = _lock()
        UnsignedReports.objects.update_or_create(pk=1, defaults={"until": until})
        audit.record(viewer, act, before={"until": before.until if before else None}, after={"until": until})
    trust.forget()


def _need(viewer: Viewer, source: str, act: str, of: str) -> None:
    message = "This needs an admin of {where}. Nothing was changed."
    authorize(viewer, ADMIN, source, act, f"source:{of}" if of else "", message=message, noted_at=[of])


# -- reading --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RefusalCount:
    """Refused reports of one source and cause."""

    source: str
    cause: Cause
    refused: int
    stored: int
    dropped: int
    first_at: datetime
    last_at: datetime
    why: str

    @property
    def word(self) -> str:
        """Name of the cause."""
        return self.cause or "unfiled"


@dataclass(frozen=True, slots=True)
class State:
    """State of signing, and pending decisions, for the sources that a viewer sees."""

    unsigned_until: datetime | None
    is_unsigned_open: bool
    unsigned_sources: list[str]  # sources with recent unsigned reports and never a signed one
    waiting: list[RefusalCount]  # unknown sources; empty for a viewer who does not see every source
    refused: list[RefusalCount]  # refused reports of known sources
    beyond: int  # reports dropped because too many unknown sources were waiting
    filing: int  # accepted reports that are still to be filed


_LATELY = timedelta(days=7)
_SOON = timedelta(days=7)


def state(viewer: Viewer, now: datetime) -> State:
    """Return the state of signing, and pending decisions."""
    seen = viewer.sources()
    of_seen = Q() if seen is None else Q(source__in=seen)
    has_room = Q(cause=Cause.UNFILED, last_at__lt=now - _NO_ROOM_FOR)
    rows = list(RefusedReports.objects.filter(of_seen).exclude(has_room).order_by("source", "cause"))
    stored = _stored(of_seen, [row.source for row in rows if row.cause == Cause.UNFILED])
    found = [
        RefusalCount(
            row.source,
            Cause(row.cause),
            row.refused,
            stored.get((row.source, row.cause), 0),
            row.dropped,
            row.first_at,
            row.last_at,
            representable(row.why),
        )
        for row in rows
    ]
    until = UnsignedReports.objects.values_list("until", flat=True).first()
    unsigned = Source.objects.filter(signed_since=None, unsigned_at__gte=now - _LATELY)
    if seen is not None:
        unsigned = unsigned.filter(name__in=seen)
    return State(
        until,
        until is not None and now < until,
        list(unsigned.order_by("name").values_list("name", flat=True)),
        [one for one in found if one.cause == Cause.UNKNOWN and one.source] if seen is None else [],
        [one for one in found if one.cause != Cause.UNKNOWN],
        sum(one.dropped for one in found if one.cause == Cause.UNKNOWN and not one.source),
        sum(count for (_, cause), count in stored.items() if cause == Cause.ACCEPTED),
    )


def _stored(of_seen: Q, full: Collection[str]) -> Mapping[tuple[str, str], int]:
    """Return (source, cause) -> stored reports. `full`: sources whose unfiled reports are counted as well."""
    counted = Q(cause__gt="") | Q(cause=Cause.UNFILED, source__in=full) if full else Q(cause__gt="")
    rows: Any = Unfiled.objects.filter(of_seen & counted).values_list("source", "cause")
    return {(source, cause): count for source, cause, count in rows.annotate(count=Count("id")).order_by()}


def findings(state: State, now: datetime) -> list[Finding]:
    """Return what needs an operator's attention, most severe first."""
    found = [_about_refused(one, now) for one in state.refused]
    if state.waiting or state.beyond:
        found.append(_about_waiting(state))
    if state.unsigned_sources and state.is_unsigned_open and state.unsigned_until:
        names, is_one = ", ".join(state.unsigned_sources[:5]), len(state.unsigned_sources) == 1
        text = (
            f"{len(state.unsigned_sources):,} {'source does' if is_one else 'sources do'} not sign reports yet: {names}. "
            f"Unsigned reports are refused from {dated(state.unsigned_until, now)} UTC."
        )
        fix = (
            f"Give the workers a key (`{COMMAND} source-key create SOURCE`), or extend the time "
            f"(`{COMMAND} unsigned-reports --until DATE`)."
        )
        severity = "warning" if state.unsigned_until - now < _SOON else "info"
        found.append(Finding("unsigned", severity, text, fix))
    return found


def _about_refused(one: RefusalCount, now: datetime) -> Finding:
    if one.cause == Cause.UNFILED:
        return _about_unfiled(one, now)
    dropped = f", {one.dropped:,} were dropped" if one.dropped else ""
    text = (
        f"{one.source}: {one.refused:,} report{'' if one.refused == 1 else 's'} refused since {dated(one.first_at, now)} UTC, "
        f"the latest at {dated(one.last_at, now)}. Reason: {one.why}. "
        f"{one.stored:,} {'is' if one.stored == 1 else 'are'} stored{dropped}."
    )
    if one.cause == Cause.UNSIGNED:
        fix = (
            f"Give the workers a key (`{COMMAND} source-key create {one.source}`), then file the reports "
            f"(`{COMMAND} sources file {one.source}`)."
        )
    else:
        fix = f"Check that the workers have a key in force (`{COMMAND} source-key list`). Reports with a wrong signature are never filed."
    return Finding("refused", "high", text, fix)


def _about_unfiled(one: RefusalCount, now: datetime) -> Finding:
    bound = _BOUNDS[Cause.UNFILED]
    text = (
        f"{one.source or 'Without a source'}: {one.stored:,} reports that cannot be filed are stored. At most "
        f"{bound.reports:,} of a source are, or {bound.bytes // 2**20} MB. Further ones stay in their queue or stream since "
        f"{dated(one.first_at, now)} UTC, the latest try at {dated(one.last_at, now)}. Reason: {one.why}."
        f"{f' {one.dropped:,} are dropped.' if one.dropped else ''}"
    )
    again = (
        f"Fix the reason and file them again (`{COMMAND} sources file {one.source}`), or discard"
        if one.source
        else "Discard"
    )
    fix = f"{again} them in the admin, under Unfiled. The others are then read automatically."
    return Finding("refused", "high", text, fix)


def _about_waiting(state: State) -> Finding:
    count, names = len(state.waiting), ", ".join(one.source for one in state.waiting[:5])
    text = f"{count:,} source{' is' if count == 1 else 's are'} waiting to be accepted{f': {names}' if names else ''}."
    if state.beyond:
        text += f" {state.beyond:,} reports of further unknown sources were dropped."
    return Finding("unknown-sources", "warning", text, f"Accept or discard them: `{COMMAND} sources accept NAME`.")
