"""Reading of dead jobs that a Redis keeps in sorted sets by time of death.

A worker takes the time of death from its own clock, just before it writes. So each reading overlaps the previous one by
some seconds, and every ten minutes a reading begins at the oldest dead job.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import redis

from jobs_admin.core.envelope import Envelope
from jobs_admin.sources.base import Pulled, SourceError, Unread
from jobs_admin.sources.one_redis import LossMark, now_ms

_PAGE = 300  # dead jobs of one set
_BYTES = 16_000_000  # of reports in one answer; further dead jobs follow in the next answer
_OVERLAP_MS = 10_000
_AGAIN_MS = 600_000  # between two complete readings
_REMEMBERED = 200_000  # dead jobs, so that they are not read again and again
Entry = TypeVar("Entry")  # of a set, as it was found
Job = TypeVar("Job")  # an entry with its message


@dataclass(slots=True)
class Place:
    """Reading position. Copied before it moves: only filed dead jobs count as read."""

    since: int = 0  # Unix ms; earlier deaths were read
    begun: int = 0  # start of the running reading; 0: none runs
    all_at: int = 0  # start of the latest complete reading
    behind: dict[str, tuple[float, int]] = field(
        default_factory=dict
    )  # of that reading: set -> its last time of death, and how many of that time were read

    def text(self, beat: int) -> str:
        return json.dumps([self.since, self.all_at, beat])

    @classmethod
    def from_text(cls, text: str) -> tuple[Place, int]:
        """Parse a position and the beat of the mark at that time; the start for any other text."""
        try:
            since, all_at, beat = json.loads(text)
            return cls(since=int(since), all_at=int(all_at)), int(beat)
        except (ValueError, TypeError):
            return cls(), 0


@dataclass(frozen=True, slots=True)
class Page(Generic[Entry]):
    entries: list[tuple[Entry, float]]  # with their times of death, in order
    is_full: bool  # there may be more


@dataclass(frozen=True, slots=True)
class _Receipt(Generic[Entry]):
    place: Place
    names: Sequence[int]
    rest: dict[str, list[Entry]]  # set -> dead jobs found, not read yet


class DeathReading(ABC, Generic[Entry, Job]):
    """Reading of one source. For one thread at a time."""

    per_ms = 1.0  # units of a set's times of death

    def __init__(self, client: redis.Redis, mark: LossMark) -> None:
        self._client, self._mark = client, mark
        self._place, self._beat = Place(), 0
        self._text: str | None = None  # `_place` as the caller stores it
        self._rest: dict[str, list[Entry]] = {}
        self._filed: set[int] = set()
        self._filed_before: set[int] = set()

    @abstractmethod
    def find_sets(self) -> Sequence[str]:
        """Return the sets to read."""

    @abstractmethod
    def read_pages(self, starts: Mapping[str, tuple[float, int]], most: int) -> dict[str, Page[Entry] | Exception]:
        """Return a page of each set: after that many entries of this time of death or later."""

    @abstractmethod
    def load(self, name: str, entries: Sequence[Entry]) -> Iterator[Job]:
        """Yield the job of each of a set's entries, in order."""

    @abstractmethod
    def build_report(self, job: Job, kind: str) -> Envelope | None:
        """Return the report of a job; None if it no longer exists. An error makes it unread."""

    @abstractmethod
    def build_unread(self, job: Job, error: Exception) -> Unread: ...

    @abstractmethod
    def read_retries(self) -> tuple[list[tuple[int, Job]], bool]:
        """Return a page of jobs that wait for a retry, with a name of the failed attempt, and whether some were never
        read.
        """

    @abstractmethod
    def forget_retries(self) -> None:
        """Begin the reading of retries again."""

    def pull(self, after: str) -> Pulled:
        place, beat = (self._place, self._beat) if self._text == after and after else Place.from_text(after)
        is_complete = self._mark.is_complete(beat, is_start=not after)
        if not is_complete or self._text != after:
            place = place if is_complete else Place()
            self._filed, self._filed_before, self._rest = set(), set(), {}
            self.forget_retries()
        place = replace(place, behind=dict(place.behind))
        failing: dict[str, str] = {}
        names: list[int] = []
        found, is_more = self._rest, bool(self._rest)
        if not found:
            found, is_more = self._find(place, names, failing)
        reports, unread, rest = self._reports(found)
        retries, are_new = self.read_retries()
        left = _BYTES  # the others are met again in the next round
        for name, job in retries:
            if left > 0 and not self.is_filed(name):
                names.append(name)
                left -= self._report(job, "retry", reports, unread)
        receipt = _Receipt(place, names, rest)
        is_more = is_more or are_new or bool(rest)
        return Pulled(reports, place.text(self._mark.beat), is_more, receipt, unread=unread, failing=failing)

    def confirm_filed(self, pulled: Pulled) -> None:
        receipt: _Receipt[Any] = pulled.receipt
        self._text, self._place, self._rest = pulled.after, receipt.place, receipt.rest
        self._beat = self._mark.beat
        self._filed.update(receipt.names)
        if len(self._filed) > _REMEMBERED:
            self._filed, self._filed_before = set(), self._filed

    def is_filed(self, name: int) -> bool:
        return name in self._filed or name in self._filed_before

    def _find(self, place: Place, names: list[int], failing: dict[str, str]) -> tuple[dict[str, list[Entry]], bool]:
        """Find a page of each set. Return the unknown dead jobs by set, and whether there may be more.

        A set that is read to its end continues from there while others are read: the reading ends with the longest set.
        """
        if not place.begun:
            place.begun = now_ms(self._client)
            if place.begun - place.all_at >= _AGAIN_MS:
                place.since, place.all_at = 0, place.begun
        start = (place.since - _OVERLAP_MS) * self.per_ms, 0
        starts = {name: place.behind.get(name, start) for name in self.find_sets()}
        found: dict[str, list[Entry]] = {}
        is_more = False
        for of, page in self.read_pages(starts, _PAGE).items():
            if isinstance(page, Exception):
                failing[of] = f"its dead jobs: {page}"
                continue
            for entry, score in page.entries:
                name = hash((of, entry, score))
                if not self.is_filed(name):
                    names.append(name)
                    found.setdefault(of, []).append(entry)
            if page.entries:
                last = page.entries[-1][1]
                before, read = place.behind.get(of, (None, 0))
                same = sum(1 for _, score in page.entries if score == last)
                place.behind[of] = (last, same + (read if before == last else 0))
            is_more |= page.is_full
        if not is_more:
            place.since, place.begun, place.behind = place.begun, 0, {}
        return found, is_more

    def _reports(self, found: dict[str, list[Entry]]) -> tuple[list[Envelope], list[Unread], dict[str, list[Entry]]]:
        """Return reports of about `_BYTES`, dead jobs without a report, and the remaining entries by set."""
        reports: list[Envelope] = []
        unread: list[Unread] = []
        rest = {of: list(entries) for of, entries in found.items()}
        left = _BYTES
        for of in list(rest):
            for job in self.load(of, found[of]):
                rest[of].pop(0)
                left -= self._report(job, "exception", reports, unread)
                if left <= 0:
                    return reports, unread, {name: entries for name, entries in rest.items() if entries}
        return reports, unread, {}

    def _report(self, job: Job, kind: str, reports: list[Envelope], unread: list[Unread]) -> int:
        """Add the report of a job if it still exists. Return its bytes."""
        try:
            report = self.build_report(job, kind)
        except (SourceError, redis.RedisError):
            raise
        except Exception as error:
            unread.append(self.build_unread(job, error))
            return 0
        if report is None:
            return 0
        reports.append(report)
        return len(report.raw or b"") + len(report.trace)
