"""Findings on a BullMQ Redis that endangers jobs or prevents Redrive from writing."""

from __future__ import annotations

from jobs_admin.core.text import list_some
from jobs_admin.sources.base import READ_ONLY, Finding
from jobs_admin.sources.bullmq.wire import Version, Wire
from jobs_admin.sources.one_redis import memory_findings, read_only_findings, unread_findings

_NAMED = 5  # queues per sentence


def collect_findings(wire: Wire, major: int | None) -> list[Finding]:
    """Return the findings of one source. `major`: of queues that do not state theirs."""
    return [
        *read_only_findings(wire.why_read_only()),
        *_versions(wire, major),
        *unread_findings(wire.queues(), wire.unread),  # `queues` counts them
        *memory_findings(wire.client, wire.system),
    ]


def _versions(wire: Wire, major: int | None) -> list[Finding]:
    versions = wire.versions_of(wire.queues())
    unknown = {queue: one for queue, one in versions.items() if not _is_known(one, major)}
    others = {queue: one for queue, one in unknown.items() if one.backend}
    unknown = {queue: one for queue, one in unknown.items() if not one.backend}
    paused = [queue for queue, one in versions.items() if one.is_paused]
    found = []
    if others or wire.has_others:
        system, backend = ("Bull", "bull") if wire.system == "BullMQ" else ("BullMQ", "bullmq")
        found.append(
            Finding(
                READ_ONLY if len(others) == len(versions) else "another-system",
                "high",
                f"{_some(others) if others else 'The queues under this prefix'} {'is' if len(others) == 1 else 'are'} written by {system}, "
                f"not by {wire.system}: nothing is sent there, taken out or changed.",
                f'Read {"it" if len(others) == 1 else "them"} in a source with backend = "{backend}".',
            )
        )
    if unknown:
        texts = sorted({one.written_by or "no version" for one in unknown.values()})
        are_all = len(unknown) == len(versions)
        whose = "Its queues say" if are_all else f"{_some(unknown)} say"
        found.append(
            Finding(
                READ_ONLY if are_all else "unknown-version",
                "high",
                f"{whose} {', '.join(texts)[:200]}; only {wire.known} are known. Their jobs are read as well as may be, and "
                "nothing is sent there, taken out or changed.",
                f"Upgrade Redrive, or send those jobs with {wire.system}'s own means."
                + (
                    " Where a queue says no version, set major = 4, 5 or 6 for this source."
                    if wire.system == "BullMQ"
                    else ""
                ),
            )
        )
    if paused:
        found.append(
            Finding(
                "paused",
                "info",
                f"{_some(paused)} {'is' if len(paused) == 1 else 'are'} paused: what is sent there waits.",
                "Resume the queue (`queue.resume()`) when its jobs may run.",
            )
        )
    return found


def _is_known(version: Version, major: int | None) -> bool:
    return version.major is not None or (not version.written_by and major is not None)


def _some(queues: dict[str, Version] | list[str]) -> str:
    names = sorted(queues)
    return ("Queue " if len(names) == 1 else "Queues ") + list_some([name[:60] for name in names], _NAMED)
