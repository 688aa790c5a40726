"""Connection to a queue system that is one Redis, and its name for display."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthorizationError, NoPermissionError, OutOfMemoryError, ReadOnlyError
from redis.retry import Retry

from jobs_admin.core import keys, sentinel_url, service_url, untrusted
from jobs_admin.sources.base import READ_ONLY, Finding, OutgoingMessage, Ref, SourceRefused, SourceUnreachable
from jobs_admin.worker.redis_clients import NoPrimary, from_url

TIMEOUT_S = 5
NOT_WRITTEN = (NoPermissionError, ReadOnlyError, OutOfMemoryError)  # errors for which our notes are skipped
SENDING = (Path(__file__).parent / "sending.lua").read_text()  # precedes a system's `send.lua`
CLOCKS_DIFFER_S = 60.0
_BYTES_PER_CALL = 4_000_000
T = TypeVar("T")

_SCHEMES = {"redis", "rediss", "redis+socket", "unix"}


def dial(name: str, url: str, begins: str) -> tuple[redis.Redis, str]:
    """Return a client for the source `name`, and the server's display name without password. Opens no connection.

    `begins`: sentence on valid URL schemes. Raises SourceRefused for a URL that is not of one Redis.
    """
    scheme, _, rest = url.partition("://")
    if sentinel_url.is_sentinel(url):
        return _dial_sentinels(name, url)
    # Checked before splitting: a list of servers has no single port. (A password may contain a comma.)
    if "cluster" in scheme or "," in rest.rpartition("@")[2].partition("/")[0] or ";" in url:
        raise SourceRefused(
            f"Source {name}: a Redis Cluster or a list of servers cannot be used. Name one Redis, or the "
            f"Sentinels of one set: {sentinel_url.EXAMPLE}."
        )
    try:
        parts = service_url.split(url)
        if parts.scheme not in _SCHEMES:
            raise SourceRefused(f"Source {name}: {begins}.")
        client = from_url(
            url,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            health_check_interval=30,
            # One retry for a connection that the server closed while idle; none after a timeout.
            retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
        )
        where = f"{parts.hostname}:{parts.port or 6379}" if parts.hostname else parts.path
    except service_url.Unreadable as error:
        raise SourceRefused(f"Source {name}: its URL cannot be read: {error}.") from error
    except (ValueError, TypeError) as error:
        raise SourceRefused(f"Source {name}: its URL cannot be read ({type(error).__name__}).") from error
    return client, f"Redis at {where}"


def _dial_sentinels(name: str, url: str) -> tuple[redis.Redis, str]:
    try:
        found = sentinel_url.parse(url)
        client = from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, health_check_interval=30)
    except service_url.Unreadable as error:
        raise SourceRefused(f"Source {name}: its URL cannot be read: {error}.") from error
    except (ValueError, TypeError) as error:
        raise SourceRefused(f"Source {name}: its URL cannot be read ({type(error).__name__}).") from error
    return client, f"Redis {found.display if found else ''}"


def escape_glob(text: str) -> str:
    """Return the text with Redis' glob characters escaped."""
    return "".join("\\" + c if c in "*?[]\\^" else c for c in text)


class JobRefusals(Exception):
    """Messages that a script refused, by token; its error is `REDRIVE refused TOKEN:REASON …`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._why = {int(token): why for token, _, why in (part.partition(":") for part in text.split())}

    def explain(self, texts: Mapping[str, str]) -> SourceRefused:
        """Return the first reason as text, and the tokens refused for it.

        The others are refused for their own reason when sent again.
        """
        why = next(iter(self._why.values()))
        tokens = [token for token, one in self._why.items() if one == why]
        return SourceRefused(f"Nothing was sent: {texts[why]}.", tokens=tokens)


@contextlib.contextmanager
def server_errors(where: str) -> Iterator[None]:
    """Convert the client's errors to SourceUnreachable, SourceRefused or JobRefusals, without the password."""
    try:
        yield
    except redis.TimeoutError as error:
        raise SourceUnreachable(f"{where} did not answer within {TIMEOUT_S} s.") from error
    except (redis.AuthenticationError, AuthorizationError, NoPermissionError) as error:
        raise SourceUnreachable(
            f"{where} refused the login or a command. Check the user, its rights, and the password in the URL."
        ) from error
    except redis.ResponseError as error:
        if "REDRIVE refused" in str(error):
            raise JobRefusals(str(error).partition("REDRIVE refused ")[2]) from error
        if "MOVED" in str(error) or "CROSSSLOT" in str(error):
            raise SourceRefused(f"{where} is a Redis Cluster, which cannot be used. Nothing was sent.") from error
        # Full, read-only, loading, failing to save: temporary, and nothing was written.
        raise SourceUnreachable(f"{where} refused the command: {error}") from error
    except NoPrimary as error:
        raise SourceUnreachable(f"{where}: {error}.") from error
    except (redis.RedisError, OSError) as error:
        raise SourceUnreachable(f"{where} cannot be reached ({type(error).__name__}).") from error


