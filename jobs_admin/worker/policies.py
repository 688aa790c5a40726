"""The policies in force in this worker: the main process learns of them, and the pool's children read them.

They fail static: without the store, with a document that cannot be used, or after a start while the store is away, the last
good ones stay in force.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import redis

from jobs_admin.core import keys, matching
from jobs_admin.core.policy import ENFORCE, OBSERVE, Policy, parse
from jobs_admin.core.refused import Refused
from jobs_admin.worker import last_good
from jobs_admin.worker.board import Board, TooLong

CAPTURE = "capture"
RUNGS = ("off", CAPTURE, OBSERVE, ENFORCE)  # each a ceiling for what stands behind it
_REREAD_S = 60.0  # also where the number is the same: a store that lost all may have come to the same number again
_REMEMBERED = 10_000  # choices; routing keys may be made up

logger = logging.getLogger("redrive.worker")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The one version of the one policy that an attempt runs under, from its start to the decision over it."""

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
    """The board as it was read once."""

    number: int
    ceiling: str
    policies: dict[str, Chosen]
    choices: dict[tuple[str, str], Chosen | None]  # (queue, task) -> what was found for it


class InForce:
    """The policies on the board, as jobs need them. May be asked in any process and any thread."""

    def __init__(self, board: Board, source: str) -> None:
        self._board = board
        self._source = source
        # In one reference, so that no thread of a pool meets one half of a page and one of the next.
        self._page = _Page(0, CAPTURE, {}, {})

    def choose(self, queue: str, task: str) -> Chosen | None:
        """The policy for a job now; None where none matches, or the ceiling is below `observe`; and for a queue of no name."""
        if not queue:
            return None  # it could not be brought back to where it came from
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
        """Return whether some policy is for this task, on whatever queue."""
        page = self._now()
        return page.ceiling in (OBSERVE, ENFORCE) and any(
            matching.matches(one.policy.match.task, task) for one in page.policies.values()
        )

    def _now(self) -> _Page:
        page = self._page
        if self._board.number != page.number:
            page = self._page = _read(self._board)
        return page

    def counts_starts(self) -> bool:
        """Return whether some policy wants a job counted before it starts, or its retries."""
        policies = [one.policy for one in _read(self._board).policies.values() if one.is_enforced]
        return any(one.poison or one.concurrency or one.rate_limit or one.budget for one in policies)

    def files_lost(self) -> bool:
        """Return whether some policy wants jobs kept while they run."""
        return any(one.is_enforced and one.policy.file_lost for one in _read(self._board).policies.values())

    def _find(self, page: _Page, place: tuple[str, str]) -> Chosen | None:
        if page.ceiling not in (OBSERVE, ENFORCE):
            return None
        found = matching.chosen([one.policy for one in page.policies.values()], self._source, *place)
        if found is None:
            return None
        chosen = page.policies[found.name]
        if chosen.is_enforced and page.ceiling == OBSERVE:
            return replace(chosen, policy=replace(found, mode=OBSERVE))
        return chosen


class Policies:
    """The main process' side. `poll` is called by the heartbeat's thread, and once before the pool is forked."""

    def __init__(self, source: str, ceiling: str, directory: Path) -> None:
        self.source = source
        self.refused: dict[str, str] = {}  # name -> why its newest document is not in force as it says
        self.held_to = ENFORCE  # a lower ceiling while an operator wants it (`manage.py off`, `drain`)
        self._ceiling = ceiling
        self._directory = directory
        self._board = Board()
        self._seen: bytes | None = None  # the number in the store when we last read all
        self._read_at = float("-inf")
        self._documents: dict[str, dict[str, Any]] = {}
        self._publish()
        self._take({str(one.get("name")): one for one in last_good.load(directory)})

    def in_force(self) -> InForce:
        return InForce(self._board, self.source)

    @property
    def ceiling(self) -> str:
        return min(self._ceiling, self.held_to, key=RUNGS.index)

    @property
    def versions(self) -> dict[str, int]:
        """The versions of policies that may match a job of this source, by name, as its pool has them."""
        return {name: document["version"] for name, document in self._documents.items()}

    def hold_to(self, rung: str) -> bool:
        """Return whether that changed something."""
        if rung == self.held_to:
            return False
        self.held_to = rung
        self._publish()
        return True

    def poll(self, client: redis.Redis, number: bytes | None) -> bool:
        """Read all where the number in the store is another one than before. True where something changed.

        Raises redis.RedisError; then all is as it was. Without a number the store has lost its memory, or no policy was
        ever published: that takes no policy out of force.
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
                last_good.keep(self._directory, list(self._documents.values()))
            except OSError as error:
                logger.warning("Redrive cannot keep its policies in %s (%s).", self._directory, error.strerror)
        return is_changed or self.refused != refused_before

    def _take(self, documents: dict[str, Any]) -> bool:
        """Replace what is in force; of a name whose document cannot be used, the version before stays. True if it changed."""
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
    # Only usable ones are put on the board.
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
