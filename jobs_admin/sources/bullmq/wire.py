"""BullMQ's keys in one Redis: its queues, their majors, and their jobs' hashes read within bounds.

Keys of a queue begin with `<prefix>:<queue>:` (BullMQ 4.18, 5.81, 6.7, measured): `meta` its settings, `wait` `active` `paused` lists,
`prioritized` `delayed` `waiting-children` `completed` `failed` sorted sets, `events` a stream, and each job a hash under its id.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import redis
from redis.exceptions import AuthorizationError, NoPermissionError

from jobs_admin.core import keys
from jobs_admin.sources.base import SourceRefused, SourceUnreachable
from jobs_admin.sources.bullmq import job_hash as bullmq_job_hash
from jobs_admin.sources.one_redis import TIMEOUT_S, dial, escape_glob

MAJORS = (4, 5, 6)

_HERE = Path(__file__).parent
_QUEUES_FOR_S = 60  # how long a discovery is believed; it walks the whole keyspace
_GO_ON_S = 1  # until a walk that has not come to the end goes on
_MAJORS_FOR_S = 5  # how long a version is believed for reading; a send checks it in the same step
_SCANNED_KEYS = 200_000  # at once: the next question goes on, should this Redis also hold millions
_QUEUES = 1_000  # that are read
_READ_BYTES = 8_000_000  # of jobs in one call
LARGEST_FIELD = 16_000_000  # bytes of a job's data that are read
_STRETCH, _STRETCHES = 2_000, 200  # entries of one call, and calls of one question
REASON = 20_000  # bytes of a failure's reason in an event (`events.lua`)
_VERSION = re.compile(r"bullmq:(\d+)\.")
_NAMES = (*bullmq_job_hash.STORED_FIELDS, *bullmq_job_hash.REPORTED_FIELDS)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Version:
    """Version of the BullMQ that wrote to a queue last."""

    written_by: str = ""  # "" where it states none
    is_paused: bool = False

    @property
    def major(self) -> int | None:
        """Major version; None where it is not stated, or unknown."""
        found = _VERSION.match(self.written_by)
        return int(found[1]) if found and int(found[1]) in MAJORS else None


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event of a job that matters here."""

    entry: str  # its id in the stream: ms of the server's clock, and a number
    event: str
    job_id: str
    more: str

    @property
    def ms(self) -> int:
        return int(self.entry.partition("-")[0])


@dataclass(frozen=True, slots=True)
class Events:
    """A stretch of a queue's events (`events.lua`)."""

    last: str  # the last entry that was read, "" where there was none
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
    """A job to take out, distinguished from another that has its id meanwhile; "" of either bound: any."""

    job_id: str
    failed_until: str = ""  # ms
    made: str | bytes = ""  # by its hash


