"""Outcomes of first attempts, confidence bounds of shares, and the sentences that report them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from jobs_admin.core.figures import duration, percent, small

GroupId = int | str

_SURE = 1.96  # of a normal distribution: 97.5 % one-sided
FEWEST = 5  # minimum number of first attempts for any conclusion


@dataclass(frozen=True, slots=True)
class Judged:
    """Outcome of a first attempt after sending, or of `n` equal ones. A native retry that follows counts as a failure.

    Times are seconds of the clock of `Seen.now`: `sent_at`, when it was put on the queue; `at`, when its outcome became
    known. Flags of the group: first seen in this replay; the job's earlier group. `died_of`: the group of the replayed
    failure; None if it has none.
    """

    at: float
    sent_at: float
    ok: bool
    group: GroupId | None = None
    is_new_group: bool = False
    is_same_group: bool = False
    runtime_s: float | None = None
    n: int = 1
    died_of: GroupId | None = None


def surely_above(hits: float, of: float) -> float:
    """Return the lower bound of Wilson's interval (1927). 1 of 2 gives 0.09, 6 of 10 gives 0.31."""
    if of <= 0 or hits <= 0:
        return 0.0  # exactly, despite rounding
    share, square = hits / of, _SURE * _SURE / of
    return max(0.0, (share + square / 2 - _SURE * math.sqrt((share * (1 - share) + square / 4) / of)) / (1 + square))


def surely_below(hits: float, of: float) -> float:
    """Return the upper bound of the same interval: 0 of 50 gives 0.07, 10 of 50 gives 0.33."""
    return 1.0 - surely_above(of - hits, of) if of > 0 else 1.0


@dataclass(frozen=True, slots=True)
class _Failed:
    group: GroupId | None
    is_new: bool
    is_same: bool
    n: int
    died_of: GroupId | None = None


@dataclass(frozen=True, slots=True)
class _Batch:
    """Outcomes of one check."""

    ok: int
    failed: tuple[_Failed, ...]
    total: int

    @staticmethod
    def build(ok: int, failed: Iterable[_Failed]) -> _Batch:
        parts = tuple(failed)
        return _Batch(ok, parts, ok + sum(part.n for part in parts))

    @property
    def bad(self) -> int:
        return self.total - self.ok

    @property
    def new(self) -> int:
        return sum(part.n for part in self.failed if part.is_new) if self.failed else 0

    def cut(self, most: int) -> _Batch:
        """Return the same shares of fewer attempts: the order within a check is unknown."""
        share = most / self.total
        failed = tuple(replace(f, n=n) for f in self.failed if (n := round(f.n * share)))
        return _Batch.build(max(0, most - sum(f.n for f in failed)), failed)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Latest first attempts with an outcome, oldest batch first, and their numbers."""

    batches: tuple[_Batch, ...] = ()
    judged: int = 0
    failed: int = 0
    new: int = 0  # failures with an error first seen in this replay

    @staticmethod
    def build(batches: Iterable[_Batch]) -> Outcomes:
        parts = tuple(batches)
        judged, failed = sum(batch.total for batch in parts), sum(batch.bad for batch in parts)
        return Outcomes(parts, judged, failed, sum(batch.new for batch in parts))

    def joined(self, judged: Iterable[Judged], most: int) -> Outcomes:
        """Return these and the given outcomes, limited to the latest `most`."""
        failed: Counter[tuple[GroupId | None, bool, bool, GroupId | None]] = Counter()
        ok = 0
        for one in judged:
            if one.ok:
                ok += one.n
            else:
                failed[one.group, one.is_new_group, one.is_same_group, one.died_of] += one.n
        latest = _Batch.build(ok, [_Failed(*what[:3], n, what[3]) for what, n in failed.items()])
        if not latest.total:
            return self
        batches, first = (*self.batches, latest), 0
        total, bad, new = self.judged + latest.total, self.failed + latest.bad, self.new + latest.new
        while total > most:
            oldest, first = batches[first], first + 1
            total, bad, new = total - oldest.total, bad - oldest.bad, new - oldest.new
            if total < most:
                part = oldest.cut(most - total)
                return Outcomes((part, *batches[first:]), total + part.total, bad + part.bad, new + part.new)
        return Outcomes(batches[first:], total, bad, new)

    def without(self, groups: Collection[GroupId | None]) -> Outcomes:
        """Return the outcomes without failures of jobs that had died of these groups."""
        if not groups:
            return self
        return Outcomes.build(
            _Batch.build(b.ok, [f for f in b.failed if f.died_of not in groups]) for b in self.batches
        )

    def commonest(self, *, new: bool = False) -> tuple[GroupId | None, int, bool]:
        """Return the most common group of the failures, their number, and whether the jobs had died of it before."""
        by_group: Counter[GroupId | None] = Counter()
        same: set[GroupId | None] = set()
        for batch in self.batches:
            for part in batch.failed:
                if part.is_new or not new:
                    by_group[part.group] += part.n
                    same |= {part.group} if part.is_same else set()
        if not by_group:
            return None, 0, False
        group, n = by_group.most_common(1)[0]
        return group, n, group in same

    def as_list(self) -> list[Any]:
        return [[b.ok, [[f.group, f.is_new, f.is_same, f.n, f.died_of] for f in b.failed]] for b in self.batches]

    @staticmethod
    def from_list(batches: Sequence[Any]) -> Outcomes:
        return Outcomes.build(_Batch.build(ok, [_Failed(*part) for part in failed]) for ok, failed in batches)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Reason for holding or slowing down a replay: numbers, and the sentence that reports them.

    kind          what happened                                       numbers
    canary        too many of the canary failed                       failed, judged, limit, bound, group, in_group
    failing       too many of the latest attempts failed              the same
    new_groups    too many failed with an error not seen before       the same
    group         the jobs of one group fail again: it is set aside   the same
    no_news       no outcome for a long time                          unsettled, seconds
    not_draining  the same, with `limit` jobs sent and unsettled      unsettled, seconds, limit
    workers_gone  the workers vanished                                unsettled, seconds
    backed_off    failures caused by the rate                         failed, judged, rate (before), to_rate
    slower        jobs take much longer than at the start             runtime_s, usual_s, rate, to_rate
    """

    kind: str
    failed: int = 0
    judged: int = 0
    limit: float | None = None  # the share or number that was exceeded
    bound: float | None = None  # confidence bound of the share
    group: GroupId | None = None  # most common group of the failures
    in_group: int = 0
    is_same_group: bool = False  # the jobs had died of it before
    unsettled: int = 0
    seconds: float = 0.0
    rate: float | None = None
    to_rate: float | None = None
    runtime_s: float | None = None
    usual_s: float | None = None

    @property
    def holds(self) -> bool:
        """Return whether the replay is held, rather than slowed down or without a group."""
        return self.kind not in ("backed_off", "slower", "group")

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, without defaults."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Evidence:
        return Evidence(**values)

    def sentence(self, title: str = "") -> str:
        """Return a sentence for people; `title`: the title of `group`."""
        return _SENTENCES[self.kind](self, title)


