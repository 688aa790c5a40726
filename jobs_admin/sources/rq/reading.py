"""Dead and retrying jobs of RQ's registries.

RQ writes no events. A `failed` registry is scored by when RQ may forget the failure: its time and `failure_ttl`. So
each reading goes two ways:

- by time: from some seconds before the last reading, for each `failure_ttl` that was met;
- all registries in turn, a page at a time: retries that wait, and what the first way did not meet.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from jobs_admin.core.envelope import Envelope
from jobs_admin.sources.base import Pulled, SourceError, Unread
from jobs_admin.sources.one_redis import now_ms
from jobs_admin.sources.rq.job_hash import DEFAULT_FAILURE_TTL, Job, text_of
from jobs_admin.sources.rq.reports import build_report
from jobs_admin.sources.rq.wire import Wire

_PAGE = 300  # ids of a queue by time, and per turn
_BYTES = 16_000_000  # of reports per answer; further jobs are read for the next answers
_OVERLAP_S = 10  # a failure appears in the registry some moments after its own time
_AGAIN_S = 3  # scores are whole seconds and a job may die twice in one, so the latest ones are read again
_CLOCKS_DIFFER_S = 86_400
_TURN_MS = 1_000  # between two pages of the turn
_CLOCKS_APART_S = 60
_TTLS = 20  # different ones, read by time
_REMEMBERED = 200_000  # jobs and attempts that are not reported again
_REGISTRIES = ("failed", "scheduled")


@dataclass(slots=True)
class Place:
    """Reading position. Copied before it moves: only jobs in our tables count as read."""

    since: int = 0  # Unix seconds: earlier failures were read by time, or will be in turn
    begun: int = 0  # start of an unfinished reading by time; 0: none
    behind: dict[tuple[str, int], tuple[float, int]] = field(
        default_factory=dict
    )  # of that reading: queue and ttl -> last score, and number read of it
    station: int = 0  # registry of the turn, and position in it
    at: int = 0
    round_is_over: bool = False  # all registries had their turn once
    turned_ms: int = 0

    def text(self, beat: int) -> str:
        return json.dumps([self.since, self.station, self.at, self.round_is_over, beat])

    @classmethod
    def from_text(cls, text: str) -> tuple[Place, int]:
        """Parse a position and the mark's beat at that time; the start if it is not ours."""
        try:
            since, station, at, is_over, beat = json.loads(text)
            return cls(
                since=int(since), station=max(0, int(station)), at=max(0, int(at)), round_is_over=bool(is_over)
            ), int(beat)
        except (ValueError, TypeError):
            return cls(), 0


@dataclass(frozen=True, slots=True)
class _Receipt:
    place: Place
    names: Sequence[int]
    rest: dict[str, list[str]]  # queue -> ids found and not yet read


