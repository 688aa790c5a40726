"""Queue system in this process, for tests and demonstrations."""

from __future__ import annotations

import json
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from jobs_admin.core.envelope import Envelope
from jobs_admin.sources.base import (
    Capabilities,
    Depth,
    Finding,
    JobChanges,
    OutgoingMessage,
    Pulled,
    Ref,
    Rescheduled,
    Source,
    SourceRefused,
    SourceSettings,
    SourceUnreachable,
    System,
)

_RECALLED_PER_STEP = 100


class MemorySource:
    """A `sources.Source`. `reachable = False` disconnects it; `queues[name]` lists the sent jobs, oldest first."""

    can = Capabilities(
        atomic_send=True,
        edit=True,
        outcomes=True,
        recall=True,
        redirect=True,
        same_id=True,
        attempts=True,
        priority=True,
    )

    def __init__(self, name: str, queues: Sequence[str] = (), outcome_within_s: float = 3600) -> None:
        self.name = name
        self.outcome_within_s = outcome_within_s
        self.reachable = True
        self.consumers: dict[str, set[str]] = {}
        self.queues: dict[str, list[dict[str, Any]]] = defaultdict(list, {queue: [] for queue in queues})
        self._ledgers: dict[str, set[int]] = defaultdict(set)
        self._recalled: dict[str, set[int]] = {}  # replay -> recalled tokens; it sends no more
        self._epochs: dict[str, str] = {}
        self._withheld: set[tuple[str, int]] = set()  # replay and token
        self._lock = threading.Lock()  # makes a send, a recall or a fetch one step

    def depths(self) -> list[Depth]:
        self._dial()
        return [Depth(queue, waiting=len(jobs), active=0, delayed=0) for queue, jobs in sorted(self.queues.items())]

    def workers(self) -> dict[str, set[str]] | None:
        self._dial()
        return self.consumers

    def waiting(self, queues: Sequence[str]) -> dict[str, int | None]:
        self._dial()
        return {queue: len(self.queues[queue]) for queue in queues}

    def epoch(self, replay: str) -> str:
        self._dial()
        return self._epochs.setdefault(replay, uuid.uuid4().hex)

    def send(self, replay: str, messages: Sequence[OutgoingMessage]) -> dict[int, str]:
        self._dial()
        jobs = [self._job(replay, message) for message in messages]
        with self._lock:
            return {
                message.token: self._enqueue(replay, message.token, message.queue, job)
                for message, job in zip(messages, jobs, strict=True)
            }

    def _enqueue(self, replay: str, token: int, queue: str, job: dict[str, Any]) -> str:
        if token in self._ledgers[replay]:
            return "already"
        if replay in self._recalled or (replay, token) in self._withheld:
            return "recalled"
        self._ledgers[replay].add(token)
        self.queues[queue].append(job)
        return "sent"

    def _job(self, replay: str, outgoing: OutgoingMessage) -> dict[str, Any]:
        try:
            message = json.loads(outgoing.raw)
        except (ValueError, RecursionError) as error:
            raise SourceRefused("The captured message is not JSON. Nothing was sent.", token=outgoing.token) from error
        args = outgoing.args if outgoing.args is not None else message.get("args")
        kwargs = outgoing.kwargs if outgoing.kwargs is not None else message.get("kwargs")
        return {
            "id": outgoing.job_id,
            "args": args,
            "kwargs": kwargs,
            "redrive": outgoing.lineage,
            "sent_as": (replay, outgoing.token),
            "priority": message.get("priority") if outgoing.priority is None else outgoing.priority,
            "retries": message.get("retries", 0) if outgoing.retries is None else outgoing.retries,
        }

    def was_sent(self, replay: str, tokens: Sequence[int]) -> set[int]:
        self._dial()
        return self._ledgers[replay] & set(tokens)

    def in_doubt(self, replay: str, tokens: Sequence[int]) -> set[int]:
        return set()

    def withhold(self, replay: str, tokens: Sequence[int]) -> set[int]:
        self._dial()
        with self._lock:
            sent = self._ledgers[replay] & set(tokens)
            self._withheld |= {(replay, token) for token in tokens if token not in sent}
            return sent

    def recall(self, replay: str, queues: Sequence[str]) -> Iterator[set[int]]:
        self._dial()
        with self._lock:
            taken = self._recalled.setdefault(replay, set())
            before = set(taken)
        yield before
        for queue in queues:
            while mine := self._take_back(replay, queue):
                yield mine

    def _take_back(self, replay: str, queue: str) -> set[int]:
        self._dial()
        with self._lock:
            waiting = [job["sent_as"][1] for job in self.queues[queue] if job["sent_as"][0] == replay]
            mine = set(waiting[:_RECALLED_PER_STEP])
            taken_back = {(replay, n) for n in mine}
            self.queues[queue] = [job for job in self.queues[queue] if tuple(job["sent_as"]) not in taken_back]
            self._ledgers[replay] -= mine
            self._recalled[replay] |= mine
            return mine

    def fetch(self, queue: str) -> dict[str, Any] | None:
        """Return and remove the next job, as a worker does; None if none waits."""
        with self._lock:
            return self.queues[queue].pop(0) if self.queues[queue] else None

    def arguments(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        message = _read(raw)
        if not message:
            raise SourceRefused("The captured message is not JSON, so its arguments cannot be read.")
        return message["args"], message["kwargs"]

    def check_arguments(self, raw: bytes, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Accept any arguments."""

    def headers(self, raw: bytes) -> dict[str, Any]:
        return dict(json.loads(raw).get("headers", {}))

    def is_chord_member(self, raw: bytes) -> bool:
        return bool(_read(raw).get("chord"))

    def expires_at(self, raw: bytes) -> datetime | None:
        expires = _read(raw).get("expires")
        return datetime.fromisoformat(expires) if expires else None

    def forget(self) -> None:
        """Drop ledgers and jobs, like a flushed server."""
        self._ledgers.clear()
        self._recalled.clear()
        self._withheld.clear()
        self._epochs.clear()
        self.queues.clear()

    def findings(self) -> list[Finding]:
        self._dial()
        return []

    def close(self) -> None:
        self.reachable = False

    def _dial(self) -> None:
        if not self.reachable:
            raise SourceUnreachable(f"{self.name} is unplugged.")


class MemoryKeeper(MemorySource):
    """A `sources.PulledSource`.

    `ended(report)` adds an attempt that ended; `gone` and `due` are the results of `check_jobs`.
    """

    can = replace(MemorySource.can, holds_dead=True, remove=True, reschedule=True, in_place=True)
    every_s = 0.2

    def __init__(self, name: str, queues: Sequence[str] = ()) -> None:
        super().__init__(name, queues)
        self.reports: list[Envelope] = []  # in order of ending; a cursor is the number reported
        self.news: dict[Ref, Envelope] = {}
        self.gone: dict[Ref, str] = {}
        self.due: dict[Ref, float] = {}
        self.filed_up_to = 0
        self.asked: list[Ref] = []
        self.removed: set[Ref] = set()
        self.page = 100
        self.ran: dict[tuple[str, int], int] = {}  # each reported once

    def dead_letters(self, after: str) -> Pulled:
        self._dial()
        start = int(after or 0)
        end = min(start + self.page, len(self.reports))
        ran, self.ran = self.ran, {}
        return Pulled(self.reports[start:end], str(end), end < len(self.reports), receipt=end, ran=ran)

    def confirm_filed(self, pulled: Pulled) -> None:
        self._dial()
        self.filed_up_to = max(self.filed_up_to, pulled.receipt)

    def check_jobs(self, jobs: Sequence[Ref]) -> JobChanges:
        self._dial()
        self.asked += jobs
        return JobChanges(
            [self.news[job] for job in jobs if job in self.news],
            {job: self.gone[job] for job in jobs if job in self.gone},
            {job: self.due[job] for job in jobs if job in self.due},
        )

    def remove(self, jobs: Sequence[Ref]) -> set[Ref]:
        self._dial()
        self.removed |= set(jobs)
        return set(jobs)

    def reschedule(self, changes: Sequence[Rescheduled]) -> set[Ref]:
        self._dial()
        waiting = [change for change in changes if change.job in self.due]
        self.due.update({change.job: change.due_at for change in waiting if change.due_at is not None})
        return {change.job for change in waiting}


def _read(raw: bytes) -> dict[str, Any]:
    try:
        message = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def _open(given: SourceSettings) -> Source:
    return (MemoryKeeper if given.options.get("keeps_dead") else MemorySource)(given.name, queues=given.queues)


SYSTEM = System("memory", _open, is_for_tests=True)
