"""BullMQ's keys in one Redis: queues, major versions, and job hashes read within bounds.

Keys of a queue start with `<prefix>:<queue>:` (BullMQ 4.18, 5.81, 6.7, measured): `meta`, its settings; `wait`,
`active`, `paused`, lists; `prioritized`, `delayed`, `waiting-children`, `completed`, `failed`, sorted sets; `events`, a
stream; and a hash per job under its id.
"""

from __future__ import annotations

import base64
import binascii
import bisect
import contextlib
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import NoPermissionError

from jobs_admin.core import keys
from jobs_admin.sources.base import SourceRefused
from jobs_admin.sources.bullmq import job_hash as bullmq_job_hash
from jobs_admin.sources.one_redis import SENDING, OneRedis, escape_glob, now_ms

MAJORS = (4, 5, 6)
BULL = 3  # stands for Bull 3 and 4, which state no version, beside the majors of BullMQ in scripts and messages

_HERE = Path(__file__).parent
RIGHTS = (_HERE / "rights.lua").read_text()
_QUEUES_FOR_S = 60  # validity of a discovery, which scans the complete keyspace
_GO_ON_S = 1  # interval until an incomplete scan continues
_MAJORS_FOR_S = 5  # validity of a version for reading; a send checks it in the same step
_SCANNED_KEYS = 200_000  # per call: the next call continues, in case this Redis contains millions
_QUEUES = 1_000  # maximum that is read
_READ_BYTES = 8_000_000  # of jobs per call
LARGEST_FIELD = 16_000_000  # maximum bytes of a job's data that are read
_STRETCH, _STRETCHES = 2_000, 200  # entries per call, and calls per request
REASON = 20_000  # bytes of a failure's reason in an event (`events.lua`)
BULLMQ_KEYS = ("events", "marker", "prioritized")  # that no queue of Bull has
_VERSION = re.compile(r"bullmq:(\d+)\.")
_NAMES = (*bullmq_job_hash.STORED_FIELDS, *bullmq_job_hash.REPORTED_FIELDS)


@dataclass(frozen=True, slots=True)
class Version:
    """Version of the BullMQ that last wrote to a queue."""

    written_by: str = ""  # "" if not stated
    is_paused: bool = False
    major: int | None = None  # None if not stated or unknown
    backend: str = ""  # that reads the queue, if it is not of this source's system

    @classmethod
    def of_meta(cls, written_by: str, is_paused: bool) -> Version:
        found = _VERSION.match(written_by)
        return cls(written_by, is_paused, int(found[1]) if found and int(found[1]) in MAJORS else None)


@dataclass(frozen=True, slots=True)
class JobEvent:
    """A relevant event of a job."""

    entry: str  # its id in the stream: ms of the server's clock, and a number
    event: str
    job_id: str
    more: str

    @property
    def ms(self) -> int:
        return int(self.entry.partition("-")[0])


@dataclass(frozen=True, slots=True)
class Events:
    """A section of a queue's events (`events.lua`)."""

    last: str  # the last entry read; "" if there was none
    is_more: bool  # unread entries may follow
    events: list[JobEvent]
    ran: dict[int, int]  # minute since 1970, by the server's clock -> jobs that succeeded

    @classmethod
    def read(cls, answer: Sequence[Any]) -> Events:
        last, more, events, ran = answer
        counts = [int(one) for one in ran]
        return cls(
            text(last),
            bool(more),
            [JobEvent(*(text(part) for part in one)) for one in events],
            dict(zip(counts[::2], counts[1::2], strict=True)),
        )


@dataclass(frozen=True, slots=True)
class Target:
    """A job to remove, distinguished from another with its id; "" in either field: any."""

    job_id: str
    failed_until: str = ""  # ms
    made: str | bytes = ""  # creation time by its hash


