"""Dead-letter and quarantine queues of BullMQ: each waiting copy is filed under the job it contains, once for all its
copies.

A queue is one of these if configured or recognised (`recognition.py`). They have no workers, so their jobs wait: they
are read from their lists, oldest first, each queue from its last position. The locations of copies are recorded
(`keys.copies`), so that the step that sends the job removes all of them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis

from jobs_admin.core import keys
from jobs_admin.core.envelope import Envelope, Lineage
from jobs_admin.sources.base import Finding, Ref, SourceError, SourceRefused, Unread
from jobs_admin.sources.bullmq import job_hash as bullmq_job_hash
from jobs_admin.sources.bullmq.carried import Carried, find_carried
from jobs_admin.sources.bullmq.places import LISTS, Place
from jobs_admin.sources.bullmq.recognition import NAMES, Recognition
from jobs_admin.sources.bullmq.wire import REASON, Target, Wire, text

log = logging.getLogger(__name__)

_AT_ONCE = 200  # copies of a queue per page
_BYTES = 8_000_000  # of copies per page
_MOST_QUEUES = 200  # searched for a job's own queue
_MOST_STREAMS = 50  # queues whose events are searched for it
_MINUTE_MS = 60_000
_MOST_EVENTS = 20_000  # per queue, searched for a job's name
_LONGEST_TIME = 16  # digits of ms
_CHARACTERS = 512  # maximum of a field in the hash of copies; longer ones are omitted


@dataclass(frozen=True, slots=True)
class Configured:
    """An entry of `dead_letter_queues`."""

    name: str
    of: str = ""  # queue of jobs that do not name theirs
    job_name: str = ""  # name of jobs that do not contain theirs


@dataclass(frozen=True, slots=True)
class SentRecord:
    """Record of sending a job, with its time (Unix seconds by Redis' clock)."""

    lineage: Lineage
    before: tuple[int, int]  # executions and stack traces counted before
    at: float


@dataclass(frozen=True, slots=True)
class Copy:
    """A dead letter in its queue."""

    id: str
    made: str  # creation time by its hash: a later copy may get the same id
    job: Carried


@dataclass(frozen=True, slots=True)
class Copies:
    """Reports read from dead-letter queues."""

    reports: list[Envelope] = field(default_factory=list)
    is_more: bool = False
    receipt: Mapping[str, str] = field(default_factory=dict)  # for `confirm_filed`


def parse_configured(source: str, option: object) -> dict[str, Configured]:
    """Parse the option `dead_letter_queues`: names, or tables with `name`, `of` and `job_name`.

    Raises SourceRefused with a sentence.
    """
    found: dict[str, Configured] = {}
    for one in option if isinstance(option, list | tuple) else [option] if option else []:
        table: Any = {"name": one} if isinstance(one, str) else one
        is_known = isinstance(table, dict) and set(table) <= {"name", "of", "job_name"} and table.get("name")
        if not is_known or not all(isinstance(value, str) for value in table.values()):
            raise SourceRefused(
                f'Source {source}: dead_letter_queues is a list of names or of {{name = "dead-letter", of = "webhooks"}} '
                f"(`of` and `job_name` only where the jobs in it do not say theirs), not {str(one)[:100]!r}."
            )
        found[table["name"]] = Configured(**table)
    return found


def added_at(fields: Mapping[bytes, bytes]) -> str:
    """Return the time when a job was added, in ms from its hash; "" if impossible."""
    made = fields.get(b"timestamp", b"")
    return text(made) if made.isdigit() and len(made) < _LONGEST_TIME else ""


def unclear_id(queue: str, job_id: str, copy: str) -> str:
    """Return the id under which a job without a queue is filed: in its dead-letter queue, each copy is a separate
    job.
    """
    return f"{job_id}.{queue}.{copy}"


def copy_of_unclear(queue: str, job_id: str) -> str | None:
    """Return the copy in an id from `unclear_id`; None for other ids."""
    head, _, copy = job_id.rpartition(f".{queue}.")
    return copy if head and copy else None


class DeadLetterQueues:
    """Dead-letter queues of one source. For one thread at a time, like any `PulledSource`."""

    def __init__(
        self, wire: Wire, configured: Mapping[str, Configured] | None = None, tenant_paths: Sequence[str] = ()
    ) -> None:
        self._wire = wire
        self._configured = dict(configured or {})
        self._tenant_paths = tuple(tenant_paths)
        self._recognised = Recognition(wire)
        self._places: dict[str, str] = {}  # copy of those in Redis, which may be read-only
        self.unread: list[Unread] = []  # copies that could not be reported (`Jobs.take_unread`)
        self.unclear: dict[str, int] = {}  # queue -> number of its jobs that name no queue and were found in none
        self.nameless: dict[str, int] = {}  # queue -> number of its jobs without a known name
        self._note = wire.client.register_script(_NOTE)

    @property
    def copies_key(self) -> str:
        return keys.copies(self._wire.source, self._wire.store_prefix)

    @property
    def _places_key(self) -> str:
        return f"{self.copies_key}:places"

    def is_home(self, queue: str) -> bool:
        """Return whether the configuration assigns this queue to jobs that do not name theirs."""
        return any(one.of == queue for one in self._configured.values())

    # -- selecting queues
    # ------------------------------------------------------------------------------------------------

    def select(self, queues: Collection[str]) -> list[str]:
        """Return the queues that contain dead letters, configured or recognised. Some round trips for all."""
        if not self._wire.has_dead_letter_queues:
            return []
        self._recognised.check([queue for queue in queues if queue not in self._configured])
        return sorted(self._recognised.seen & set(queues) | set(self._configured))

    def is_one(self, queue: str) -> bool:
        return queue in self._configured or queue in self._recognised.seen

    def is_configured(self, queue: str) -> bool:
        return queue in self._configured

    def findings(self) -> list[Finding]:
        """Return findings on why dead letters of these queues cannot be sent."""
        found = self._recognised.findings()
        found += [
            Finding(
                "dead-letter-queue-unclear",
                "warning",
                f"Dead letters in {name} do not say which queue they are of. They are filed under {name}, and are sent by choosing "
                "a queue.",
                f'Name it for this source: dead_letter_queues = [{{name = "{name}", of = "…"}}].',
            )
            for name, n in sorted(self.unclear.items())
            if n
        ]
        return found + [
            Finding(
                "dead-letter-queue-nameless",
                "warning",
                f"Dead letters in {name} do not say the name of their job, and no event of their queue has it any more. They "
                "cannot be sent.",
                f'Name it for this source: dead_letter_queues = [{{name = "{name}", job_name = "…"}}].',
            )
            for name, n in sorted(self.nameless.items())
            if n
        ]

    # -- reading --------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget all positions: every queue will be read from its start."""
        self._places.clear()
        self._wire.note(lambda: self._wire.client.delete(self._places_key))

    def read(self, queues: Collection[str], majors: Mapping[str, int | None], failing: dict[str, str]) -> Copies:
        """Read copies added since the last call, at most some hundred per queue.

        `queues`: all of the source; `majors` by queue.

        Queues that cannot be read are added to `failing`, with the reason.
        """
        names = self.select(queues)
        if not names:
            return Copies()
        stored: Any = self._wire.client.hmget(self._places_key, names)
        reports: list[Envelope] = []
        receipt: dict[str, str] = {}
        is_more, left = False, _BYTES
        for name, saved in zip(names, stored, strict=True):
            if left <= 0:
                is_more = True
                break  # each gets its turn: earlier queues will be exhausted at some point
            before = text(saved) if saved else self._places.get(name, "")
            place = Place.read(before)
            try:
                ids, more = self._page(name, place, left)
                page = self._reports(name, ids, majors.get(name), place)
            except (redis.RedisError, SourceError):
                raise
            except Exception as error:  # one queue: the others are still read
                log.error("The dead letters in %s cannot be read.", name, exc_info=error)
                failing[name] = f"its dead letters: {type(error).__name__}: {error}"
                continue
            left -= sum(one.raw_size for one in page)
            reports += page
            is_more |= more
            if (now := place.to_text()) != before:
                receipt[name] = now
        return Copies(reports, is_more, receipt)

    def confirm_filed(self, receipt: Mapping[str, str]) -> None:
        if receipt:
            self._places |= receipt
            self._wire.note(lambda: self._wire.client.hset(self._places_key, mapping=dict(receipt.items())))

    def _page(self, name: str, place: Place, most: int) -> tuple[list[str], bool]:
        """Return the ids of the next copies, oldest first, of at most `most` bytes per list; and whether there are
        more.
        """
        client, key = self._wire.client, self._wire.key
        pipe = client.pipeline(transaction=False)
        pipe.hget(key(name, place.mark[0]), "timestamp")
        pipe.get(key(name, "id"))
        for one in LISTS:
            pipe.llen(key(name, one))
        pipe.zcount(key(name, "prioritized"), "-inf", place.score)
        pipe.zcount(key(name, "prioritized"), f"({place.score}", "+inf")
        marked, *answers = pipe.execute(raise_on_error=False)
        is_another = isinstance(marked, bytes) and text(marked) != place.mark[1]
        numbers = [answer if isinstance(answer, int | bytes) else 0 for answer in answers]
        counts = [int(n) for n in numbers[1:]]
        place.update(int(numbers[0] or 0), counts[:-2], counts[-2], counts[-1], is_another=is_another)
        ids: list[bytes] = []
        is_more = False
        for one in LISTS:
            at, size = place.lists[one]
            if at < size and len(ids) < _AT_ONCE:
                oldest: Any = client.lrange(key(name, one), -(at + _AT_ONCE), -(at + 1))[::-1]
                page = oldest[: self._wire.fitting(name, [text(job_id) for job_id in oldest], most)]
                ids += page
                place.lists[one] = at + len(page), size
            is_more |= place.lists[one][0] < size
        if place.above and len(ids) < _AT_ONCE:
            scored: Any = client.zrangebyscore(
                key(name, "prioritized"), f"({place.score}", "+inf", start=0, num=_AT_ONCE, withscores=True
            )
            scored = scored[: self._wire.fitting(name, [text(job_id) for job_id, _ in scored], most)]
            ids += [job_id for job_id, _ in scored]
            place.advance([score for _, score in scored])
        is_more |= place.above > 0
        return [text(job_id) for job_id in ids], is_more

    def _reports(self, name: str, ids: Sequence[str], major: int | None, place: Place) -> list[Envelope]:
        found: list[Copy] = []
        for job_id, fields, _ in self._wire.jobs(name, ids):
            made = added_at(fields)
            if made:
                place.mark = (job_id, made)
            if name not in self._configured and fields.get(b"name") not in NAMES:
                continue  # its data may come from outside
            if (one := find_carried(fields.get(b"data", b""))) is not None:
                found.append(Copy(job_id, made, one))
        return self.build_reports(name, found, major)

    def build_reports(self, name: str, found: Sequence[Copy], major: int | None) -> list[Envelope]:
        """Build the reports of the jobs contained in these copies, and record the copies' locations."""
        if not found:
            return []
        homes = self._homes(name, found)
        of_queues = [(queue, copy) for copy, queue in zip(found, homes, strict=True) if queue]
        self._note_copies(name, of_queues)
        sent = self._sent_records((queue, copy.job.job_id) for queue, copy in of_queues)
        names = self._names(name, [(queue, copy.job) for copy, queue in zip(found, homes, strict=True)])
        reports = []
        reported: set[tuple[object, ...]] = set()
        for copy, queue, job_name in zip(found, homes, names, strict=True):
            one = copy.job
            of_run = self._of_run(sent.get((queue or "", one.job_id)), one.fields)
            ended = bullmq_job_hash.executions(one.fields), one.fields.get(b"failedReason"), bool(one.crashes)
            # Copies next to each other report the same attempt: the first is read.
            name_of_it = (queue, one.job_id, "" if queue else copy.id, *ended)
            if of_run is None or name_of_it in reported:
                continue
            reported.add(name_of_it)
            fields = one.fields if not job_name else {**one.fields, b"name": job_name.encode()}
            try:
                report = bullmq_job_hash.build_report(
                    self._wire.source,
                    queue or name,
                    one.job_id if queue else unclear_id(name, one.job_id, copy.id),
                    fields,
                    major or 6,
                    crashes=one.crashes,
                    copy=(name, copy.id, copy.made),
                    more={} if queue else {"unclear": True},
                    flow={"deadLetterQueue": name, "deadLetterId": copy.id},
                    tenant_paths=self._tenant_paths,
                    **of_run,
                )
                reports.append(report)
            except Exception as error:  # one copy of a page: the others are still read
                raw = bullmq_job_hash.pack(bullmq_job_hash.Message(major or 6, name, copy.id, dict(one.fields)))
                self.unread.append(Unread.from_error(name, copy.id, raw, error))
        return reports

    def _of_run(self, sent: SentRecord | None, fields: Mapping[bytes, bytes]) -> dict[str, Any] | None:
        """Return the run of a copy: the one sent by us last, if the job failed later. None: an earlier run.

        An earlier run is known, because we sent the job from its filed report.
        """
        if sent is None:
            return {}
        ended = bullmq_job_hash.ended_at(fields)
        return {"lineage": sent.lineage, "before": sent.before} if ended and ended > sent.at - _CLOCKS_S else None

    # -- own queues of jobs
    # ----------------------------------------------------------------------------------------------

    def _homes(self, name: str, found: Sequence[Copy]) -> list[str | None]:
        """Return each job's queue: the named one, the configured one, or the only queue that has or recently had
        exactly this job.
        """
        of = self._configured[name].of if name in self._configured else ""
        unsaid = [copy.job for copy in found if copy.job.queue is None and not of]
        owners = [queue for queue in self._wire.queues() if not self.is_one(queue)][:_MOST_QUEUES] if unsaid else []
        searched = self._owners(unsaid, owners)
        searched |= self._owners_by_events([one for one in unsaid if one.job_id not in searched], owners)
        homes = [copy.job.queue or of or searched.get(copy.job.job_id) for copy in found]
        self.unclear[name] = self.unclear.get(name, 0) + sum(home is None for home in homes)
        return homes

    def _owners(self, jobs: Sequence[Carried], queues: Sequence[str]) -> dict[str, str]:
        """Return job id -> queue with a job of this id, created in the same millisecond under the same name."""
        wanted = [one for one in jobs if one.fields.get(b"timestamp") and one.fields.get(b"name")]
        if not wanted or not queues:
            return {}
        pipe = self._wire.client.pipeline(transaction=False)
        for one in wanted:
            for queue in queues:
                pipe.hmget(self._wire.base(queue) + one.job_id, "timestamp", "name")
        answers = iter(pipe.execute(raise_on_error=False))
        found: dict[str, str] = {}
        for one in wanted:
            same = [one.fields[b"timestamp"], one.fields[b"name"]]
            have = [queue for queue in queues if next(answers) == same]
            if len(have) == 1:
                found[one.job_id] = have[0]
        return found

    def _owners_by_events(self, jobs: Sequence[Carried], queues: Sequence[str]) -> dict[str, str]:
        """Return job id -> queue in which this id failed at that time for the same reason, for jobs that their
        queue dropped at once.
        """
        ended = {one.job_id: (bullmq_job_hash.ended_at(one.fields) or 0.0) * 1000 for one in jobs}
        words = {one.job_id: text(one.fields.get(b"failedReason", b"")[:REASON]) for one in jobs}
        begin = min((at for at in ended.values() if at), default=0.0) - _MINUTE_MS
        if begin <= 0:
            return {}
        have: dict[str, set[str]] = {}
        for queue in queues[:_MOST_STREAMS]:
            for job_id, events in self._wire.events_of(queue, list(ended), f"{begin:.0f}").items():
                near = [one for one in events if one.event == "failed" and abs(one.ms - ended[job_id]) < _MINUTE_MS]
                if any(one.more == words[job_id] for one in near):
                    have.setdefault(job_id, set()).add(queue)
        return {job_id: min(mine) for job_id, mine in have.items() if len(mine) == 1}

    def _names(self, name: str, found: Sequence[tuple[str | None, Carried]]) -> list[str]:
        """Return the names of jobs that do not contain theirs: from their queue's events, else as configured; "" if
        unknown.
        """
        configured_name = self._configured[name].job_name if name in self._configured else ""
        wanted: dict[str, set[str]] = {}
        for queue, one in found:
            if queue and b"name" not in one.fields:
                wanted.setdefault(queue, set()).add(one.job_id)
        known = {(queue, job_id): n for queue, ids in wanted.items() for job_id, n in self._added(queue, ids).items()}
        names = [
            "" if b"name" in one.fields else known.get((queue or "", one.job_id), configured_name)
            for queue, one in found
        ]
        lost = sum(not n and b"name" not in one.fields for n, (_, one) in zip(names, found, strict=True))
        self.nameless[name] = self.nameless.get(name, 0) + lost
        return names

    def _added(self, queue: str, ids: set[str]) -> dict[str, str]:
        """Return the names under which these jobs were added, if the event stream still has them."""
        found: dict[str, str] = {}
        end, examined = "+", 0
        while examined < _MOST_EVENTS and len(found) < len(ids):
            page: Any = self._wire.client.xrevrange(self._wire.key(queue, "events"), max=end, count=1_000)
            for entry, fields in page:
                end = f"({text(entry)}"
                if fields.get(b"event") == b"added" and text(fields.get(b"jobId", b"")) in ids and b"name" in fields:
                    found.setdefault(text(fields[b"jobId"]), text(fields[b"name"]))
            examined += len(page)
            if len(page) < 1_000:
                break
        return found

    def _sent_records(self, jobs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], SentRecord]:
        """Return the records of sending these jobs, by queue and id."""
        wanted = list(dict.fromkeys(jobs))
        pipe = self._wire.client.pipeline(transaction=False)
        for queue, job_id in wanted:
            pipe.get(self._wire.sent_key(queue) + job_id)
        found = {
            job: _parse_sent(record) for job, record in zip(wanted, pipe.execute(), strict=True) if record is not None
        }
        return {job: sent for job, sent in found.items() if sent is not None}

    # -- locations of copies
    # ---------------------------------------------------------------------------------------------

    def _note_copies(self, name: str, copies: Sequence[tuple[str, Copy]]) -> None:
        entries: list[str] = []
        for queue, copy in copies:
            where = json.dumps([name, copy.id, copy.made])
            if len(queue) + len(copy.job.job_id) + len(where) <= _CHARACTERS:
                entries += [copies_field(queue, copy.job.job_id), where]
        if entries:
            self._wire.note(lambda: self._note(keys=[self.copies_key], args=entries))

    def copies_of(self, jobs: Sequence[Ref]) -> dict[Ref, list[tuple[str, str, str]]]:
        """Return the known copies of each job: (dead-letter queue, id there, creation time or "" if unknown)."""
        names = [copies_field(job.queue, job.job_id) for job in jobs]
        known: Any = self._wire.client.hmget(self.copies_key, names) if jobs else []
        found: dict[Ref, list[tuple[str, str, str]]] = {}
        for job, noted in zip(jobs, known, strict=True):
            if isinstance(noted, bytes):
                found[job] = _parse_copies(noted)
            elif self.is_one(job.queue) and (copy := copy_of_unclear(job.queue, job.job_id)):
                found[job] = [(job.queue, copy, "")]
        return found

    def find_targets(self, name: str, copies: Mapping[str, Ref]) -> dict[Target, Ref]:
        """Return the copies (by id in this queue) of exactly this failure.

        Not of a later failure of another job with the same id, nor another dead letter with the copy's id.
        """
        found: dict[Target, Ref] = {}
        for copy, fields, _ in self._wire.jobs(name, list(copies)):
            one, job = find_carried(fields.get(b"data", b"")), copies[copy]
            if one is None or job.at is None or job.job_id not in (one.job_id, unclear_id(name, one.job_id, copy)):
                continue
            times = (bullmq_job_hash.ended_at(one.fields), bullmq_job_hash.made_at(one.fields))
            # The copy was written a moment after the failure, by another clock.
            if one.queue in (None, job.queue) and all(at is None or at <= job.at + _MINUTE_MS / 1000 for at in times):
                found[Target(copy, made=fields.get(b"timestamp", b""))] = job
        return found

    def still_present(self, jobs: Sequence[Ref]) -> dict[Ref, bool]:
        """Return whether a copy is still in its queue, for jobs whose copies are known."""
        found = self.copies_of(jobs)
        pipe = self._wire.client.pipeline(transaction=False)
        places = [(job, *place) for job, copies in found.items() for place in copies]
        for _, name, copy, made in places:
            key = self._wire.base(name) + copy
            # Another copy may have its id.
            pipe.hget(key, "timestamp") if made else pipe.exists(key)
        answers = zip(places, self._wire.answers(pipe), strict=True)
        standing = {job for (job, _, _, made), answer in answers if answer == (made.encode() if made else 1)}
        return {job: job in standing for job in found}

    def forget(self, jobs: Iterable[Ref]) -> None:
        """Forget the copies of these jobs, which are gone."""
        fields = [copies_field(job.queue, job.job_id) for job in jobs]
        if fields:
            self._wire.note(lambda: self._wire.client.hdel(self.copies_key, *fields))


