"""Workers of BullMQ's queues, and the state of its Redis that endangers jobs or keeps us from writing."""

from __future__ import annotations

import base64
import binascii

import redis

from jobs_admin.sources.base import READ_ONLY, Finding
from jobs_admin.sources.bullmq.wire import Version, Wire, setting, text

_NAMED = 5  # queues that one sentence names


def workers(wire: Wire) -> dict[str, set[str]] | None:
    """Workers by the names of their connections (`bull:<queue in base64>`); None where we may not list connections."""
    try:
        clients = wire.client.client_list()
    except redis.ResponseError:
        return None
    found: dict[str, set[str]] = {}
    for client in clients:
        queue = _works_on(wire, text(client.get("name", "")))
        if queue is not None:
            found.setdefault(queue, set()).add(text(client.get("addr", "")))
    return found


def _works_on(wire: Wire, name: str) -> str | None:
    head = f"{wire.prefix}:"
    if not name.startswith(head):
        return None
    try:
        return base64.b64decode(name[len(head) :].partition(":")[0], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def findings(wire: Wire, major: int | None) -> list[Finding]:
    """Findings of one source. `major`: of queues that do not say it."""
    return [*_rights(wire), *_versions(wire, major), *_unread(wire), *_settings(wire)]


def _rights(wire: Wire) -> list[Finding]:
    if not (why := wire.why_read_only()):
        return []
    fix = "Give its URL another user, or that of the primary."
    return [Finding(READ_ONLY, "high", f"{why} Jobs are read; nothing is sent there, taken out or changed.", fix)]


def _unread(wire: Wire) -> list[Finding]:
    if not wire.unread:
        return []
    return [
        Finding(
            "queues-not-read",
            "high",
            f"{len(wire.queues())} queues are read, the first by name; {wire.unread} more that were found are not, and nothing of what "
            "fails there is shown.",
            'Name those that matter: queues = ["…"] for this source, or share them out among several sources.',
        )
    ]


def _versions(wire: Wire, major: int | None) -> list[Finding]:
    versions = wire.versions_of(wire.queues())
    unknown = {queue: one for queue, one in versions.items() if not _is_known(one, major)}
    paused = [queue for queue, one in versions.items() if one.is_paused]
    found = []
    if unknown:
        texts = sorted({one.written_by or "no version" for one in unknown.values()})
        are_all = len(unknown) == len(versions)
        whose = "Its queues say" if are_all else f"{_some(unknown)} say"
        found.append(
            Finding(
                READ_ONLY if are_all else "unknown-version",
                "high",
                f"{whose} {', '.join(texts)[:200]}; only BullMQ 4, 5 and 6 are known. Their jobs are read as well as may be, and "
                "nothing is sent there, taken out or changed.",
                "Upgrade Redrive, or send those jobs with BullMQ's own means. Where a queue says no version, set major = 4, 5 or 6 for "
                "this source.",
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
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ("Queue " if len(names) == 1 else "Queues ") + ", ".join(name[:60] for name in names[:_NAMED]) + more


def _settings(wire: Wire) -> list[Finding]:
    try:
        settings = wire.client.config_get("maxmemory-policy")
    except redis.ResponseError:
        return [
            Finding(
                "settings-unknown",
                "info",
                "Redis does not tell its settings (CONFIG is not allowed), so they are not checked.",
                "Allow CONFIG GET to this user, or see yourself that maxmemory-policy is noeviction.",
            )
        ]
    policy = setting(settings, "maxmemory-policy")
    if policy in {"noeviction", ""}:
        return []
    return [
        Finding(
            "eviction",
            "high",
            f"maxmemory-policy is {policy}: when its memory is full, Redis throws jobs away, or parts of them, without a word.",
            "CONFIG SET maxmemory-policy noeviction, and the same in its configuration file: BullMQ needs it.",
        )
    ]
