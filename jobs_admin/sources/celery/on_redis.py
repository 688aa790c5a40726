"""Adapter of Celery on a Redis (or Valkey) broker.

Celery stores no dead letters: our guard in the workers reports them. The broker counts waiting and running jobs, and
accepts replayed messages. Key names: kombu 5.7, `transport/redis.py`.
"""

from __future__ import annotations

import json
import time
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

import redis

from jobs_admin.core import keys, untrusted
from jobs_admin.sources.base import Capabilities, Depth, Finding, OutgoingMessage, SourceRefused, SourceSettings
from jobs_admin.sources.celery import message as celery_message
from jobs_admin.sources.ledger import ANSWERS, LEDGER_S, AtomicLedger
from jobs_admin.sources.one_redis import dial, escape_glob, server_errors

_SEND = (Path(__file__).parent / "send.lua").read_text()
_RECALL = (Path(__file__).parent / "recall.lua").read_text()
_GIVE_BACK = (Path(__file__).parent / "give_back.lua").read_text()

_BEGINS = "a URL for Celery begins with redis://, rediss://, redis+sentinel:// or redis+socket://, or for RabbitMQ with amqp:// or amqps://"
_MESSAGES_PER_CALL = 500  # 500 messages of 1 KB block Redis for about 7 ms
_BYTES_PER_CALL = 4_000_000
_RECALLED_PER_CALL = 100  # examined: 1 to 2 ms in the middle of 50,000
_RECALLED_BYTES_PER_CALL = 1_000_000
_LEDGER_PER_CALL = 1_000
_QUEUES_FOR_S = 60  # validity of a discovery, which scans the complete keyspace
_SCANNED_KEYS = 1_000_000  # limit of a scan, if the broker also contains a large cache or result store
_MOST_PROBED = 200  # unknown lists of which the oldest entry is read
_READ_UNACKED = 2_000  # fetched messages that are read; with more, the split is unknown

# Celery's own messages: remote control and events, not jobs.
_NOT_JOBS = ("celery.pidbox", "reply.celery.pidbox", "celeryev")

# Mark of a recalled token in a ledger.
_TAKEN_BACK = b"0"

T = TypeVar("T")


