"""Reading of dead letters by their time of death, and of jobs that wait for a retry in rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jobs_admin.core.envelope import Envelope
from jobs_admin.sources.base import Unread
from jobs_admin.sources.death_reading import DeathReading, Page
from jobs_admin.sources.dramatiq.delayed import Delayed
from jobs_admin.sources.dramatiq.reports import build_report
from jobs_admin.sources.dramatiq.wire import StoredMessage, Wire
from jobs_admin.sources.one_redis import now_ms


class Reading(DeathReading[str, StoredMessage]):
    """Reading of one source. Its sets are the dead letters of each queue, their entries names of messages."""

    def __init__(self, wire: Wire, tenant_paths: Sequence[str], dead_message_ttl_s: float) -> None:
        super().__init__(wire.client, wire.mark)
        self._wire = wire
        self.delayed = Delayed(wire)
        self._tenant_paths = tenant_paths
        self._ttl_ms = dead_message_ttl_s * 1000

    def find_sets(self) -> Sequence[str]:
        return self._wire.queues()

    def read_pages(self, starts: Mapping[str, tuple[float, int]], most: int) -> dict[str, Page[str] | Exception]:
        pipe = self._wire.client.pipeline(transaction=False)
        for queue, (least, read) in starts.items():
            key = self._wire.key(queue, ".XQ")
            pipe.zrange(key, least, "+inf", byscore=True, offset=read, num=most, withscores=True)
        answers = self._wire.answers(pipe) if starts else []
        return {queue: _page(answer, most) for queue, answer in zip(starts, answers, strict=True)}

    def load(self, name: str, entries: Sequence[str]) -> Iterator[StoredMessage]:
        return self._wire.dead_letters(name, entries)

    def build_report(self, job: StoredMessage, kind: str) -> Envelope | None:
        if job.at_ms is None:
            return None
        lineage = job.message.lineage
        # A job that was requeued outside Redrive has the attempts and lineage of the previous run: it dies as another
        # run.
        is_first = kind == "retry" or self._wire.is_first_death(job, lineage.run if lineage else 1, self._ttl_ms)
        lineage = lineage if is_first is not False else None
        return build_report(self._wire.source, job, kind, lineage, is_first is not False, self._tenant_paths)

    def build_unread(self, job: StoredMessage, error: Exception) -> Unread:
        return Unread.from_error(job.queue, job.job_id, job.message.raw, error)

    def read_retries(self) -> tuple[list[tuple[int, StoredMessage]], bool]:
        found = self.delayed.take_turn(now_ms(self._wire.client))
        return [(hash((one.queue, one.name)), one) for one in found], self.delayed.is_first_round

    def forget_retries(self) -> None:
        self.delayed = Delayed(self._wire)


def _page(answer: list[tuple[bytes, float]] | Exception, most: int) -> Page[str] | Exception:
    if isinstance(answer, Exception):
        return answer
    return Page([(name.decode("utf-8", "replace"), score) for name, score in answer], len(answer) == most)
