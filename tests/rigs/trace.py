"""The way of a broker's jobs, read from its own MONITOR: who pushed each, who noted it as taken, who took it out again.

    with Trace(url) as trace: ...
    trace.of("good-95")          # what was done with that job, oldest first
    trace.was_popped_and_never_noted("good-95")

MONITOR reports commands and not their answers: which element a BRPOP took is not in it. But BRPOP is the one command of
kombu's that takes an element from a list without naming it, so one that was pushed, is in no list any more and was named by no one
since has been popped by a person who did nothing with it.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections import defaultdict
from dataclasses import dataclass

import redis

PUSHES = {"LPUSH", "RPUSH"}
# What else could take a message out of a list. kombu uses none of them on a queue that is consumed.
_TAKES = {"RPOP", "LPOP", "BLPOP", "LREM", "LTRIM", "BLMOVE", "LMOVE", "RPOPLPUSH", "BRPOPLPUSH", "FLUSHDB", "FLUSHALL"}
_ID = re.compile(r'"id": ?"([^"]+)"')


@dataclass(frozen=True, slots=True)
class Step:
    at: float  # seconds since 1970, by the broker's clock
    client: str  # `address:port`, or `lua` for what a script did
    command: str
    key: str


class Trace:
    """Reads in a thread of its own until it is closed."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url, socket_timeout=None)  # nothing may be told for long
        self._steps: dict[str, list[Step]] = defaultdict(list)
        self._of_tag: dict[str, str] = {}
        self._others: list[Step] = []  # commands that take elements and are not BRPOP
        self._is_closed = threading.Event()
        self._is_open = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Trace:
        self._thread.start()
        self._is_open.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed.set()
        with contextlib.suppress(redis.RedisError):
            self._client.ping()  # something for MONITOR to tell, so that the thread looks up
        self._thread.join(10)
        assert not self._thread.is_alive()

    def list_steps(self, job: str) -> list[Step]:
        return self._steps[job]

    def was_popped_and_never_noted(self, job: str) -> bool:
        """Return whether, of a job that is in no list, all that was ever done with it last is a push."""
        steps = self._steps[job]
        return bool(steps) and steps[-1].command in PUSHES and not self._others

    def _read(self) -> None:
        with self._client.monitor() as monitor:
            self._is_open.set()
            while not self._is_closed.is_set():
                self._note(monitor.next_command())

    def _note(self, entry: dict[str, object]) -> None:
        words = str(entry["command"])
        name, _, rest = words.partition(" ")
        name, key = name.upper(), rest.partition(" ")[0]
        client = "lua" if entry["client_type"] == "lua" else f"{entry['client_address']}:{entry['client_port']}"
        step = Step(float(str(entry["time"])), client, name, key)
        if name in _TAKES and key.startswith("jobs"):
            self._others.append(step)
        elif (name in PUSHES and key.startswith("jobs")) or (name == "HSET" and key.endswith(("unacked", "due:jobs"))):
            found = _ID.search(rest)
            if found:
                self._steps[found[1]].append(step)
                if key == "unacked":
                    self._of_tag[rest.split(" ", 2)[1]] = found[1]
        elif name == "HDEL" and key == "unacked":
            job = self._of_tag.get(rest.split(" ")[1])
            if job:
                self._steps[job].append(step)
