"""A queue system in this process: for tests and demonstrations where the queue is not the point."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from jobs_admin.sources.base import Capabilities, Depth, Finding, Letter, SourceRefused, SourceUnreachable


class MemorySource:
    """A `sources.Source`. `reachable = False` unplugs it; `waiting[queue]` shows what was sent, oldest first."""

    can = Capabilities(atomic_send=True, edit=True, outcomes=True)

    def __init__(self, name: str, queues: Sequence[str] = (), outcome_within_s: float = 3600) -> None:
        self.name = name
        self.outcome_within_s = outcome_within_s
        self.reachable = True
        self.consumers: dict[str, set[str]] = {}
        self.waiting: dict[str, list[dict[str, Any]]] = defaultdict(list, {queue: [] for queue in queues})
        self._ledgers: dict[str, set[int]] = defaultdict(set)
        self._epochs: dict[str, str] = {}

    def depths(self) -> list[Depth]:
        self._dial()
        return [Depth(queue, waiting=len(jobs), active=0, delayed=0) for queue, jobs in sorted(self.waiting.items())]

    def workers(self) -> dict[str, set[str]] | None:
        self._dial()
        return self.consumers

    def epoch(self, replay: str) -> str:
        self._dial()
        return self._epochs.setdefault(replay, uuid.uuid4().hex)

    def send(self, replay: str, letters: Sequence[Letter]) -> dict[int, str]:
        self._dial()
        jobs = [self._job(letter) for letter in letters]
        answers = {}
        for letter, job in zip(letters, jobs, strict=True):
            answers[letter.token] = "already" if letter.token in self._ledgers[replay] else "sent"
            if answers[letter.token] == "sent":
                self._ledgers[replay].add(letter.token)
                self.waiting[letter.queue].append(job)
        return answers

    def _job(self, letter: Letter) -> dict[str, Any]:
        try:
            message = json.loads(letter.raw)
        except (ValueError, RecursionError) as error:
            raise SourceRefused("The captured message is not JSON. Nothing was sent.", token=letter.token) from error
        args = letter.args if letter.args is not None else message.get("args")
        kwargs = letter.kwargs if letter.kwargs is not None else message.get("kwargs")
        return {"id": letter.job_id, "args": args, "kwargs": kwargs, "redrive": letter.lineage}

    def was_sent(self, replay: str, tokens: Sequence[int]) -> set[int]:
        self._dial()
        return self._ledgers[replay] & set(tokens)

    def arguments(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        message = json.loads(raw)
        return message["args"], message["kwargs"]

    def headers(self, raw: bytes) -> dict[str, Any]:
        return dict(json.loads(raw).get("headers", {}))

    def forget(self) -> None:
        """As a flushed server would: ledgers and jobs are gone."""
        self._ledgers.clear()
        self._epochs.clear()
        self.waiting.clear()

    def findings(self) -> list[Finding]:
        self._dial()
        return []

    def close(self) -> None:
        self.reachable = False

    def _dial(self) -> None:
        if not self.reachable:
            raise SourceUnreachable(f"{self.name} is unplugged.")
