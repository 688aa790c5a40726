"""Policies in force in this worker: the main process reads them from the store, the pool's children from the board.

They fail static: without the store, with an unusable document, or after a start while the store is unavailable, the
last good ones stay in force.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import mmap
import os
import stat
import struct
import time
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import redis

from jobs_admin.core import keys, matching
from jobs_admin.core.policy import ENFORCE, OBSERVE, Policy, parse
from jobs_admin.core.refused import Refused
from jobs_admin.worker.spool import own_directory

CAPTURE = "capture"
RUNGS = ("off", CAPTURE, OBSERVE, ENFORCE)  # each is a ceiling for those after it
_REREAD_S = 60.0  # even if the number is unchanged: a store that lost its data may have reached the same number again
_REMEMBERED = 10_000  # choices; routing keys can be arbitrary

logger = logging.getLogger("redrive.worker")


# Board: a text that a worker's main process writes and its pool's children read, without calls or locks.
# The memory is shared with processes forked after its creation. It has two slots: a text is written to the inactive
# one, then the number that selects it. A reader interrupted for two writes finds a wrong checksum and reads again.
# Nothing here waits, so a child killed while reading blocks no other.

BOARD_BYTES = 1024**2  # maximum bytes of a text; memory is only used for bytes written

_NUMBER = struct.Struct("=Q")
_HEAD = struct.Struct("=II")  # bytes of the text, its CRC-32
_READS = 100
_LAST_GOOD = "policies.json"
_LONGEST_LAST_GOOD = 2 * 1024**2


class TooLong(ValueError):
    """The text does not fit. The board is unchanged."""


class Board:
    """Shared text of one writer. One thread of one process calls `write`; any process may call `read` and `number`."""

    def __init__(self, room: int = BOARD_BYTES) -> None:
        self._room = room
        self._memory = mmap.mmap(-1, _NUMBER.size + 2 * (_HEAD.size + room))

    @property
    def number(self) -> int:
        """Number of the current text; 0 before the first. Takes 0.2 µs, so it can be read per job."""
        found: int = _NUMBER.unpack_from(self._memory)[0]
        return found

    def write(self, text: bytes) -> None:
        if len(text) > self._room:
            raise TooLong(f"{len(text)} bytes are more than {self._room}")
        number = self.number + 1
        at = self._place(number)
        head = _HEAD.pack(len(text), zlib.crc32(text))
        self._memory[at : at + _HEAD.size + len(text)] = head + text
        # A slice, not `pack_into`, which zeroes the target first: a reader would see number 0.
        self._memory[: _NUMBER.size] = _NUMBER.pack(number)

    def read(self) -> tuple[int, bytes]:
        """Return the number and the current text; (0, b"") before the first."""
        for _ in range(_READS):
            number = self.number
            if not number:
                return 0, b""
            at = self._place(number)
            size, checksum = _HEAD.unpack_from(self._memory, at)
            if size <= self._room:
                text = self._memory[at + _HEAD.size : at + _HEAD.size + size]
                if zlib.crc32(text) == checksum:
                    return number, text
        raise RuntimeError("the text on the board changes faster than it can be read")

    def _place(self, number: int) -> int:
        return _NUMBER.size + (number % 2) * (_HEAD.size + self._room)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Policy version of one attempt, from its start to the decision about it."""

    policy: Policy
    name: str
    version: int

    @property
    def label(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def is_enforced(self) -> bool:
        return self.policy.mode == ENFORCE


@dataclass(frozen=True, slots=True)
class _Page:
    """Parsed content of the board."""

    number: int
    ceiling: str
    policies: dict[str, Chosen]
    choices: dict[tuple[str, str], Chosen | None]  # (queue, task) -> result

    @property
    def is_in_force(self) -> bool:
        return self.ceiling in (OBSERVE, ENFORCE)


class InForce:
    """Policies on the board, for jobs. Safe in any process and thread."""

    def __init__(self, board: Board, source: str) -> None:
        self._board = board
        self._source = source
        # One reference, so that no thread combines two pages.
        self._page = _Page(0, CAPTURE, {}, {})

    def choose(self, queue: str, task: str) -> Chosen | None:
        """Return the policy for a job now; None if none matches, the ceiling is below `observe`, or the queue is
        unnamed.
        """
        if not queue:
            return None  # the job could not be returned to its queue
        page = self._now()
        place = (queue, task)
        try:
            return page.choices[place]
        except KeyError:
            found = self._find(page, place)
            if len(page.choices) < _REMEMBERED:
                page.choices[place] = found
            return found

    def concerns(self, task: str) -> bool:
        """Return whether a policy matches this task in any queue."""
        page = self._now()
        return page.is_in_force and any(matching.matches(one.policy.match.task, task) for one in page.policies.values())

    def _now(self) -> _Page:
        page = self._page
        if self._board.number != page.number:
            page = self._page = _read(self._board)
        return page

    def breakers(self) -> dict[str, bool] | None:
        """Return breaker -> whether one of its policies is in mode `enforce`; None if no policy is in force."""
        page = self._now()
        if not page.is_in_force:
            return None
        found: dict[str, bool] = {}
        for one in page.policies.values():
            if name := one.policy.breaker_name:
                found[name] = found.get(name, False) or one.is_enforced
        return found

    def may_enforce(self) -> bool:
        return self._now().ceiling == ENFORCE

    def counts_starts(self) -> bool:
        """Return whether a policy counts starts or retries."""
        policies = [one.policy for one in _read(self._board).policies.values() if one.is_enforced]
        return any(one.poison or one.concurrency or one.rate_limit or one.budget for one in policies)

    def files_lost(self) -> bool:
        """Return whether a policy stores jobs while they run."""
        return any(one.is_enforced and one.policy.file_lost for one in _read(self._board).policies.values())

    def _find(self, page: _Page, place: tuple[str, str]) -> Chosen | None:
        if not page.is_in_force:
            return None
        found = matching.chosen([one.policy for one in page.policies.values()], self._source, *place)
        if found is None:
            return None
        chosen = page.policies[found.name]
        if chosen.is_enforced and page.ceiling == OBSERVE:
            return replace(chosen, policy=replace(found, mode=OBSERVE))
        return chosen


class Policies:
    """Policies in the main process.

    The heartbeat's thread calls `poll`; it is also called once before the pool forks.
    """

    def __init__(self, source: str, ceiling: str, directory: Path) -> None:
        self.source = source
        self.refused: dict[str, str] = {}  # name -> why its latest document is not fully in force
        self.held_to = ENFORCE  # a lower ceiling set by an operator (`manage.py off`, `drain`)
        self._ceiling = ceiling
        self._directory = directory
        self._board = Board()
        self._seen: bytes | None = None  # the store's number at the last full read
        self._read_at = float("-inf")
        self._documents: dict[str, dict[str, Any]] = {}
        self._publish()
        self._take({str(one.get("name")): one for one in load_last_good(directory)})

    def in_force(self) -> InForce:
        return InForce(self._board, self.source)

    @property
    def are_read(self) -> bool:
        """Return whether the store has policies and this worker has read them."""
        return self._seen is not None

    @property
    def ceiling(self) -> str:
        return min(self._ceiling, self.held_to, key=RUNGS.index)

    @property
    def versions(self) -> dict[str, int]:
        """Versions by name of the policies that may match a job of this source, as the pool has them."""
        return {name: document["version"] for name, document in self._documents.items()}

    def hold_to(self, rung: str) -> bool:
        """Set the operator's ceiling. Return whether it changed."""
        if rung == self.held_to:
            return False
        self.held_to = rung
        self._publish()
        return True

    def poll(self, client: redis.Redis, number: bytes | None) -> bool:
        """Read all policies if the store's number changed. Return whether policies changed.

        Raises redis.RedisError and then changes nothing. A store without a number lost its data, or no policy was ever
        published: policies in force stay in force.
        """
        is_fresh = time.monotonic() - self._read_at < _REREAD_S
        if number is None or (number == self._seen and is_fresh):
            self._seen = number
            return False
        pipeline = client.pipeline(transaction=True)
        pipeline.get(keys.policies_version())
        pipeline.hgetall(keys.policies())
        seen, documents = pipeline.execute()
        refused_before = self.refused
        is_changed = seen is not None and self._take(
            {name.decode("utf-8", "replace"): _json(text) for name, text in documents.items()}
        )
        self._seen, self._read_at = seen, time.monotonic()
        if is_changed:
            try:
                keep_last_good(self._directory, list(self._documents.values()))
            except OSError as error:
                logger.warning("Redrive cannot keep its policies in %s (%s).", self._directory, error.strerror)
        return is_changed or self.refused != refused_before

    def _take(self, documents: dict[str, Any]) -> bool:
        """Replace the policies in force. If a document is unusable, its previous version stays.

        Return whether something changed.
        """
        taken: dict[str, dict[str, Any]] = {}
        refused: dict[str, str] = {}
        for name, document in documents.items():
            try:
                found = _usable(name, document)
            except (Refused, ValueError, TypeError, KeyError) as error:
                refused[name] = f"{_why(error)} The version before stays in force."
                if name in self._documents:
                    taken[name] = self._documents[name]
                continue
            if not matching.matches(found.policy.match.source, self.source):
                continue
            taken[name] = document
            if found.policy.unknown:
                fields = ", ".join(found.policy.unknown)
                refused[name] = f"This version of the guard does not know {fields}: the policy only observes here."
        for name in refused.keys() - self.refused.keys():
            logger.warning("Redrive's policy %r: %s", name, refused[name])
        self.refused = refused
        if taken == self._documents:
            return False
        before, self._documents = self._documents, taken
        try:
            self._publish()
        except TooLong as error:
            self._documents = before
            why = f"The policies of this source are too many ({error}). The version before stays in force."
            self.refused = refused | {name: why for name in taken if taken[name] != before.get(name)}
            logger.error("Redrive's policies are too many for this worker (%s); those before stay in force.", error)
            return False
        return True

    def _publish(self) -> None:
        page = {"ceiling": self.ceiling, "policies": list(self._documents.values())}
        self._board.write(json.dumps(page).encode())


def _read(board: Board) -> _Page:
    number, text = board.read()
    page: dict[str, Any] = json.loads(text) if text else {"ceiling": CAPTURE, "policies": []}
    # Only usable documents are written to the board.
    policies = [_usable(one["name"], one) for one in page["policies"]]
    return _Page(number, page["ceiling"], {one.name: one for one in policies}, {})


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _usable(name: str, document: Any) -> Chosen:
    if not isinstance(document, dict) or document.get("name") != name:
        raise ValueError("it is not a policy of this name.")
    version = document["version"]
    if not isinstance(version, int) or isinstance(version, bool):
        raise ValueError("it has no version.")
    return Chosen(parse({**document["policy"], "name": name}, lenient=True), name, version)


def _why(error: Exception) -> str:
    return str(error)[: 500 if isinstance(error, Refused) else 200]


# Last policies and pauses in force, on the worker's own disk: for a start while the store is unavailable.


def keep_last_good(directory: Path, documents: list[dict[str, Any]], name: str = _LAST_GOOD) -> None:
    """Write the file atomically and durably. Raises OSError."""
    own_directory(directory)
    body = json.dumps(documents).encode()
    # Workers of one host share the file; each renames its own draft.
    draft = directory / f".{name}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(directory / name)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def load_last_good(directory: Path, name: str = _LAST_GOOD) -> list[dict[str, Any]]:
    """Return the documents in the file; [] if it is missing, incomplete, or accessible to other users."""
    try:
        descriptor = os.open(directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return []
    with open(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            return []
        digest, _, body = file.read(_LONGEST_LAST_GOOD).partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        return []
    found = json.loads(body)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