def call(where: str, question: Callable[[], T]) -> T:
    """Return the answer. Raises like `server_errors`."""
    with server_errors(where):
        return question()


class OneRedis:
    """A Redis with the keys of a queue system. Thread-safe."""

    def __init__(self, source: str, url: str, system: str, queues: Sequence[str], store_prefix: str) -> None:
        """Raises SourceRefused for an unusable URL."""
        self.source, self.store_prefix = source, store_prefix
        self.client, self.where = dial(source, url, f"a URL for {system} begins with redis://, rediss:// or unix://")
        self._named = sorted(set(queues))  # from the configuration; empty: all that are found
        self.unread = 0  # queues beyond the maximum, not read

    def ledger(self, replay: str) -> str:
        return keys.ledger(self.source, replay, self.store_prefix)

    def call(self, question: Callable[[], T]) -> T:
        return call(self.where, question)

    def answers(self, pipe: Any) -> list[Any]:
        """Return the results of a pipeline, with an error for a key of another type.

        Any other error affects all results and is raised: a server that is busy, or denies a command, gives no answer
        about any key.
        """
        found: list[Any] = pipe.execute(raise_on_error=False)
        for one in found:
            if isinstance(one, Exception) and not str(one).startswith("WRONGTYPE"):
                raise one
        return found

    def lengths(self, lists: Sequence[str]) -> list[int | None]:
        """Return the lengths of lists; None for a key of another type."""
        pipe = self.client.pipeline(transaction=False)
        for key in lists:
            pipe.llen(key)
        return [count(one) for one in self.answers(pipe)]

    def why_no_writing(self, key: str) -> str:
        """Return why writing is not possible; "" if it is. Tested by deleting `key`, which does not exist."""
        try:
            self.client.delete(key)
        except NoPermissionError:
            return f"This user may not write in {self.where}."
        except ReadOnlyError:
            return f"{self.where} is a replica, which takes no writes."
        return ""

    def why_no_sending(self, commands: Any) -> str:
        """Return why a pipeline's commands may not be run; "" if they may."""
        try:
            commands.execute()
        except NoPermissionError as error:
            return f"This user may not run all commands in {self.where}: {error}."[:300]
        except OutOfMemoryError:
            pass  # jobs can still be removed; the server itself refuses sending
        return ""


def count(answer: object) -> int | None:
    return answer if isinstance(answer, int) else None


def job_member(queue: str, job_id: str) -> str:
    """Return the name of a job in a key shared by all queues."""
    return f"{queue}\n{job_id}"


class LossMark:
    """Mark in a source's Redis that reveals a loss of data, with the time of its latest renewal."""

    def __init__(self, client: redis.Redis, key: str) -> None:
        self._client, self._key = client, key
        self.beat = 0  # latest renewal by this process, Unix ms

    def is_complete(self, last_beat: int, is_start: bool = True) -> bool:
        """Renew the mark. Return whether no data was lost since the beat `last_beat`, as far as the mark shows.

        `is_start`: nothing was read before. A missing mark was lost with the other data; a mark older than the last
        renewal is from a restored copy.
        """
        now = now_ms(self._client)
        since, beat = (untrusted.integer(one) for one in self._client.hmget(self._key, "since", "beat"))
        is_complete = last_beat == 0 or (beat is not None and beat >= last_beat)
        marks: dict[Any, Any] = {"beat": now}
        if since is None and last_beat == 0:
            since = 0 if is_start else now  # the mark could not be written before: a loss until now is unknown
        elif not is_complete:
            since = now
            if beat is None:
                marks["lost"] = now
        with contextlib.suppress(*NOT_WRITTEN):
            self._client.hset(self._key, mapping=marks | {"since": since or 0})
            self.beat = now
            return is_complete
        return True  # without write access there is no mark: nothing counts as gone, and nothing is read again

    def complete_since(self) -> int | None:
        """Return the time (ms) since which no data was lost; 0: none ever was. None: unknown."""
        return untrusted.integer(self._client.hget(self._key, "since"))

    def lost_at(self) -> int:
        """Return the latest time (ms) at which all data was lost; 0: never, as far as known. Less was lost if Redis
        stopped, or was restored from a copy.
        """
        return untrusted.integer(self._client.hget(self._key, "lost")) or 0