class CeleryOnRedis(celery_message.Reader, AtomicLedger):
    """A `sources.Source`. Options: `sep`, `priority_steps`, `global_keyprefix`, `unacked_key`, `outcome_within_s`."""

    can = Capabilities(
        atomic_send=True,
        edit=True,
        outcomes=True,
        recall=True,
        gives_back=True,
        redirect=True,
        same_id=True,
        attempts=True,
        priority=True,
    )

    def __init__(self, given: SourceSettings) -> None:
        name, options = given.name, given.options
        self.name = name
        self.outcome_within_s = float(options.get("outcome_within_s", 3600))
        self._queues = tuple(given.queues)
        self._sep = str(options.get("sep", "\x06\x16"))
        self._steps = sorted(int(step) for step in options.get("priority_steps", (0, 3, 6, 9)))
        self._prefix = str(options.get("global_keyprefix", ""))
        self._unacked = self._prefix + str(options.get("unacked_key", "unacked"))
        self._unacked_index = self._prefix + str(options.get("unacked_index_key", "unacked_index"))
        self._store_prefix = given.store_prefix
        self._client, self._where = dial(name, given.url, _BEGINS)
        AtomicLedger.__init__(self, self._client, self._call, self._ledger)
        self._url = given.url
        self._send = self._client.register_script(_SEND)
        self._recall = self._client.register_script(_RECALL)
        self._give_back = self._client.register_script(_GIVE_BACK)
        self._found: tuple[float, list[str], dict[tuple[str, str], str]] | None = None

    # Reading

    def depths(self) -> list[Depth]:
        """Return the depths of all known queues, by name. Raises SourceUnreachable."""
        return self._call(self._depths)

    def _depths(self) -> list[Depth]:
        queues, bindings = self._discover()
        pipe = self._client.pipeline(transaction=False)
        for queue in queues:
            for step in self._steps:
                pipe.llen(self._list(queue, step))
        pipe.hlen(self._unacked)
        *lengths, fetched = pipe.execute(raise_on_error=False)
        waiting = iter(lengths)
        in_hand = self._in_hand(bindings) if isinstance(fetched, int) and fetched <= _READ_UNACKED else None
        found = []
        for queue in queues:
            # A key with that name that is not a list belongs to another program: nothing waits there.
            by_priority = {str(step): _number(next(waiting)) for step in self._steps}
            active, delayed = (None, None) if in_hand is None else in_hand.get(queue, (0, 0))
            found.append(
                Depth(
                    queue=queue,
                    waiting=sum(by_priority.values()),
                    active=active,
                    delayed=delayed,
                    by_priority={step: n for step, n in by_priority.items() if n},
                )
            )
        return found

    def waiting(self, queues: Sequence[str]) -> dict[str, int | None]:
        """See `base.Source`: lengths of the queues' lists, over all priorities."""

        def read() -> dict[str, int | None]:
            pipe = self._client.pipeline(transaction=False)
            for queue in queues:
                for step in self._steps:
                    pipe.llen(self._list(queue, step))
            lengths = iter(pipe.execute(raise_on_error=False))
            return {queue: sum(_number(next(lengths)) for _ in self._steps) for queue in queues}

        return self._call(read)

    def _discover(self) -> tuple[list[str], dict[tuple[str, str], str]]:
        """Return the queues' names, and (exchange, routing key) -> queue."""
        if self._found and time.monotonic() - self._found[0] < _QUEUES_FOR_S:
            return self._found[1], self._found[2]
        bindings: dict[tuple[str, str], str] = {}
        names: set[str] = set(self._queues)
        head = f"{self._prefix}_kombu.binding."
        for key in self._scan(escape_glob(head) + "*"):
            exchange = key[len(head) :]
            if exchange in _NOT_JOBS:
                continue
            for member in self._client.smembers(key):
                routing_key, _, queue = [*_name(member).split(self._sep), "", ""][:3]
                if queue:
                    bindings[exchange, routing_key] = queue
        if not self._queues:
            names.update(bindings.values())
            # kombu 5.7 removes the bindings of a queue without consumers, just when its depth matters.
            names.update(self._unbound(names))
            names.update(self._found[1] if self._found else ())
        self._found = (time.monotonic(), sorted(names), bindings)
        return self._found[1], bindings

    def _unbound(self, known: set[str]) -> set[str]:
        """Return lists that contain Celery messages, or are priority lists of such a queue."""
        tails = tuple(f"{self._sep}{step}" for step in self._steps if step)
        names, plain = set(), []
        for key in self._scan(escape_glob(self._prefix) + "*", kind="list"):
            if key.endswith(tails):
                names.add(key[len(self._prefix) :].rpartition(self._sep)[0])
            elif key[len(self._prefix) :] not in known:
                plain.append(key)
        pipe = self._client.pipeline(transaction=False)
        for key in plain[:_MOST_PROBED]:
            pipe.lindex(key, -1)
        for key, entry in zip(plain, pipe.execute(raise_on_error=False), strict=False):
            try:
                celery_message.parse(entry)
            except (SourceRefused, TypeError):
                continue  # another program's list, or Celery's events
            names.add(key[len(self._prefix) :])
        return names

    def _scan(self, pattern: str, kind: str | None = None) -> list[str]:
        found: list[str] = []
        cursor = seen = 0
        while seen < _SCANNED_KEYS:
            cursor, page = self._client.scan(cursor, match=pattern, count=2_000, _type=kind)
            found += [_name(key) for key in page]
            seen += 2_000
            if not cursor:
                break
        return found

    def _in_hand(self, bindings: dict[tuple[str, str], str]) -> dict[str, tuple[int, int]]:
        """Return queue -> (active, delayed) of messages fetched by workers and not acknowledged."""
        now = time.time()
        found: dict[str, tuple[int, int]] = {}
        for _, entry in self._client.hscan_iter(self._unacked, count=500):
            try:
                message, exchange, routing_key = json.loads(entry)
                waits = _epoch_s(message["headers"].get("eta")) > now
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                continue  # not kombu's, so not a job to count
            queue = bindings.get((exchange, routing_key), routing_key)
            active, delayed = found.get(queue, (0, 0))
            found[queue] = (active, delayed + 1) if waits else (active + 1, delayed)
        return found

    # Jobs fetched by dead workers

    def fetched_at(self, tags: Sequence[str]) -> dict[str, float]:
        """See `base.GivesBack`. Raises SourceUnreachable."""
        if not tags:
            return {}
        found: list[Any] = self._call(lambda: cast(Any, self._client.zmscore(self._unacked_index, list(tags))))
        return {tag: float(at) for tag, at in zip(tags, found, strict=True) if at is not None}

    def give_back(self, tags: Sequence[str]) -> int:
        """See `base.GivesBack`: as kombu does after the visibility timeout. Raises SourceUnreachable."""

        def put_back() -> int:
            entries: list[Any] = self._client.hmget(self._unacked, list(tags)) if tags else []
            _, bindings = self._discover()
            moves: list[str] = []
            for tag, entry in zip(tags, entries, strict=True):
                move = None if entry is None else self._move(entry, bindings)
                if move is not None:
                    moves += [tag, *move]
            return (
                int(cast(Any, self._give_back(keys=[self._unacked, self._unacked_index], args=moves))) if moves else 0
            )

        return self._call(put_back)

    def _move(self, entry: bytes, bindings: dict[tuple[str, str], str]) -> tuple[str, str] | None:
        """Return a fetched message's list and its element there; None if it is not kombu's."""
        try:
            message, exchange, routing_key = json.loads(entry)
            message["headers"]["redelivered"] = True
            message["properties"]["delivery_info"]["redelivered"] = True
            priority = int(message["properties"].get("priority") or 0)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        queue = bindings.get((exchange, routing_key), routing_key)
        return self._list(queue, self._step(priority)), json.dumps(message)

    def workers(self) -> dict[str, set[str]] | None:
        """See `base.Source`: the answer of `celery inspect active_queues`, with kombu only.

        None also if the broker counts but refuses the query (a command firewall).
        """
        options: dict[str, Any] = {"global_keyprefix": self._prefix, "sep": self._sep, "priority_steps": self._steps}
        # Without a limit, kombu tries to connect forever.
        options |= {"socket_timeout": 1, "socket_connect_timeout": 1, "max_retries": 1}
        from jobs_admin.sources.celery import workers as celery_workers  # imports kombu

        return celery_workers.consumers(self._url, options)

    def findings(self) -> list[Finding]:
        """Return settings of the broker that lose jobs, as far as it reveals them. Raises SourceUnreachable."""
        return self._call(self._findings)

    def _findings(self) -> list[Finding]:
        found = []
        info = self._client.info("all")
        if info.get("redis_mode") == "cluster":
            found.append(
                Finding(
                    "cluster", "high", "The broker is a Redis Cluster, which Celery cannot use.", "Use a single Redis."
                )
            )
        if evicted := int(info.get("evicted_keys", 0)):
            found.append(
                Finding(
                    "evicted",
                    "high",
                    f"Redis has thrown away {evicted} keys for want of memory. Jobs may be among them.",
                    "Set maxmemory-policy noeviction and give it more memory.",
                )
            )
        try:
            settings = self._client.config_get("maxmemory-policy", "appendonly", "save")
        except redis.ResponseError:
            found.append(
                Finding(
                    "settings-unknown",
                    "info",
                    "This user may not run CONFIG, so the settings of the broker are not checked.",
                    "Allow CONFIG GET to this user, or check that maxmemory-policy is noeviction.",
                )
            )
            return found
        policy = _text(settings, "maxmemory-policy")
        if policy != "noeviction":
            found.append(
                Finding(
                    "eviction",
                    "high",
                    f"maxmemory-policy is {policy}: when its memory is full, Redis throws jobs away without a word.",
                    "CONFIG SET maxmemory-policy noeviction, and the same in its configuration file.",
                )
            )
        if _text(settings, "appendonly") == "no" and not _text(settings, "save"):
            found.append(
                Finding(
                    "no-persistence",
                    "high",
                    "Redis writes nothing to disk (appendonly no, save empty): a restart loses every waiting job.",
                    "CONFIG SET appendonly yes, and the same in its configuration file.",
                )
            )
        return found

    # Sending

    def send(self, replay: str, messages: Sequence[OutgoingMessage]) -> dict[int, str]:
        """See `base.Source`. All messages are built before the first is sent, so a refusal leaves all unsent."""
        ready = []
        for outgoing in messages:
            priority, body = celery_message.renew(outgoing, replay)
            ready.append((outgoing.token, self._list(outgoing.queue, self._step(priority)), body))
        answers: dict[int, str] = {}
        for part in _parts(ready):
            by_list: dict[str, tuple[list[int], list[bytes]]] = {}
            for token, key, body in part:
                tokens, bodies = by_list.setdefault(key, ([], []))
                tokens.append(token)
                bodies.append(body)
            answers |= self._push(replay, by_list)
        return answers

    def _push(self, replay: str, by_list: dict[str, tuple[list[int], list[bytes]]]) -> dict[int, str]:
        tokens = [token for of_list, _ in by_list.values() for token in of_list]
        bodies = [body for _, of_list in by_list.values() for body in of_list]
        names = [self._ledger(replay), *by_list]
        counts = [len(of_list) for of_list, _ in by_list.values()]
        arguments: list[int | bytes] = [LEDGER_S, keys.SCHEMA, *counts, *tokens, *bodies]
        results = self._call(lambda: self._send(keys=names, args=arguments))
        return {token: ANSWERS[answer] for token, answer in zip(tokens, results, strict=True)}

    def recall(self, replay: str, queues: Sequence[str]) -> Iterator[set[int]]:
        """See `base.Source`. Blocks Redis for some milliseconds per step; workers and others continue in between."""
        yield from self._taken_back_before(replay)
        for queue in dict.fromkeys(queues):
            for step in self._steps:
                yield from self._take_back(replay, self._list(queue, step))

    def _taken_back_before(self, replay: str) -> Iterator[set[int]]:
        cursor = -1
        while cursor:
            scan = {"name": self._ledger(replay), "cursor": max(cursor, 0), "count": _LEDGER_PER_CALL}
            cursor, marks = self._call(lambda scan=scan: self._client.hscan(**scan))  # type: ignore[misc]
            marks_by_token = cast(dict[bytes, bytes], marks)
            yield _numbers(token for token, mark in marks_by_token.items() if mark == _TAKEN_BACK)

    def _take_back(self, replay: str, key: str) -> Iterator[set[int]]:
        names = [self._ledger(replay), key, keys.removals(self.name, self._store_prefix)]
        bounds = [_RECALLED_PER_CALL, _RECALLED_BYTES_PER_CALL]
        place, removals = 0, ""
        while place >= 0:
            arguments = [LEDGER_S, celery_message.tag_head(replay), place, removals, *bounds]
            place, removals, taken = self._call(lambda args=arguments: self._recall(keys=names, args=args))  # type: ignore[misc]
            yield _numbers(taken)

    def close(self) -> None:
        self._client.close()

    # Names

    def _list(self, queue: str, step: int) -> str:
        return f"{self._prefix}{queue}{self._sep}{step}" if step else self._prefix + queue

    def _step(self, priority: int) -> int:
        return self._steps[max(bisect(self._steps, priority) - 1, 0)]

    def _ledger(self, replay: str) -> str:
        return keys.ledger(self.name, replay, self._store_prefix)

    def _call(self, question: Callable[[], T]) -> T:
        with server_errors(self._where):
            try:
                return question()
            except redis.ResponseError as error:
                if "REDRIVE not-a-queue" not in str(error):
                    raise
                key = str(error).split("not-a-queue ")[-1]
                raise SourceRefused(f"The key {key!r} is not a queue. Nothing was sent.") from error


