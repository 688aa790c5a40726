"""Evidence by group: groups of a replay that keep failing alone are set aside so that the others continue.

A job belongs to the group that it *died of*, the only one known before it is sent. First attempts are counted if sent
since the replay began or was resumed, or since the group was brought back.

A group is set aside if, with confidence, more than half of its jobs fail again (Wilson's lower bound, as everywhere
here: 5 of 5, 7 of 8, 9 of 11) while jobs of other groups succeed. False-alarm rate, if each job of a group fails again
by chance and 1,000 are checked one after another (`false_alarm_rate`): at 5 % one group in 3 million is set aside, at
10 % one in 95,000, at 20 % one in 2,600, at 30 % one in 270.

Failures of a group without a success are not evidence about the rate or the service while other groups succeed: the
group is assessed first. Nor are those of a group that fails more than the others (`MUCH`): the rate affects all groups
alike. Failures in all groups are an outage and hold the replay; so does a failing group when nothing else is left to
send.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs_admin.core.pacing.evidence import FEWEST, Evidence, GroupId, Judged, surely_above, surely_below

LIMIT = 0.5  # of a group's first attempts
MOST_EXCUSED = (
    20  # groups without a success whose failures are not evidence yet: with one group per job, none ever would be
)
MUCH = 0.2  # of a group's first attempts, while clearly fewer of the others fail
OUTAGE = 0.8  # of all first attempts, in any group

MOST_ASIDE = 400  # groups at a time; failures of further failing groups count normally
MOST_COUNTED = 500  # groups counted separately, which limits the stored state; the smallest are counted together

HasOthers = Callable[[Collection[GroupId]], bool]


@dataclass(slots=True)
class _Count:
    succeeded: int = 0
    failed: int = 0
    is_same: bool = False  # failures with the error they had died of

    @property
    def judged(self) -> int:
        return self.succeeded + self.failed

    @property
    def is_failing(self) -> bool:
        return self.judged >= FEWEST and surely_above(self.failed, self.judged) > LIMIT


@dataclass(slots=True)
class Groups:
    """First attempts by the group that their jobs had died of.

    Jobs without a known group, and of the smallest groups beyond MOST_COUNTED, are under None.
    """

    counts: dict[GroupId | None, _Count] = field(default_factory=dict)
    aside: set[GroupId] = field(default_factory=set)
    # Groups brought back -> time after which jobs sent count.
    since: dict[GroupId, float] = field(default_factory=dict)
    # Groups set aside -> total successes when their first job failed.
    before: dict[GroupId, int] = field(default_factory=dict)
    # Groups that have failed much more than the others since the replay began: a lower rate would not help them.
    apart: set[GroupId] = field(default_factory=set)
    forgotten: int = 0  # first attempts of groups brought back, from before that
    # At the latest check, only jobs of failing groups were left to send. Computed at each check, so not stored.
    are_last: bool = False

    def follow(self, aside: Collection[GroupId], now: float) -> None:
        """Update the groups set aside. Drop the counts of groups brought back."""
        for group in self.aside - set(aside):
            self.forgotten += self.counts.pop(group, _Count()).judged
            self.before.pop(group, None)
            self.apart.discard(group)
            self.since[group] = now
        self.aside = set(aside)

    def add(self, judged: Iterable[Judged]) -> list[Judged]:
        """Count these attempts. Return those that are evidence about the rate and the service."""
        evidence = []
        for one in judged:
            if one.died_of is not None and one.sent_at < self.since.get(one.died_of, one.sent_at):
                self.forgotten += one.n
                continue
            count = self._count_of(one.died_of)
            if one.ok:
                count.succeeded += one.n
            else:
                if one.died_of is not None and not count.judged:
                    self.before[one.died_of] = self.succeeded
                count.failed += one.n
                count.is_same = count.is_same or one.is_same_group
            evidence.append(one)
        self._note_apart()
        no_evidence = self.no_evidence
        return [one for one in evidence if one.died_of not in no_evidence]

    def _count_of(self, group: GroupId | None) -> _Count:
        if group not in self.counts and len(self.counts) >= MOST_COUNTED:
            self._count_small_together()
        return self.counts.setdefault(group, _Count())

    def _count_small_together(self) -> None:
        """Count the groups with the fewest failures under None from now on: evidence as before, never set aside."""
        alone = [group for group in self.counts if group is not None and group not in self.aside]
        alone.sort(key=lambda group: (self.counts[group].failed, self.counts[group].judged))
        together = self.counts.setdefault(None, _Count())
        for group in alone[: MOST_COUNTED // 2]:
            one = self.counts.pop(group)
            together.succeeded += one.succeeded
            together.failed += one.failed
            self.before.pop(group, None)

    @property
    def _knows_no_group(self) -> bool:
        return not self.counts or (len(self.counts) == 1 and None in self.counts)

    @property
    def succeeded(self) -> int:
        return sum(one.succeeded for one in self.counts.values())

    @property
    def failed(self) -> int:
        """Number of failed first attempts that are evidence."""
        no_evidence = self.no_evidence
        return sum(one.failed for group, one in self.counts.items() if group not in no_evidence)

    @property
    def lost(self) -> int:
        """Number of settled first attempts that are not evidence."""
        return self.forgotten + sum(self.counts[group].judged for group in self.no_evidence if group in self.counts)

    @property
    def hopeless(self) -> list[GroupId]:
        """Groups with failures and no success, except those set aside; most failures first."""
        found = {
            group: one.failed
            for group, one in self.counts.items()
            if group is not None and group not in self.aside and one.failed and not one.succeeded
        }
        return sorted(found, key=lambda group: -found[group])

    @property
    def no_evidence(self) -> set[GroupId | None]:
        """Groups set aside and, while others succeed, those to assess first."""
        found: set[GroupId | None] = {*self.aside, *self.apart}
        if not found and self._knows_no_group:
            return found
        if any(one.succeeded for group, one in self.counts.items() if group not in self.aside):
            found.update(self.hopeless[:MOST_EXCUSED])
        return found

    def to_set_aside(self, has_others: HasOthers) -> tuple[Evidence, ...]:
        """Set failing groups aside and return the evidence; none if other groups fail too, or nothing else is left to
        send.
        """
        failing = self._failing()
        self.are_last = bool(failing) and not self.innocent and not has_others({*failing, *self.aside})
        if not failing or self.innocent or self.are_last:
            return ()
        others = [one for group, one in self.counts.items() if group not in failing and group not in self.aside]
        failed, judged = sum(one.failed for one in others), sum(one.judged for one in others)
        if failed == judged and (failed or len(failing) > 1):
            return ()  # no success, in more than one group
        if judged >= FEWEST and surely_above(failed, judged) > OUTAGE:
            return ()
        if len(self.aside) + len(failing) > MOST_ASIDE:
            return ()
        self.aside.update(failing)
        return tuple(_evidence("group", {group: one}) for group, one in failing.items())

    def outage(self) -> Evidence | None:
        """Return why failures hold the replay; None if they do not.

        Nearly all fail, nothing succeeded since another group was set aside, or only jobs of failing groups are left to
        send.
        """
        if (self.innocent or self.are_last) and (failing := self._failing()):
            return _evidence("failing", failing | {group: self.counts[group] for group in self.innocent})
        known = {group: one for group, one in self.counts.items() if group not in self.aside}
        found = _evidence("failing", known, OUTAGE)
        return found if found.judged >= FEWEST and (found.bound or 0.0) > OUTAGE else None

    @property
    def innocent(self) -> tuple[GroupId, ...]:
        """Groups set aside since whose first failure no job of any group succeeded: they may recover with the
        others.
        """
        succeeded = self.succeeded
        return tuple(sorted((g for g, n in self.before.items() if g in self.aside and n >= succeeded), key=str))

    def _note_apart(self) -> None:
        """Note groups with many failures, clearly more than all other counted groups."""
        if self._knows_no_group:
            return
        no_evidence = self.no_evidence
        counts = {group: one for group, one in self.counts.items() if group not in no_evidence}
        failed, judged = sum(one.failed for one in counts.values()), sum(one.judged for one in counts.values())
        for group, one in counts.items():
            limit = max(MUCH, surely_below(failed - one.failed, judged - one.judged))
            if group is not None and one.judged >= FEWEST and surely_above(one.failed, one.judged) > limit:
                self.apart.add(group)

    def bring_back(self, groups: Collection[GroupId]) -> None:
        self.aside -= set(groups)

    def _failing(self) -> dict[GroupId, _Count]:
        return {
            group: one
            for group, one in self.counts.items()
            if group is not None and group not in self.aside and one.is_failing
        }

    def as_list(self) -> list[Any]:
        """Return all counts as a list for JSON."""
        counts = [[group, one.succeeded, one.failed, one.is_same] for group, one in self.counts.items()]
        return [
            counts,
            sorted(self.aside, key=str),
            list(self.since.items()),
            list(self.before.items()),
            self.forgotten,
            sorted(self.apart, key=str),
        ]

    @staticmethod
    def of_no_group(succeeded: int, failed: int) -> Groups:
        """Return first attempts without known groups."""
        return Groups({None: _Count(succeeded, failed)})

    @staticmethod
    def from_list(values: Sequence[Any]) -> Groups:
        counts, aside, since, before, forgotten, *apart = values
        known = {group: _Count(*rest) for group, *rest in counts}
        return Groups(known, set(aside), dict(since), dict(before), set(*apart), forgotten)


def _evidence(kind: str, counts: Mapping[Any, _Count], limit: float = LIMIT) -> Evidence:
    failed, judged = sum(one.failed for one in counts.values()), sum(one.judged for one in counts.values())
    group = max(counts, key=lambda group: counts[group].failed, default=None)
    return Evidence(
        kind, failed=failed, judged=judged, limit=limit, bound=round(surely_above(failed, judged), 4),
        group=group, in_group=counts[group].failed if group in counts else 0,
        is_same_group=group in counts and counts[group].is_same,
    )  # fmt: skip


def false_alarm_rate(failing: float, jobs: int = 1_000) -> float:
    """Return the probability that a group is set aside within `jobs`, checked after each, if the share `failing`
    fails by chance.
    """
    alive = {0: 1.0}  # number of failures -> its probability, for groups not set aside
    gone = 0.0
    for judged in range(1, jobs + 1):
        following: dict[int, float] = {}
        for failed, chance in alive.items():
            following[failed] = following.get(failed, 0.0) + chance * (1 - failing)
            following[failed + 1] = following.get(failed + 1, 0.0) + chance * failing
        alive = {}
        for failed, chance in following.items():
            if _Count(judged - failed, failed).is_failing:
                gone += chance
            elif chance > 1e-15:
                alive[failed] = chance
    return gone