class Reading:
    """Reading of one source. For one thread at a time."""

    def __init__(self, wire: Wire, tenant_paths: Sequence[str]) -> None:
        self._wire = wire
        self._tenant_paths = tenant_paths
        self._place, self._beat = Place(), 0
        self._text: str | None = None  # the caller's form of our position
        self._rest: dict[str, list[str]] = {}
        self._ttls = {DEFAULT_FAILURE_TTL: None}
        self._filed: set[int] = set()
        self._filed_before: set[int] = set()

    def pull(self, after: str) -> Pulled:
        place, beat = (self._place, self._beat) if self._text == after and after else Place.from_text(after)
        is_complete = self._wire.mark.is_complete(beat)
        if not is_complete or self._text != after:
            place = place if is_complete else Place()
            self._filed, self._filed_before, self._rest = set(), set(), {}
        place = replace(place, behind=dict(place.behind))
        found = _Found(self._is_known)
        failing: dict[str, str] = {}
        is_more = bool(self._rest)
        if self._rest:
            found.ids = self._rest
        else:
            now = now_ms(self._wire.client)
            is_more = self._read_by_time(place, found, now // 1000, failing)
            is_more |= self._take_turn(place, found, now)
        reports, unread, rest = self._reports(found)
        return Pulled(
            reports,
            place.text(self._wire.mark.beat),
            is_more or bool(rest),
            _Receipt(place, found.names, rest),
            unread=unread,
            failing=failing,
        )

    def confirm_filed(self, pulled: Pulled) -> None:
        receipt: _Receipt = pulled.receipt
        self._text, self._place, self._rest, self._beat = (
            pulled.after,
            receipt.place,
            receipt.rest,
            self._wire.mark.beat,
        )
        self._filed.update(receipt.names)
        if len(self._filed) > _REMEMBERED:
            self._filed, self._filed_before = set(), self._filed

    def _is_known(self, name: int) -> bool:
        return name in self._filed or name in self._filed_before

    def _is_settled(self, score: float, now: int) -> bool:
        """Return whether an entry with this score need not be read again: all deaths of that time are in the
        registry.
        """
        return not any(-_AGAIN_S <= score - ttl - now < _CLOCKS_DIFFER_S for ttl in self._ttls)

    def _read_by_time(self, place: Place, found: _Found, now: int, failing: dict[str, str]) -> bool:
        """Read failures since the last reading, a page per queue. Return whether there may be more.

        A queue read to its end waits for the others, and continues from there: the reading ends with the longest queue.
        """
        place.since = place.since or now  # all earlier ones are read in turn
        place.begun = place.begun or now
        queues = self._wire.queues()
        wanted = [(queue, ttl) for queue in queues for ttl in self._ttls]
        pipe = self._wire.client.pipeline(transaction=False)
        for queue, ttl in wanted:
            least, read = place.behind.get((queue, ttl), (place.since - _OVERLAP_S + ttl, 0))
            most = now + _CLOCKS_DIFFER_S + ttl
            pipe.zrange(
                self._wire.key("failed", queue), least, most, byscore=True, offset=read, num=_PAGE, withscores=True
            )
        is_more = False
        for (queue, ttl), page in zip(wanted, self._wire.answers(pipe) if wanted else [], strict=True):
            if isinstance(page, Exception):
                failing[queue] = f"its failed jobs: {page}"
                continue
            found.add(queue, page, partial(self._is_settled, now=now))
            if page:
                last = page[-1][1]
                begun, read = place.behind.get((queue, ttl), (None, 0))
                same = sum(1 for _, score in page if score == last)
                place.behind[queue, ttl] = (last, same + (read if begun == last else 0))
            is_more |= len(page) == _PAGE
        if not is_more:
            place.since, place.begun, place.behind = place.begun, 0, {}
        return is_more

    def _take_turn(self, place: Place, found: _Found, now_ms: int) -> bool:
        """Read one page of the registries in turn. Return whether the first round is unfinished."""
        if place.round_is_over and now_ms - place.turned_ms < _TURN_MS:
            return False
        place.turned_ms = now_ms
        stations = [(queue, registry) for queue in self._wire.queues() for registry in _REGISTRIES]
        pipe = self._wire.client.pipeline(transaction=False)
        for queue, registry in stations:
            pipe.zcard(self._wire.key(registry, queue))
        sizes = self._wire.answers(pipe) if stations else []
        left = _PAGE
        while left > 0 and place.station < len(stations):
            queue, registry = stations[place.station]
            size = sizes[place.station]
            page: list[Any] = []
            if isinstance(size, int) and place.at < size:
                key = self._wire.key(registry, queue)
                page = cast(list[Any], self._wire.client.zrange(key, place.at, place.at + left - 1, withscores=True))
                found.add(queue, page, partial(self._is_settled, now=now_ms // 1000))
            left -= len(page)
            place.at += len(page)
            if not page:
                place.station, place.at = place.station + 1, 0
        if place.station >= len(stations):
            place.station, place.at, place.round_is_over = 0, 0, True
        return not place.round_is_over

    def _reports(self, found: _Found) -> tuple[list[Envelope], list[Unread], dict[str, list[str]]]:
        """Return reports of about `_BYTES`, jobs that could not be reported, and the ids left."""
        reports: list[Envelope] = []
        unread: list[Unread] = []
        rest = {queue: list(ids) for queue, ids in found.ids.items() if ids}
        left = _BYTES
        for queue in list(rest):
            read = []
            for job in self._wire.jobs(queue, rest[queue]):
                rest[queue].remove(job.id)
                self._note_ttl(job)
                read.append(job)
                left -= self._report(job, found, reports, unread)
                if left <= 0:
                    break
            self._wire.note_seen(read)
            if left <= 0:
                break
        return reports, unread, {queue: ids for queue, ids in rest.items() if ids}

    def _report(self, job: Job, found: _Found, reports: list[Envelope], unread: list[Unread]) -> int:
        """Add the report of a job if it has one. Return its bytes."""
        try:
            now = time.time()
            kind = "" if self._is_over(job) else kind_of(job, now)
            if job.is_being_buried(now):
                self._forget(job, found)
            report = build_report(self._wire.source, job, kind, self._tenant_paths) if kind else None
        except SourceError:
            raise
        except Exception as error:
            unread.append(Unread.from_error(job.queue, job.id, job.fields.get(b"data", b""), error))
            return 0
        if report is None:
            return 0
        run = report.lineage.run if report.lineage else 1
        name = hash((report.queue, report.job_id, run, report.attempt, report.kind, report.at, report.made_at))
        if not self._is_known(name):
            reports.append(report)
            found.names.append(name)
        return len(report.raw or b"") + len(report.trace)

    def _forget(self, job: Job, found: _Found) -> None:
        """Make an entry of the failed registry be read again."""
        name = _name(job.queue, job.id, job.failed_score or 0.0)
        found.names = [one for one in found.names if one != name]
        self._filed.discard(name)
        self._filed_before.discard(name)

    def _is_over(self, job: Job) -> bool:
        """Return whether a job is only left in the registry."""
        return job.kind == "none" and 0 < (job.failed_score or 0) < self._wire.mark.beat / 1000 + _CLOCKS_APART_S

    def _note_ttl(self, job: Job) -> None:
        """Record a job's own `failure_ttl`, to find similar jobs."""
        ttl = job.number("failure_ttl") or 0
        if ttl > 0 and job.is_dead and len(self._ttls) < _TTLS:
            self._ttls[ttl] = None


def _name(queue: str, job_id: str, score: float) -> int:
    """Return the name of an entry of a registry."""
    return hash((queue, job_id, score))


def kind_of(job: Job, now: float) -> str:
    """Return the kind of report for a job's current state; "" if none."""
    if job.is_dead:
        return "" if job.is_being_buried(now) else "exception"
    if job.is_retrying:
        return "retry"
    return "success" if job.status == "finished" and job.sent_record is not None else ""


class _Found:
    """Jobs that may have a report, each once."""

    def __init__(self, is_known: Callable[[int], bool]) -> None:
        self._is_known = is_known
        self.names: list[int] = []  # names of registry entries and reports
        self.ids: dict[str, list[str]] = {}

    def add(self, queue: str, page: Iterable[tuple[bytes, float]], is_settled: Callable[[float], bool]) -> None:
        """Add entries of a registry. `is_settled`: returns whether an entry with this score is not read again."""
        for member, score in page:
            name = _name(queue, text_of(member), score)
            if self._is_known(name):
                continue
            if is_settled(score):
                self.names.append(name)
            self.ids.setdefault(queue, []).append(text_of(member))