def is_evidence(since: int | None, died_at: float, expires_at: float, now: float) -> bool:
    """Return whether an absent dead job was removed by another's action. `since`: see `LossMark.complete_since`."""
    return since is not None and since <= died_at * 1000 and now < expires_at - CLOCKS_DIFFER_S


def now_ms(client: redis.Redis) -> int:
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


def read_only_findings(why: str) -> list[Finding]:
    """Return the finding on a source that is read-only for the reason `why`; none for ""."""
    if not why:
        return []
    text = f"{why} Failed jobs are read, but none is sent, changed or removed."
    fix = "Use the URL of the primary and a user that may write. If a version is unknown, upgrade Redrive."
    return [Finding(READ_ONLY, "high", text, fix)]


def unread_findings(queues: Sequence[str], unread: int, lack: str = "failed jobs are not shown") -> list[Finding]:
    """Return the finding on queues that were found beside these, and are not read; none for 0 of them.

    `unread`: their number. Dramatiq's may count a queue twice. `lack`: what the desk does not have of them.
    """
    if not unread:
        return []
    text = f"{len(queues):,} queues are read; up to {unread:,} more were found, and their {lack}."
    fix = 'List the queues to read in this source, queues = ["…"], or divide them among several sources.'
    return [Finding("queues-not-read", "high", text, fix)]


def memory_findings(client: redis.Redis, system: str) -> list[Finding]:
    """Return findings on a Redis that may delete jobs of `system` when its memory is full."""
    try:
        settings: Mapping[Any, Any] = client.config_get("maxmemory-policy")
    except redis.ResponseError:
        return [
            Finding(
                "settings-unknown",
                "info",
                "This user may not run CONFIG, so the settings of Redis are not checked.",
                "Allow CONFIG GET to this user, or check that maxmemory-policy is noeviction.",
            )
        ]
    found = settings.get("maxmemory-policy", settings.get(b"maxmemory-policy", b""))
    policy = found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)
    if policy in {"noeviction", ""}:
        return []
    return [
        Finding(
            "eviction",
            "high",
            f"maxmemory-policy is {policy}: when its memory is full, Redis silently deletes jobs or parts of them.",
            f"CONFIG SET maxmemory-policy noeviction, and the same in its configuration file: {system} needs it.",
        )
    ]


def batches(messages: Sequence[OutgoingMessage], most: int) -> Iterator[list[OutgoingMessage]]:
    """Split messages into calls that block Redis only for milliseconds."""
    part: list[OutgoingMessage] = []
    size = 0
    for outgoing in messages:
        if part and (len(part) == most or size + len(outgoing.raw) > _BYTES_PER_CALL):
            yield part
            part, size = [], 0
        part.append(outgoing)
        size += len(outgoing.raw)
    if part:
        yield part


def parts_by_queue(jobs: Sequence[Ref], most: int) -> Iterator[tuple[str, list[Ref]]]:
    """Split jobs by queue, with at most `most` per part."""
    by_queue: dict[str, list[Ref]] = defaultdict(list)
    for job in jobs:
        by_queue[job.queue].append(job)
    for queue, mine in by_queue.items():
        for start in range(0, len(mine), most):
            yield queue, mine[start : start + most]


def text_option(name: str, option: str, value: Any, example: str) -> str:
    """Return an option that must be non-empty text. Raises SourceRefused."""
    if not isinstance(value, str) or not value:
        raise SourceRefused(f'Source {name}: {option} is text, such as "{example}", not {str(value)[:40]!r}.')
    return value


def seconds_option(name: str, option: str, value: Any, least: float, most: float) -> float:
    """Return an option in seconds. Raises SourceRefused."""
    # also false for NaN
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise SourceRefused(
            f"Source {name}: {option} is a number of seconds, from {least} to {most}, not {str(value)[:40]!r}."
        )
    return float(value)


def tenant_option(name: str, value: Any) -> tuple[str, ...]:
    """Return the option `tenant`: one path or several. Raises SourceRefused."""
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, list | tuple) or not all(isinstance(one, str) and one for one in paths):
        raise SourceRefused(
            f'Source {name}: tenant must be the path of the tenant in a job, such as "kwargs.customer.id", or a list of paths, not '
            f"{str(value)[:40]!r}."
        )
    return tuple(paths)