_CLOCKS_S = 1.0  # tolerance between the clocks of Redis and of the copy's writer

# Adds locations of copies, each once, at most some hundred per job: the step that sends the job removes them all.
# KEYS[1]: the hash of copies. ARGV: job, copy, job, copy …
_NOTE = """
for i = 1, #ARGV, 2 do
  local known = redis.call('HGET', KEYS[1], ARGV[i])
  if not known then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  elseif not string.find('\\n' .. known .. '\\n', '\\n' .. ARGV[i + 1] .. '\\n', 1, true) and #known < 8192 then
    redis.call('HSET', KEYS[1], ARGV[i], known .. '\\n' .. ARGV[i + 1])
  end
end
"""


def copies_field(queue: str, job_id: str) -> str:
    """Return a job's field in the hash of copies. Queue names contain no colon."""
    return f"{queue}:{job_id}"


def _parse_copies(noted: bytes) -> list[tuple[str, str, str]]:
    found = []
    for line in noted.splitlines():
        try:
            name, copy, *made = json.loads(line)
            place = str(name), str(copy), str(made[0]) if made else ""
            "".join(place).encode()  # raises for a lone surrogate, which no name in Redis has
            found.append(place)
        except (ValueError, TypeError, RecursionError):
            continue
    return found


def _parse_sent(record: bytes) -> SentRecord | None:
    """Parse the record written by `send.lua`."""
    try:
        value = json.loads(record)
        lineage = Lineage.from_header(value["lineage"])
        return (
            None
            if lineage is None
            else SentRecord(lineage, (int(value["made"]), int(value["stacks"])), value["at"] / 1000)
        )
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):
        return None