class Wire(OneRedis):
    """One Redis with BullMQ's keys under one prefix."""

    system = "BullMQ"
    majors: tuple[int, ...] = MAJORS
    known = "BullMQ 4, 5 and 6"  # versions that are written
    marks = ("meta", "hash")  # key by which a queue is found, and its type
    has_dead_letter_queues = True
    has_events = True  # a stream per queue

    def __init__(self, source: str, url: str, prefix: str, queues: Sequence[str], store_prefix: str) -> None:
        if url.startswith("postgres"):
            raise SourceRefused(
                f"Source {source}: BullMQ's jobs in PostgreSQL cannot be read yet, only those in Redis: give a redis:// URL."
            )
        super().__init__(source, url, self.system, queues, store_prefix)
        self.prefix = prefix
        self._read = self.client.register_script((_HERE / "read.lua").read_text())
        self._events = self.client.register_script((_HERE / "events.lua").read_text())
        self._send = {major: self.client.register_script(_script(major, SENDING, "send.lua")) for major in self.majors}
        self._remove = {major: self.client.register_script(_script(major, "", "remove.lua")) for major in self.majors}
        self._left_out = False  # a scan found queues of a neighbouring system
        self.has_others = False  # no queue was found, and some of a neighbouring system were
        self._walking = threading.Lock()
        self._cursor = 0  # position of the keyspace scan
        self._walked: set[str] = set()  # queues found by this scan
        self._found: tuple[float, list[str]] | None = None
        self._versions: tuple[float, dict[str, Version]] | None = None

    def base(self, queue: str) -> str:
        return f"{self.prefix}:{queue}:"

    def key(self, queue: str, name: str) -> str:
        return f"{self.prefix}:{queue}:{name}"

    def sent_key(self, queue: str) -> str:
        return keys.sent(self.source, queue, self.store_prefix)

    # Queues

    def queues(self) -> list[str]:
        """Return the configured queues, else all that are found, by name."""
        if self._named:
            return self._named
        with self._walking:
            if self._found is None or time.monotonic() >= self._found[0]:
                self._found = self._walk()
            return self._found[1]

    def _walk(self) -> tuple[float, list[str]]:
        mark, kind = self.marks
        head, tail = f"{self.prefix}:", f":{mark}"
        names = (key[len(head) : -len(tail)] for key in self._scan(escape_glob(head) + "*" + tail, kind))
        # A colon is not allowed in a queue's name: the key is a job's.
        self._walked.update(self.select([name for name in names if name and ":" not in name]))
        is_over, known = self._cursor == 0, self._walked
        if is_over:
            self._walked = set()
        else:  # until the scan is complete, those of the previous one are valid
            known = known.union(self._found[1] if self._found else ())
        self.unread = max(0, len(known) - _QUEUES)
        if is_over:
            self.has_others, self._left_out = not known and self.find_others(), False
        return time.monotonic() + (_QUEUES_FOR_S if is_over else _GO_ON_S), sorted(known)[:_QUEUES]

    def select(self, queues: list[str]) -> list[str]:
        """Return those of the found queues that are of this system."""
        versions = self.versions_of(queues)
        self._left_out = self._left_out or any(one.backend for one in versions.values())
        return [queue for queue in queues if not versions[queue].backend]

    def find_others(self) -> bool:
        """Return whether there is a queue of Bull under this prefix, among the first keys."""
        if self._left_out:
            return True
        pattern, cursor = escape_glob(f"{self.prefix}:") + "*:id", 0
        for _ in range(_SCANNED_KEYS // 2_000):
            cursor, page = self.client.scan(cursor, match=pattern, count=2_000, _type="string")
            if page or not cursor:
                return bool(page)
        return False

    def rediscover(self) -> None:
        """Scan the keyspace again at the next call."""
        with self._walking:
            self._found, self._cursor, self._walked = None, 0, set()
        self._versions = None

    def _scan(self, pattern: str, kind: str) -> Iterator[str]:
        """Scan from the last position, which is 0 after the end."""
        for _ in range(_SCANNED_KEYS // 2_000):
            self._cursor, page = self.client.scan(self._cursor, match=pattern, count=2_000, _type=kind)
            yield from (text(key) for key in page)
            if not self._cursor:
                break

    def versions(self) -> dict[str, Version]:
        """Return each queue's version, from its `meta`."""
        if self._versions and time.monotonic() - self._versions[0] < _MAJORS_FOR_S:
            return self._versions[1]
        self._versions = (time.monotonic(), self.versions_of(self.queues()))
        return self._versions[1]

    def versions_of(self, queues: Sequence[str]) -> dict[str, Version]:
        pipe = self.client.pipeline(transaction=False)
        for queue in queues:
            pipe.hmget(self.key(queue, "meta"), "version", "paused")
            pipe.exists(self.key(queue, "id"))
            pipe.hlen(self.key(queue, "meta"))
            pipe.exists(*(self.key(queue, name) for name in BULLMQ_KEYS))
        answers = iter(pipe.execute(raise_on_error=False))
        found = {}
        for queue in queues:
            meta, has_id, settings, has_keys = (next(answers) for _ in range(4))
            if isinstance(meta, list):
                found[queue] = Version.of_meta(text(meta[0] or b""), meta[1] is not None)
            else:
                found[queue] = Version()
            # Bull notes a pause there.
            if has_id == 1 and has_keys == 0 and settings == int(found[queue].is_paused):
                found[queue] = Version("Bull, not BullMQ", backend="bull")
        return found

    def now_ms(self) -> int:
        return now_ms(self.client)

    # Jobs

    def jobs(self, queue: str, ids: Sequence[str]) -> Iterator[tuple[str, dict[bytes, bytes], int]]:
        """Yield id, existing fields that are not too large, and bytes of its data; {} for a missing job.

        Reads in calls of a few megabytes.
        """
        rest = list(ids)
        while rest:
            answers = self._read(
                keys=[self.base(queue)], args=[_READ_BYTES, LARGEST_FIELD, len(_NAMES), *_NAMES, *rest[:500]]
            )
            for job_id, (size, *values) in zip(rest, answers, strict=False):
                yield job_id, {n: v for n, v in zip(_NAMES, values, strict=False) if v is not None}, size
            rest = rest[max(1, len(answers)) :]

    def fitting(self, queue: str, ids: Sequence[str], most: int) -> int:
        """Return the number of jobs, from the first, with at most `most` bytes of data in total; at least one."""
        pipe = self.client.pipeline(transaction=False)
        for job_id in ids:
            pipe.hstrlen(self.key(queue, job_id), "data")
        sizes = [number(size) for size in pipe.execute(raise_on_error=False)]
        return max(1, bisect.bisect_right(list(itertools.accumulate(sizes)), most))

    def events(self, begins: Mapping[str, str], count: int) -> tuple[dict[str, Events], dict[str, str]]:
        """Return relevant events of each queue from its position (as for XRANGE), at most `count` entries; and the
        queues whose events cannot be read, with the reason.
        """
        pipe = self.client.pipeline(transaction=False)
        for queue, begin in begins.items():
            self._events(
                keys=[self.key(queue, "events"), self.base(queue)],
                args=[begin, count, self.sent_key(queue), "0"],
                client=pipe,
            )
        found, failing = {}, {}
        for queue, answer in zip(begins, self.answers(pipe), strict=True):
            try:
                if isinstance(answer, Exception):
                    raise answer
                found[queue] = Events.read(answer)
            except (redis.ResponseError, ValueError, TypeError) as error:  # for a key that is not BullMQ's
                failing[queue] = f"its events: {error}"
        return found, failing

    def events_of(self, queue: str, ids: Sequence[str], begin: str) -> dict[str, list[JobEvent]]:
        """Return all events of these jobs since then that the stream still has, oldest first."""
        return self.events_from(queue, ids, begin)[0]

    def events_from(self, queue: str, ids: Sequence[str], begin: str) -> tuple[dict[str, list[JobEvent]], str]:
        """Return events like `events_of`, and the position to continue from later."""
        found: dict[str, list[JobEvent]] = {}
        for _ in range(_STRETCHES):
            page = Events.read(
                self._events(
                    keys=[self.key(queue, "events"), self.base(queue)],
                    args=[begin, _STRETCH, self.sent_key(queue), "1", *ids],
                )
            )
            for one in page.events:
                found.setdefault(one.job_id, []).append(one)
            begin = f"({page.last}" if page.last else begin
            if not page.is_more:
                break
        return found, begin

    def send(self, major: int, replay: str, copies: str, arguments: Sequence[Any]) -> list[int]:
        answers: list[int] = self._send[major](keys=[self.ledger(replay), copies], args=list(arguments))
        return answers

    def remove(self, major: int, queue: str, jobs: Sequence[Target], states: Sequence[str]) -> list[int]:
        targets = [part for job in jobs for part in (job.job_id, job.failed_until, job.made)]
        answers: list[int] = self._remove[major](
            keys=[self.base(queue), self.sent_key(queue)], args=[len(states), *states, *targets]
        )
        return answers

    # Write access

    def note(self, write: Callable[[], Any]) -> None:
        """Write our own records beside the user's keys; skipped for a read-only user."""
        with contextlib.suppress(NoPermissionError, redis.exceptions.ReadOnlyError):
            write()

    def why_read_only(self) -> str:
        """Return why writing is not possible; "" if it is."""
        return self.why_no_writing(f"{self.store_prefix}:{{{self.source}}}:may-write")

    def refuse_read_only(self) -> None:
        """Raise SourceRefused if writing is not possible."""
        if why := self.call(self.why_read_only):
            raise SourceRefused(f"{why} Nothing was changed. Give its URL another user, or that of the primary.")


def _script(major: int, shared: str, name: str) -> str:
    """Return a script with BullMQ's own scripts of that major version as functions before ours, so that all is one
    step.
    """
    own = sorted((_HERE / f"lua/{'bull' if major == BULL else major}").glob("*.lua"))
    functions = [f"local function bullmq_{path.stem}(KEYS, ARGV)\n{path.read_text()}\nend" for path in own]
    if major == BULL:
        shared = RIGHTS + shared
    return "\n".join([f"local bullmq_major = {major}", *functions, shared + (_HERE / name).read_text()])


def text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def number(answer: object) -> int:
    return answer if isinstance(answer, int) else 0


def find_workers(wire: Wire) -> dict[str, set[str]] | None:
    """Return workers by the names of their connections (`bull:<queue in base64>`); None without permission to list
    connections.
    """
    try:
        clients = wire.client.client_list()
    except redis.ResponseError:
        return None
    found: dict[str, set[str]] = {}
    for client in clients:
        queue = _works_on(wire, text(client.get("name", "")))
        if queue is not None:
            found.setdefault(queue, set()).add(text(client.get("addr", "")))
    return found


def _works_on(wire: Wire, name: str) -> str | None:
    head = f"{wire.prefix}:"
    if not name.startswith(head):
        return None
    try:
        return base64.b64decode(name[len(head) :].partition(":")[0], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