def stop_rule(share: float | None) -> str:
    """Return the sentence that states a stop share; "" for None."""
    return "" if share is None else f"This replay stops when clearly more than {percent(share)} fail again."


def _with(e: Evidence, title: str) -> str:
    if not title:
        return ""
    return f" with {title}" if e.in_group == e.failed else f", {e.in_group:,} of them with {title}"


def _canary(e: Evidence, title: str) -> str:
    return f"{e.failed:,} of {e.judged:,} canary jobs failed again{_with(e, title)}. {stop_rule(e.limit)}".strip()


def _failing(e: Evidence, title: str) -> str:
    return f"{e.failed:,} of the last {e.judged:,} jobs failed again{_with(e, title)}. {stop_rule(e.limit)}".strip()


def _new_groups(e: Evidence, title: str) -> str:
    return f"{e.failed:,} of the last {e.judged:,} jobs failed in a way not seen before{_with(e, title)}."


def _group(e: Evidence, title: str) -> str:
    which = "with the same error" if e.is_same_group else "again"
    return f"{e.failed:,} of {e.judged:,} jobs of this group failed {which}: set aside, the other groups continue."


def _no_news(e: Evidence, title: str) -> str:
    return f"{_jobs(e.unsettled)} {_were(e.unsettled)} sent and no outcome was reported for {duration(e.seconds)}."


def _not_draining(e: Evidence, title: str) -> str:
    return f"{_jobs(e.unsettled)} {_were(e.unsettled)} sent and none has settled for {duration(e.seconds)}: the queue is not draining."


def _workers_gone(e: Evidence, title: str) -> str:
    return f"The workers are gone: none for {duration(e.seconds)}, while {_jobs(e.unsettled)} {_were(e.unsettled)} sent and not settled."


def _backed_off(e: Evidence, title: str) -> str:
    return (
        f"{e.failed:,} of {e.judged:,} failed at {_per_s(e.rate)}{_with(e, title)}: slowed down to {_per_s(e.to_rate)}."
    )


def _slower(e: Evidence, title: str) -> str:
    return (
        f"Jobs take {e.runtime_s or 0:.2g} s rather than {e.usual_s or 0:.2g} s at {_per_s(e.rate)}: "
        f"slowed down to {_per_s(e.to_rate)}."
    )


_SENTENCES = {
    "canary": _canary, "failing": _failing, "new_groups": _new_groups, "group": _group, "no_news": _no_news,
    "not_draining": _not_draining, "workers_gone": _workers_gone, "backed_off": _backed_off, "slower": _slower,
}  # fmt: skip


def _jobs(n: int) -> str:
    return "1 job" if n == 1 else f"{n:,} jobs"


def _were(n: int) -> str:
    return "was" if n == 1 else "were"


def _per_s(rate: float | None) -> str:
    return f"{small(rate or 0)}/s"
