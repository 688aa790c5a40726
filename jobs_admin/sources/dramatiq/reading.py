"""Reading of dead letters by their time of death, and of jobs that wait for a retry in rounds.

A worker takes the time of death from its own clock, just before it writes. So each reading overlaps the previous one by
some seconds, and every ten minutes a reading begins at the oldest dead letter.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from jobs_admin.core.envelope import Envelope
from jobs_admin.sources.base import Pulled, SourceError, Unread
from jobs_admin.sources.dramatiq.delayed import Delayed
from jobs_admin.sources.dramatiq.reports import build_report
from jobs_admin.sources.dramatiq.wire import StoredMessage, Wire
from jobs_admin.sources.one_redis import now_ms

_PAGE = 300  # dead letters of one queue
_BYTES = 16_000_000  # of reports in one answer; further dead letters follow in the next answer
_OVERLAP_MS = 10_000
_AGAIN_MS = 600_000  # between two complete readings
_REMEMBERED = 200_000  # dead letters, so that they are not read again and again


@dataclass(slots=True)
class Place:
    """Reading position. Copied before it moves: only filed dead letters count as read."""

    since: int = 0  # Unix ms; earlier deaths were read
    begun: int = 0  # start of the running reading; 0: none runs
    all_at: int = 0  # start of the latest complete reading
    behind: dict[str, tuple[float, int]] = field(
        default_factory=dict
    )  # of that reading: queue -> its last time of death, and how many of that time were read

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
class _Receipt:
    place: Place
    names: Sequence[int]
    rest: dict[str, list[str]]  # queue -> dead letters found, not read yet


class Reading:
    """Reading of one source. For one thread at a time."""

    def __init__(self, wire: Wire, tenant_paths: Sequence[str], dead_message_ttl_s: float) -> None:
        self._wire = wire
        self.delayed = Delayed(wire)
        self._tenant_paths = tenant_paths
        self._ttl_ms = dead_message_ttl_s * 1000
        self._place, self._beat = Place(), 0
        self._text: str | None = None  # `_place` as the caller stores it
        self._rest: dict[str, list[str]] = {}
        self._filed: set[int] = set()
        self._filed_before: set[int] = set()

    def pull(self, after: str) -> Pulled:
        place, beat = (self._place, self._beat) if self._text == after and after else Place.from_text(after)
        is_complete = self._wire.mark.is_complete(beat, is_start=not after)
        if not is_complete or self._text != after:
            place = place if is_complete else Place()
            self._filed, self._filed_before, self._rest = set(), set(), {}
            self.delayed = Delayed(self._wire)
        place = replace(place, behind=dict(place.behind))
        failing: dict[str, str] = {}
        names: list[int] = []
        found, is_more = self._rest, bool(self._rest)
        if not found:
            found, is_more = self._find(place, names, failing)
        reports, unread, rest = self._reports(found)
        is_more |= self._read_retries(names, reports, unread)
        text = place.text(self._wire.mark.beat)
        receipt = _Receipt(place, names, rest)
        return Pulled(reports, text, is_more or bool(rest), receipt, unread=unread, failing=failing)

    def confirm_filed(self, pulled: Pulled) -> None:
        receipt: _Receipt = pulled.receipt
        self._text, self._place, self._rest = pulled.after, receipt.place, receipt.rest
        self._beat = self._wire.mark.beat
        self._filed.update(receipt.names)
        if len(self._filed) > _REMEMBERED:
            self._filed, self._filed_before = set(), self._filed

    def _find(self, place: Place, names: list[int], failing: dict[str, str]) -> tuple[dict[str, list[str]], bool]:
        """Find a page of each queue. Return the names of unknown dead letters by queue, and whether there may be more.

        A queue that is read to its end continues from there while others are read: the reading ends with the longest
        queue.
        """
        if not place.begun:
            place.begun = now_ms(self._wire.client)
            if place.begun - place.all_at >= _AGAIN_MS:
                place.since, place.all_at = 0, place.begun
        queues = self._wire.queues()
        pipe = self._wire.client.pipeline(transaction=False)
        for queue in queues:
            least, read = place.behind.get(queue, (place.since - _OVERLAP_MS, 0))
            key = self._wire.key(queue, ".XQ")
            pipe.zrange(key, least, "+inf", byscore=True, offset=read, num=_PAGE, withscores=True)
        found: dict[str, list[str]] = {}
        is_more = False
        for queue, page in zip(queues, self._wire.answers(pipe) if queues else [], strict=True):
            if isinstance(page, Exception):
                failing[queue] = f"its dead letters: {page}"
                continue
            for member, score in page:
                name = hash((queue, member, score))
                if name not in self._filed and name not in self._filed_before:
                    names.append(name)
                    found.setdefault(queue, []).append(member.decode("utf-8", "replace"))
            if page:
                last = page[-1][1]
                before, read = place.behind.get(queue, (None, 0))
                same = sum(1 for _, score in page if score == last)
                place.behind[queue] = (last, same + (read if before == last else 0))
            is_more |= len(page) == _PAGE
        if not is_more:
            place.since, place.begun, place.behind = place.begun, 0, {}
        return found, is_more

    def _read_retries(self, names: list[int], reports: list[Envelope], unread: list[Unread]) -> bool:
        """Add reports of a page of jobs that wait for a retry. Return whether the first round is incomplete."""
        for waiting in self.delayed.take_turn(now_ms(self._wire.client)):
            name = hash((waiting.queue, waiting.name))
            if name not in self._filed and name not in self._filed_before:
                names.append(name)
                self._report(waiting, "retry", reports, unread)
        return self.delayed.is_first_round

    def _reports(self, found: dict[str, list[str]]) -> tuple[list[Envelope], list[Unread], dict[str, list[str]]]:
        """Return reports of about `_BYTES`, dead letters without a report, and the remaining names by queue."""
        reports: list[Envelope] = []
        unread: list[Unread] = []
        rest = {queue: list(names) for queue, names in found.items()}
        left = _BYTES
        for queue in list(rest):
            for stored in self._wire.dead_letters(queue, found[queue]):
                rest[queue].pop(0)
                left -= self._report(stored, "exception", reports, unread)
                if left <= 0:
                    return reports, unread, {queue: names for queue, names in rest.items() if names}
        return reports, unread, {}

    def _report(self, stored: StoredMessage, kind: str, reports: list[Envelope], unread: list[Unread]) -> int:
        """Add the report of a message if it still exists. Return its bytes."""
        if stored.at_ms is None:
            return 0
        try:
            lineage = stored.message.lineage
            # A job that was requeued outside Redrive has the attempts and lineage of the previous run: it dies as
            # another run.
            is_first = kind == "retry" or self._wire.is_first_death(stored, lineage.run if lineage else 1, self._ttl_ms)
            lineage = lineage if is_first is not False else None
            report = build_report(self._wire.source, stored, kind, lineage, is_first is not False, self._tenant_paths)
        except SourceError:
            raise
        except Exception as error:
            unread.append(Unread.from_error(stored.queue, stored.job_id, stored.message.raw, error))
            return 0
        reports.append(report)
        return len(report.raw or b"") + len(report.trace)