def _parts(ready: list[tuple[int, str, bytes]]) -> Iterator[list[tuple[int, str, bytes]]]:
    """Split a batch of (token, list, message) into calls that block Redis only for milliseconds."""
    part: list[tuple[int, str, bytes]] = []
    size = 0
    for entry in ready:
        if part and (len(part) == _MESSAGES_PER_CALL or size + len(entry[2]) > _BYTES_PER_CALL):
            yield part
            part, size = [], 0
        part.append(entry)
        size += len(entry[2])
    if part:
        yield part


def _name(key: bytes | str) -> str:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else key


def _numbers(tokens: Iterable[bytes]) -> set[int]:
    """Return the tokens as numbers. Other entries are skipped: the broker's Redis has other writers."""
    return {number for token in tokens if (number := untrusted.integer(token)) is not None}


def _number(answer: object) -> int:
    return answer if isinstance(answer, int) else 0


def _text(settings: Mapping[Any, Any], name: str) -> str:
    value = settings.get(name, settings.get(name.encode(), b""))
    return value.decode() if isinstance(value, bytes) else str(value)


def _epoch_s(eta: object) -> float:
    """Return a Celery `eta` header in Unix seconds; 0 without one."""
    if not isinstance(eta, str):
        return 0.0
    moment = datetime.fromisoformat(eta)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