class Wire:
    """One Redis with BullMQ's keys under one prefix. May be used by several threads."""

    def __init__(self, source: str, url: str, prefix: str, queues: Sequence[str], store_prefix: str) -> None:
        self.source = source
        self.prefix = prefix
        self.store_prefix = store_prefix
        self.client, self.where = _client(source, url)
        self._queues = tuple(queues)
        self._read = self.client.register_script((_HERE / "read.lua").read_text())
        self._events = self.client.register_script((_HERE / "events.lua").read_text())
        self._send = {major: self.client.register_script(_script(major, "send.lua")) for major in MAJORS}
        self._remove = {major: self.client.register_script(_script(major, "remove.lua")) for major in MAJORS}
        self._walking = threading.Lock()
        self._cursor = 0  # up to where the keyspace was walked
        self._walked: set[str] = set()  # queues that this walk met
        self.unread = 0  # queues that were met, and are too many to be read
        self._found: tuple[float, list[str]] | None = None
        self._versions: tuple[float, dict[str, Version]] | None = None

    def base(self, queue: str) -> str:
        return f"{self.prefix}:{queue}:"

    def key(self, queue: str, name: str) -> str:
        return f"{self.prefix}:{queue}:{name}"

    def sent_key(self, queue: str) -> str:
        return keys.sent(self.source, queue, self.store_prefix)

    def ledger(self, replay: str) -> str:
        return keys.ledger(self.source, replay, self.store_prefix)

    # What there is

    def queues(self) -> list[str]:
        """The configured queues, else all with a `meta` of BullMQ, by name."""
        if self._queues:
            return sorted(set(self._queues))
        with self._walking:
            if self._found is None or time.monotonic() >= self._found[0]:
                self._found = self._walk()
            return self._found[1]

    def _walk(self) -> tuple[float, list[str]]:
        head, tail = f"{self.prefix}:", ":meta"
        for key in self._scan(escape_glob(head) + "*" + tail):
            name = key[len(head) : -len(tail)]
            if name and ":" not in name:  # which no queue's name may hold: it would be a job's
                self._walked.add(name)
        is_over, known = self._cursor == 0, self._walked
        if is_over:
            self._walked = set()
        else:  # until the end is reached, those of the walk before are believed
            known = known.union(self._found[1] if self._found else ())
        self.unread = max(0, len(known) - _QUEUES)
        return time.monotonic() + (_QUEUES_FOR_S if is_over else _GO_ON_S), sorted(known)[:_QUEUES]

    def rediscover(self) -> None:
        """Walk the keyspace again at the next question."""
        with self._walking:
            self._found, self._cursor, self._walked = None, 0, set()
        self._versions = None

    def _scan(self, pattern: str) -> Iterator[str]:
        """Scan from the last stop, which is 0 after the end."""
        for _ in range(_SCANNED_KEYS // 2_000):
            self._cursor, page = self.client.scan(self._cursor, match=pattern, count=2_000, _type="hash")
            yield from (text(key) for key in page)
            if not self._cursor:
                break

    def versions(self) -> dict[str, Version]:
        """Version of each queue, by its `meta`."""
        if self._versions and time.monotonic() - self._versions[0] < _MAJORS_FOR_S:
            return self._versions[1]
        self._versions = (time.monotonic(), self.versions_of(self.queues()))
        return self._versions[1]

    def versions_of(self, queues: Sequence[str]) -> dict[str, Version]:
        pipe = self.client.pipeline(transaction=False)
        for queue in queues:
            pipe.hmget(self.key(queue, "meta"), "version", "paused")
        answers = pipe.execute(raise_on_error=False)
        return {
            queue: Version(text(answer[0] or b""), answer[1] is not None) if isinstance(answer, list) else Version()
            for queue, answer in zip(queues, answers, strict=True)
        }

    def now_ms(self) -> int:
        seconds, micros = self.client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    # Jobs

    def jobs(self, queue: str, ids: Sequence[str]) -> Iterator[tuple[str, dict[bytes, bytes], int]]:
        """Id, fields that are there and not too large, and bytes of its data; {} of a job that is not there.

        Some at a time, of at most some megabytes together.
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
        """Number of jobs, from the first one, that have at most `most` bytes of data together; at least one where there
        is one."""
        pipe = self.client.pipeline(transaction=False)
        for job_id in ids:
            pipe.hstrlen(self.key(queue, job_id), "data")
        sizes = [number(size) for size in pipe.execute(raise_on_error=False)]
        return max(1, bisect.bisect_right(list(itertools.accumulate(sizes)), most))

    def events(self, begins: Mapping[str, str], count: int) -> tuple[dict[str, Events], dict[str, str]]:
        """Relevant events of each queue from its place (as XRANGE has it), `count` entries at most; and the queues of
        which they cannot be read, with the reason."""
        pipe = self.client.pipeline(transaction=False)
        for queue, begin in begins.items():
            self._events(
                keys=[self.key(queue, "events"), self.base(queue)],
                args=[begin, count, self.sent_key(queue), "0"],
                client=pipe,
            )
        found, failing = {}, {}
        for queue, answer in zip(begins, self.answers(pipe) if begins else [], strict=True):
            try:
                if isinstance(answer, Exception):
                    raise answer
                found[queue] = Events.read(answer)
            except (redis.ResponseError, ValueError, TypeError) as error:  # of a key that is none of BullMQ's
                failing[queue] = f"its events: {error}"
        return found, failing

    def events_of(self, queue: str, ids: Sequence[str], begin: str) -> dict[str, list[JobEvent]]:
        """All events of these jobs since then that the stream still has, oldest first."""
        return self.events_from(queue, ids, begin)[0]

    def events_from(self, queue: str, ids: Sequence[str], begin: str) -> tuple[dict[str, list[JobEvent]], str]:
        """Events as `events_of`, and the place at which to go on later."""
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
        answers: list[int] = self._remove[major](keys=[self.base(queue)], args=[len(states), *states, *targets])
        return answers

    def answers(self, pipe: Any) -> list[Any]:
        """Results of a pipeline: an error where a key is of another kind.

        Any other error is that of all, and raised: a server that is busy, or denies us a command, gives no answer about
        any key.
        """
        found: list[Any] = pipe.execute(raise_on_error=False)
        for one in found:
            if isinstance(one, Exception) and not str(one).startswith("WRONGTYPE"):
                raise one
        return found

    # Whether we may write

    def note(self, write: Callable[[], Any]) -> None:
        """Write our own records beside the user's keys; a read-only user goes without."""
        with contextlib.suppress(NoPermissionError, redis.exceptions.ReadOnlyError):
            write()

    def why_read_only(self) -> str:
        """Reason why we may not write; "" where we may. Tried by deleting a key that does not exist."""
        try:
            self.client.delete(f"{self.store_prefix}:{{{self.source}}}:may-write")
        except NoPermissionError:
            return f"This user may not write in {self.where}."
        except redis.exceptions.ReadOnlyError:
            return f"{self.where} is a replica, which takes no writes."
        return ""

    def refuse_read_only(self) -> None:
        """Raise SourceRefused where we may not write."""
        if why := self.call(self.why_read_only):
            raise SourceRefused(f"{why} Nothing was changed. Give its URL another user, or that of the primary.")

    # The border to the network: one kind of error leaves it, and no password with it.

    def call(self, question: Callable[[], T]) -> T:
        try:
            return question()
        except redis.TimeoutError as error:
            raise SourceUnreachable(f"{self.where} did not answer within {TIMEOUT_S} s.") from error
        except (redis.AuthenticationError, AuthorizationError, NoPermissionError) as error:
            raise SourceUnreachable(
                f"{self.where} refused the login or a command. Check the user, its rights, and the password in the URL."
            ) from error
        except redis.ResponseError as error:
            if "REDRIVE refused" in str(error):
                raise Refusals(str(error).partition("REDRIVE refused ")[2]) from error
            if "MOVED" in str(error) or "CROSSSLOT" in str(error):
                raise SourceRefused(
                    f"{self.where} is a Redis Cluster, which cannot be used. Nothing was sent."
                ) from error
            # Full, read-only, loading, failing to write its file: it will pass, and nothing was written.
            raise SourceUnreachable(f"{self.where} did not accept it: {error}") from error
        except (redis.RedisError, OSError) as error:
            raise SourceUnreachable(f"{self.where} cannot be reached ({type(error).__name__}).") from error


class Refusals(Exception):
    """Messages that a script refused: token -> reason, in one word."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.why = {int(token): why for token, _, why in (part.partition(":") for part in text.split())}


def _script(major: int, name: str) -> str:
    """BullMQ's own scripts of that major as functions, and before ours, so that all is one step."""
    own = sorted((_HERE / f"lua/{major}").glob("*.lua"))
    functions = [f"local function bullmq_{path.stem}(KEYS, ARGV)\n{path.read_text()}\nend" for path in own]
    return "\n".join([f"local bullmq_major = {major}", *functions, (_HERE / name).read_text()])


def _client(name: str, url: str) -> tuple[redis.Redis, str]:
    """A client, and the server's name for display. Raises SourceRefused for a URL that is not one Redis."""
    if url.startswith("postgres"):
        raise SourceRefused(
            f"Source {name}: BullMQ's jobs in PostgreSQL cannot be read yet, only those in Redis: give a redis:// URL."
        )
    return dial(name, url, "a URL for BullMQ begins with redis://, rediss:// or unix://")


def text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def number(answer: object) -> int:
    return answer if isinstance(answer, int) else 0


def setting(settings: Mapping[Any, Any], name: str) -> str:
    return text(settings.get(name, settings.get(name.encode(), b"")))
