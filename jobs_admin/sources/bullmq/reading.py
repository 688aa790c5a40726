"""Ended jobs of BullMQ's queues: by the events, so that they are known at once, and by the sets, which are the truth.

Events are trimmed (some 10,000 a queue), and a `failed` set by `removeOnFail`; neither alone has everything. Both lead
to the same job, and the same job makes the same report. Each reading goes three ways:

- events, after the last one that was read;
- each `failed` set by its score (when a job ended, by its worker's clock), from some seconds before the last one;
- all sets in turn, a page at a time: retries that wait, and what neither of the others reported (a worker whose clock
  is behind, an event
  trimmed before it was read).

Dead-letter queues are read beside them (`dead_letters.py`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import redis

from jobs_admin.core.envelope import Envelope
from jobs_admin.sources.base import Pulled, SourceError
from jobs_admin.sources.bullmq.dead_letters import Copies
from jobs_admin.sources.bullmq.jobs import Jobs
from jobs_admin.sources.bullmq.wire import JobEvent, Wire, text

log = logging.getLogger(__name__)

_PAGE = 400  # jobs per answer, approximately
_BYTES = 16_000_000  # of jobs per answer; further ones are read for the next answers
_OVERLAP_MS = 5_000  # a failure appears in the set some moments after its own time
_CLOCKS_DIFFER_MS = 86_400_000  # a worker's clock may be ahead by this much
_EVENTS = 2_000  # entries of a queue read per answer
_TURN_MS = 3_000  # between two pages of the turn
_ONLY_TURN_MS = 500  # where no events show retries (Bull)
_TURN_PAGE = 300
_REMEMBERED = 200_000  # reported attempts that are not reported again
_LONGEST = 3_500  # characters of a position
_IN_TURN = ("failed", "delayed")


@dataclass(slots=True)
class Place:
    """Reading position of a source. Copied before it moves: only jobs in our tables count as read."""

    scores: dict[str, tuple[int, int]] = field(default_factory=dict)  # queue -> score (ms), and number read of it
    floor: int = 0  # score of other queues
    events: dict[str, str] = field(default_factory=dict)  # queue -> the last entry
    since: int = 0  # ms; start of the events of other queues
    turn: tuple[int, int] = (0, 0)  # set or list, and position in it
    round_is_over: bool = False  # all sets and lists had their turn once
    turned_ms: int = 0

    def copy(self) -> Place:
        return replace(self, scores=dict(self.scores), events=dict(self.events))

    def text(self, queues: Iterable[str]) -> str:
        """Return the position in at most some thousand characters, for any number of queues: those far behind have
        their own entry.
        """
        names = list(queues)
        marks = {queue: self.scores.get(queue, (self.floor, 0)) for queue in names}
        latest = max((score for score, _ in marks.values()), default=self.floor)
        behind = {queue: mark for queue, mark in marks.items() if latest - mark[0] > _OVERLAP_MS or mark[1]}
        floor = min((score for queue, (score, _) in marks.items() if queue not in behind), default=self.floor)
        since = min((_ms(self.events.get(queue, "")) or self.since for queue in names), default=self.since)
        position = {"floor": floor, "since": since, "round": self.round_is_over, "behind": behind}
        if len(json.dumps(position)) > _LONGEST:
            position |= {"floor": min(score for score, _ in marks.values()), "behind": {}}
        return json.dumps(position, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Place:
        """Parse a position; the start if it is not ours."""
        try:
            position = json.loads(text)
            behind = {str(queue): (int(score), int(n)) for queue, (score, n) in position["behind"].items()}
            return cls(behind, int(position["floor"]), {}, int(position["since"]), (0, 0), bool(position["round"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls()


@dataclass(frozen=True, slots=True)
class _Receipt:
    place: Place
    names: list[int]
    copies: Copies
    saved: list[tuple[str, str]]
    rest: _Found | None  # found but not yet read: the position moves on with the last of it


class Reading:
    """Reading of one source. For one thread at a time."""

    def __init__(self, wire: Wire, jobs: Jobs) -> None:
        self._wire = wire
        self._jobs = jobs
        self._place = Place()
        self._text: str | None = None  # the caller's form of our position
        self._rest: _Found | None = None
        self._ahead = Place()  # position up to which the rest was found
        self._defects: set[str] = set()  # ways of reading that failed at the last attempt
        self._filed: set[int] = set()  # attempts in our tables
        self._filed_before: set[int] = set()

    def pull(self, after: str) -> Pulled:
        is_complete = self._jobs.is_complete(after)
        if not is_complete or self._text != after:
            self._place, self._filed, self._filed_before = (
                Place.from_text(after) if is_complete else Place(),
                set(),
                set(),
            )
            self._rest = None
            if not is_complete or not after:
                self._jobs.dead.reset()
        if self._rest is None:
            place, now = self._place.copy(), self._wire.now_ms()
            found = _Found(self._jobs, lambda name: name in self._filed or name in self._filed_before)
            failing: dict[str, str] = {}
            is_more = self._attempt("events", self._read_events, place, found, now, failing)
            is_more |= self._attempt("failed jobs by time", self._read_failed, place, found, now, failing)
            if not is_more or not place.round_is_over:
                is_more |= self._attempt("failed jobs in turn", self._take_turn, place, found, now, failing)
        else:
            place, found, is_more, failing = self._ahead, self._rest, True, {}
        reports: list[Envelope] = []
        names = dict.fromkeys(found.names)  # each once, even if a dead-letter queue has a thousand copies
        copies = self._jobs.dead.read(self._wire.queues(), self._majors(), failing)
        saved, more_saved = self._jobs.saved_reports()  # after the events: jobs they report were saved before
        of_found, rest = found.reports(_BYTES)
        for report in (*(report for _, report in saved), *of_found, *copies.reports):
            run = report.lineage.run if report.lineage else 1
            # A copy has the message, which the events of a removed job do not. An id may later be given to another job.
            made = report.at if report.raw is None else report.made_at
            name = hash((report.queue, report.job_id, run, report.attempt, report.kind, report.raw is None, made))
            if name not in names and not found.is_known(name):
                reports.append(report)
                names[name] = None
        is_more |= copies.is_more or more_saved or rest is not None
        return Pulled(
            reports,
            # A restarted process finds the rest again.
            place.text(self._wire.queues()) if rest is None else after if is_complete else "",
            is_more,
            _Receipt(place, list(names), copies, [job for job, _ in saved], rest),
            found.ran,
            self._jobs.take_unread(),
            failing,
        )

    def _majors(self) -> dict[str, int | None]:
        return {queue: version.major for queue, version in self._wire.versions().items()}

    def confirm_filed(self, pulled: Pulled) -> None:
        receipt: _Receipt = pulled.receipt
        self._text, self._rest = pulled.after, receipt.rest
        if receipt.rest is None:
            self._place = receipt.place
        else:
            self._ahead = receipt.place
        self._filed.update(receipt.names)
        self._wire.call(lambda: self._jobs.dead.confirm_filed(receipt.copies.receipt))
        self._wire.call(lambda: self._jobs.forget_saved(receipt.saved))
        if len(self._filed) > _REMEMBERED:
            self._filed, self._filed_before = set(), self._filed

    def _attempt(self, what: str, way: _Way, place: Place, found: _Found, now: int, failing: dict[str, str]) -> bool:
        """Read in one of the three ways.

        A defect in one way is reported, and the others continue: each alone leads to all jobs.
        """
        try:
            is_more = way(place, found, now, failing)
        except (redis.RedisError, SourceError):
            raise
        except Exception as error:
            if what not in self._defects:  # logged once
                log.exception("Source %s: its %s cannot be read.", self._wire.source, what)
            self._defects.add(what)
            failing[what] = f"{type(error).__name__}: {error}"
            return False
        self._defects.discard(what)
        return is_more

    def _read_events(self, place: Place, found: _Found, now: int, failing: dict[str, str]) -> bool:
        is_more = False
        lasts = {queue: place.events.get(queue) for queue in self._wire.queues()}
        begins = {queue: f"({last}" if last else f"{place.since}-0" for queue, last in lasts.items()}
        pages, unread = self._wire.events(begins, _EVENTS)
        failing |= unread
        for queue, page in pages.items():
            # Entries read again from a time may already be counted; those after a read entry are not.
            if lasts[queue]:
                found.ran.update({(queue, minute): n for minute, n in page.ran.items()})
            if page.last:
                place.events[queue] = page.last
            if not page.is_more and _ms(place.events.get(queue, "")) < now - _OVERLAP_MS:
                place.events[queue] = f"{now - _OVERLAP_MS}-0"  # earlier entries can no longer arrive
            is_more |= page.is_more
            found.events(queue, page.events)
        return is_more

    def _read_failed(self, place: Place, found: _Found, now: int, failing: dict[str, str]) -> bool:
        """Read `failed` sets by score, one page over all queues. Return whether jobs may be left.

        The queues share the page: short ones leave their rest to the others, so a long backlog of one delays none.
        """
        is_more, left = False, _PAGE
        pipe = self._wire.client.pipeline(transaction=False)
        queues = self._wire.queues()
        for queue in queues:
            score, read = place.scores.get(queue, (place.floor, 0))
            pipe.zrange(
                self._wire.key(queue, "failed"),
                score,
                now + _CLOCKS_DIFFER_MS,  # an impossible time is read in turn, and does not mislead the others
                byscore=True,
                offset=read,
                num=_PAGE,
                withscores=True,
            )
        answers = list(zip(queues, self._wire.answers(pipe) if queues else [], strict=True))
        failing.update({queue: f"its failed jobs: {page}" for queue, page in answers if isinstance(page, Exception)})
        pages = sorted(
            ((queue, page) for queue, page in answers if isinstance(page, list)), key=lambda one: len(one[1])
        )
        for index, (queue, page) in enumerate(pages):
            share = max(1, left // (len(pages) - index))
            jobs = [(text(job_id), score) for job_id, score in page[:share]]
            found.jobs(queue, jobs)
            left -= len(jobs)
            if jobs and len(jobs) == share:  # the queue may have more
                is_more = True
                last = int(jobs[-1][1])
                begun, read = place.scores.get(queue, (place.floor, 0))
                same = sum(1 for _, score in jobs if int(score) == last)
                place.scores[queue] = (last, same + (read if begun == last else 0))
            else:
                ended = max([now, *(int(score) for _, score in jobs)])
                place.scores[queue] = (ended - _OVERLAP_MS, 0)
        return is_more

    def _take_turn(self, place: Place, found: _Found, now: int, failing: dict[str, str]) -> bool:
        """Read one page of the set or list whose turn it is.

        The first round continues at once, later ones some seconds apart.
        """
        pause_ms = _TURN_MS if self._wire.has_events else _ONLY_TURN_MS
        if place.round_is_over and now - place.turned_ms < pause_ms:
            return False
        place.turned_ms = now
        stations = [
            (queue, state)
            for queue in self._wire.queues()
            for state in _IN_TURN
            # In the first round, `failed` is read by score anyway.
            if place.round_is_over or state != "failed"
        ]
        checked = 0
        station, at = place.turn
        while station < len(stations) and checked < 50:  # empty ones only cost a round trip each
            queue, state = stations[station]
            page = self._jobs.page(queue, state, at, _TURN_PAGE)
            found.jobs(queue, page)
            checked += 1
            if len(page) == _TURN_PAGE:
                place.turn = (station, at + _TURN_PAGE)
                return not place.round_is_over
            station, at = station + 1, 0
            if page:
                break
        place.turn = (station, at)
        if station >= len(stations):
            place.turn, place.round_is_over = (0, 0), True
        return not place.round_is_over


_Way = Callable[[Place, "_Found", int, dict[str, str]], bool]


class _Found:
    """Jobs that may have a report, each once."""

    def __init__(self, jobs: Jobs, is_known: Callable[[int], bool]) -> None:
        self._jobs = jobs
        self.is_known = is_known
        self.names: list[int] = []  # names of places of jobs: a reported one is not read again
        self.ran: dict[tuple[str, int], int] = {}  # (queue, minute since 1970) -> jobs that succeeded
        self._ids: dict[str, dict[str, list[JobEvent]]] = {}  # queue -> job -> its events

    def events(self, queue: str, events: list[JobEvent]) -> None:
        self._jobs.remember_acts(queue, events)
        for one in events:
            self._ids.setdefault(queue, {}).setdefault(one.job_id, []).append(one)

    def jobs(self, queue: str, page: Iterable[tuple[str, float]]) -> None:
        """Add jobs of a set with their scores (0 for a list)."""
        for job_id, score in page:
            name = hash((queue, job_id, score))
            if self.is_known(name):
                continue
            self.names.append(name)
            self._ids.setdefault(queue, {}).setdefault(job_id, [])

    def reports(self, most: int) -> tuple[list[Envelope], _Found | None]:
        """Return reports of about `most` bytes, and the rest of the jobs found; None if nothing is left."""
        reports: list[Envelope] = []
        for n, (queue, jobs) in enumerate(self._ids.items()):
            for done, (_, found) in enumerate(self._jobs.each(queue, jobs), 1):
                reports += found
                most -= sum(len(one.raw or b"") + len(one.trace) for one in found)
                if most <= 0:
                    left = [(queue, dict(list(jobs.items())[done:])), *list(self._ids.items())[n + 1 :]]
                    return reports, self._rest_of({queue: jobs for queue, jobs in left if jobs})
        return reports, None

    def _rest_of(self, ids: dict[str, dict[str, list[JobEvent]]]) -> _Found | None:
        rest = _Found(self._jobs, self.is_known)
        rest._ids = ids
        return rest if ids else None


def _ms(entry: str) -> int:
    head = entry.partition("-")[0]
    return int(head) if head.isdigit() else 0
