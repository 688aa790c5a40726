"""Recognition of BullMQ queues that contain dead letters without being configured.

A job's data may come from outside, so data alone identifies no such queue: the jobs must have a name that code gives to
dead letters, and the queue must have no workers, now or before. If only the data has the form, a finding reports it and
nothing is done.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from jobs_admin.sources.base import Finding
from jobs_admin.sources.bullmq.carried import find_carried
from jobs_admin.sources.bullmq.places import LISTS
from jobs_admin.sources.bullmq.wire import Wire, find_workers, number, text

NAMES = frozenset(
    {b"failed-job", b"quarantined-job"}
)  # names of dead letters, in commonly copied handlers (tests/node/forwarders)

_LARGEST_CHECKED = 2_000_000  # bytes of a job whose structure is checked
_EVENTS = 200  # at each end of a queue's events, searched for signs of work
_NAMED = 5  # queues per sentence
_WORKED = ("active", "completed", "failed")


class Recognition:
    """Recognised queues of one source. For one thread at a time."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.seen: set[str] = set()  # recognised queues, which stay so without workers, even while empty
        self._suspected: set[str] = set()  # queues whose jobs have the structure, but which are not recognised
        self._checked_at: dict[str, bytes] = {}  # queue -> id counter at its latest check

    def check(self, queues: Collection[str]) -> None:
        """Check queues by their oldest and latest waiting job, in some round trips for all.

        A queue to which nothing was added since is not checked again.
        """
        self._drop_those_worked_on()
        ends = self._ends([queue for queue in queues if queue not in self.seen])
        connected: Collection[str] | None = None
        is_listed = False
        for queue, ids in ends.items():
            names, has_form = self._read(queue, ids)
            self._suspected.discard(queue)
            if not has_form:
                continue
            if not is_listed:
                connected, is_listed = find_workers(self._wire), True
            is_one = names <= NAMES and connected is not None and queue not in connected
            if is_one and not self._was_worked_on(queue):
                self.seen.add(queue)
            else:
                self._suspected.add(queue)

    def findings(self) -> list[Finding]:
        if not self._suspected:
            return []
        names = sorted(self._suspected)
        some = ", ".join(name[:60] for name in names[:_NAMED]) + (" …" if len(names) > _NAMED else "")
        return [
            Finding(
                "looks-like-dead-letter-queue",
                "warning",
                f"Jobs that wait in {some} carry other jobs as dead letters do. But somebody works there, or may do so, or those jobs bear "
                "other names than dead letters: what their data says may come from outside. Nothing is done with it.",
                "Where only your own code adds dead letters there, name it for this source: dead_letter_queues = "
                f'["{names[0][:60]}"]. Else let nobody outside choose the whole data of a job.',
            )
        ]

    def _ends(self, queues: Sequence[str]) -> dict[str, list[bytes]]:
        """Return the ids of the jobs to check, by queue; without queues to which nothing was added."""
        if not queues:
            return {}
        pipe = self._wire.client.pipeline(transaction=False)
        for queue in queues:
            pipe.get(self._wire.key(queue, "id"))
            for name in LISTS:
                pipe.lindex(self._wire.key(queue, name), 0)
                pipe.lindex(self._wire.key(queue, name), -1)
            pipe.zrange(self._wire.key(queue, "prioritized"), 0, 0)
            pipe.zrange(self._wire.key(queue, "prioritized"), -1, -1)
        answers = pipe.execute(raise_on_error=False)
        each = 3 + 2 * len(LISTS)
        found: dict[str, list[bytes]] = {}
        for n, queue in enumerate(queues):
            count, *ends = answers[n * each : (n + 1) * each]
            count = count if isinstance(count, bytes) else b""
            if self._checked_at.get(queue) == count:
                continue
            self._checked_at[queue] = count
            ids = [one[0] if isinstance(one, list) and one else one for one in ends]
            found[queue] = list(dict.fromkeys(one for one in ids if isinstance(one, bytes)))
        return found

    def _read(self, queue: str, ids: Sequence[bytes]) -> tuple[set[bytes], bool]:
        """Return the names of the jobs, and whether the data of one has the structure.

        One at a time: jobs of two megabytes from a thousand queues must not be in memory together.
        """
        pipe = self._wire.client.pipeline(transaction=False)
        keys = [self._wire.base(queue).encode() + job_id for job_id in ids]
        for key in keys:
            pipe.hget(key, "name")
            pipe.hstrlen(key, "data")
        answers: list[Any] = pipe.execute(raise_on_error=False) if keys else []
        names: set[bytes] = set()
        has_form = False
        for key, name, size in zip(keys, answers[::2], answers[1::2], strict=True):
            if isinstance(name, bytes):
                names.add(name)
            if not has_form and isinstance(size, int) and 0 < size <= _LARGEST_CHECKED:
                data = self._wire.client.hget(key, "data")
                has_form = isinstance(data, bytes) and find_carried(data) is not None
        return names, has_form

    def _was_worked_on(self, queue: str) -> bool:
        """Return whether a worker was there, by its traces: running or ended jobs, the mark of a worker's stall
        check (30 s), or events.
        """
        if self._worked_on([queue]):
            return True
        key = self._wire.key(queue, "events")
        pipe = self._wire.client.pipeline(transaction=False)
        pipe.xrange(key, count=_EVENTS)
        pipe.xrevrange(key, count=_EVENTS)
        pages: list[Any] = pipe.execute(raise_on_error=False)
        entries = [fields for page in pages if isinstance(page, list) for _, fields in page]
        return any(fields and text(fields.get(b"event", b"")) in _WORKED for fields in entries)

    def _worked_on(self, queues: Sequence[str]) -> list[str]:
        pipe = self._wire.client.pipeline(transaction=False)
        for queue in queues:
            pipe.llen(self._wire.key(queue, "active"))
            pipe.zcard(self._wire.key(queue, "completed"))
            pipe.zcard(self._wire.key(queue, "failed"))
            pipe.exists(self._wire.key(queue, "stalled-check"))
        answers = [number(one) for one in self._wire.answers(pipe)]
        return [queue for n, queue in enumerate(queues) if any(answers[4 * n : 4 * n + 4])]

    def _drop_those_worked_on(self) -> None:
        if worked := self._worked_on(sorted(self.seen)) if self.seen else []:
            self.seen -= set(worked)
            self._suspected |= set(worked)
