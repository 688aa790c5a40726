"""Check of edited arguments against the signatures that live workers report. Unreported tasks are not checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from jobs_admin.core.refused import Refused
from jobs_admin.core.signature import Signature, read
from jobs_admin.fleet import configurations
from jobs_admin.models.access import ENGINE


@dataclass(frozen=True, slots=True)
class Signatures:
    """Reported signatures: (source, task) -> one for each version of the code that a live worker runs."""

    reported: Mapping[tuple[str, str], tuple[Signature, ...]] = field(default_factory=dict)

    def for_task(self, source: str, task: str) -> tuple[Signature, ...]:
        """Return a task's signatures; empty unless every live worker that has the task reports one."""
        return self.reported.get((source, task), ())

    def check(self, source: str, task: str, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Raise Refused if the call fits no version of the task that a live worker runs."""
        refused = None
        for one in self.for_task(source, task):
            try:
                return one.check(task, args, kwargs)
            except Refused as error:
                refused = error
        if refused is not None:
            raise refused


def signatures(now: datetime | None = None) -> Signatures:
    """Return the signatures of all tasks; empty if the store does not answer. Two store round trips, one query."""
    reported = configurations.reported_configurations(ENGINE, now)
    found: dict[tuple[str, str], list[Signature] | None] = {}
    for one in reported.found:
        if one.source not in reported.complete:
            continue  # a worker that reports none, or no live worker: the present configuration is unknown
        for task in one.tasks:
            place, signature = (one.source, task.name), None if task.signature is None else read(task.signature)
            known = found.setdefault(place, [])
            if signature is None:
                found[place] = None
            elif known is not None:
                known.append(signature)
    return Signatures({place: tuple(known) for place, known in found.items() if known})
