"""Reading of the dead set by time of death, and of the retry set in rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from redis.exceptions import ResponseError

from jobs_admin.core.envelope import Envelope
from jobs_admin.sources.base import Unread
from jobs_admin.sources.death_reading import DeathReading, Page
from jobs_admin.sources.one_redis import job_member, now_ms
from jobs_admin.sources.sidekiq.reports import build_report
from jobs_admin.sources.sidekiq.retries import Retries
from jobs_admin.sources.sidekiq.wire import StoredJob, Wire, is_other_type

_Job = tuple[StoredJob, float | None]  # with its death before this failure


class Reading(DeathReading[StoredJob, _Job]):
    """Reading of one source."""

    per_ms = 0.001

    def __init__(self, wire: Wire, tenant_paths: Sequence[str]) -> None:
        super().__init__(wire.client, wire.mark)
        self._wire = wire
        self.retries = Retries(wire)
        self._tenant_paths = tenant_paths

    def find_sets(self) -> Sequence[str]:
        return ("dead",)

    def read_pages(self, starts: Mapping[str, tuple[float, int]], most: int) -> dict[str, Page[StoredJob] | Exception]:
        self._wire.sample()
        found: dict[str, Page[StoredJob] | Exception] = {}
        for of, (least, read) in starts.items():
            try:
                jobs, is_more = self._wire.page(of, least, read, most)
            except ResponseError as error:
                if not is_other_type(error):
                    raise
                found[of] = error
            else:
                found[of] = Page([(one, one.score) for one in jobs], is_more)
        return found

    def load(self, name: str, entries: Sequence[StoredJob]) -> Iterator[_Job]:
        deaths = [(_member(one), one.score) for one in entries]
        self._wire.record_deaths(deaths)
        yield from zip(entries, self._wire.deaths_before(deaths), strict=True)

    def build_report(self, job: _Job, kind: str) -> Envelope | None:
        stored, died_before = job
        if not self._wire.is_read(stored.job.queue):
            return None
        return build_report(self._wire.source, stored, kind, died_before, self._tenant_paths)

    def build_unread(self, job: _Job, error: Exception) -> Unread:
        stored = job[0].job
        return Unread.from_error(stored.queue, stored.id, stored.raw, error)

    def read_retries(self) -> tuple[list[tuple[int, _Job]], bool]:
        # By attempt: an operator who reschedules a retry changes its score alone.
        found = {hash((one.job.raw, "retry")): one for one in self.retries.take_turn(now_ms(self._wire.client))}
        new = {name: one for name, one in found.items() if not self.is_filed(name)}
        died = self._wire.deaths_before([(_member(one), one.job.failed_at or 0.0) for one in new.values()])
        jobs = list(zip(new.values(), died, strict=True))
        return list(zip(new, jobs, strict=True)), self.retries.is_first_round

    def forget_retries(self) -> None:
        self.retries = Retries(self._wire)


def _member(stored: StoredJob) -> str:
    return job_member(stored.job.queue, stored.job.id)
