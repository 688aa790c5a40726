"""Options of a replay: arguments, queue, job id, number of attempts, accepted obstacles and excluded groups."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs_admin import config
from jobs_admin.core import arguments
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable
from jobs_admin.db import abilities
from jobs_admin.models import DepthSample, FailureCount, Group, GroupAlias, Replay, Worker
from jobs_admin.models.group import TAKEN_IN
from jobs_admin.models.replay import START
from jobs_admin.sources.base import Capabilities

RESET, PRESERVED = "reset", "kept"
MOST_ATTEMPTS = 1_000
MOST_EXCLUDED = 500  # groups
LARGEST_PATCH = 100_000  # bytes of JSON

# Obstacles that exclude a job unless they are accepted by name.
ACCEPTABLE = ("unguarded", "chord", "expired", "unknown_task")


@dataclass(frozen=True, slots=True)
class Options:
    attempts: str | int = RESET  # reset: as many as the policy allows; kept: those that were left; or a number
    to_queue: str = ""  # empty: the queue that each job came from
    same_job_id: bool = False
    patch: dict[str, Any] | None = None  # JSON Merge Patch (RFC 7396) over {"args": …, "kwargs": …} of every job
    accept: tuple[str, ...] = ()  # of ACCEPTABLE
    # Ids of excluded groups; None: those that are likely to fail again (`prognosis`).
    without_groups: tuple[int, ...] | None = None

    @classmethod
    def parse(cls, values: Mapping[str, Any] | None) -> Options:
        """Parse a request's options. A missing value, or None, is the default. Raises Refused for the field."""
        if values is None:
            return cls()
        if not isinstance(values, Mapping):
            raise _bad_option("options", 'Options are an object such as {"attempts": 3, "to_queue": "slow"}.')
        given = {name: value for name, value in values.items() if value is not None}
        for name in given:
            if name not in cls.__slots__:
                raise _bad_option(
                    str(name)[:40], f"Options have no {str(name)[:40]!r}; they have {', '.join(cls.__slots__)}."
                )
        return cls(
            _attempts(given.get("attempts", RESET)),
            _to_queue(given.get("to_queue", "")),
            _same_job_id(given.get("same_job_id", False)),
            _patch(given.get("patch")),
            _accept(given.get("accept", ())),
            _without_groups(given.get("without_groups")),
        )

    @classmethod
    def from_replay(cls, replay: Replay, *, with_groups: bool = True) -> Options:
        """Return the options of a replay. `with_groups=False`: without the excluded groups, which lists do not load."""
        attempts = int(replay.attempts) if replay.attempts.isdigit() else replay.attempts
        groups = groups_excluded_at_start(replay) if with_groups else None
        return cls(attempts, replay.to_queue, replay.same_job_id, replay.patch, tuple(replay.accepted), groups)

    @property
    def digest(self) -> str:
        """Return a digest for a preview's snapshot: one hex digit for accepted obstacles, six for excluded groups."""
        accepted = sum(1 << n for n, name in enumerate(ACCEPTABLE) if name in self.accept)
        groups = hashlib.sha256(",".join(map(str, self.without_groups or ())).encode()).hexdigest()[:6]
        return f"{accepted:x}{groups}"

    def as_columns(self) -> dict[str, Any]:
        """Return the columns of `Replay` that store the options."""
        return {
            "attempts": str(self.attempts),
            "to_queue": self.to_queue,
            "same_job_id": self.same_job_id,
            "patch": self.patch,
            "accepted": list(self.accept),
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the options that differ from the defaults, for the audit and for screens."""
        usual = Options()
        names = [name for name in self.__slots__ if name != "without_groups"]  # shown separately, with reasons
        changed = {name: getattr(self, name) for name in names if getattr(self, name) != getattr(usual, name)}
        return changed | ({"accept": list(self.accept)} if self.accept else {})


def groups_excluded_at_start(replay: Replay) -> tuple[int, ...]:
    """Return the groups excluded in the draft; those set aside later are not options."""
    return tuple(sorted(row["group"] for row in replay.set_aside if row["phase"] == START))


def group_ids(fingerprints: Sequence[str], field: str = "without_groups") -> tuple[int, ...]:
    """Return the ids of groups by present or former fingerprint. Raises Refused for an unknown fingerprint."""
    named = dict(Group.objects.filter(fingerprint__in=fingerprints).values_list("fingerprint", "pk"))
    former = GroupAlias.objects.filter(fingerprint__in=fingerprints).values_list("fingerprint", "group_id")
    named = dict(former) | named
    for fingerprint in fingerprints:
        if fingerprint not in named:
            raise Refused(
                "bad_scope", f"There is no group {str(fingerprint)[:40]!r}. Nothing was changed.", field=field
            )
    return tuple(sorted({named[fingerprint] for fingerprint in fingerprints}))


def with_merging_groups(groups: Collection[int]) -> set[int]:
    """Return these groups and those that are being merged into them, which still have some of their jobs."""
    names = GroupAlias.objects.filter(group__in=groups).values_list("fingerprint", flat=True)
    moving = Group.objects.filter(fingerprint__in=[f"{TAKEN_IN}{name}"[:40] for name in names])
    return {*groups, *moving.values_list("pk", flat=True)}


def refuse_unfit(options: Options, sources: Sequence[str], priority: object = None) -> None:
    """Raise Refused for an option that one of these sources does not support, or for an unknown queue."""
    for source in sources:
        can = abilities.capabilities(source) or Capabilities()  # not configured: its jobs are excluded anyway
        if options.to_queue and not can.redirect:
            raise _bad_option("to_queue", f"{source} can only send jobs to the queue that they came from.")
        if options.to_queue and not knows_queue(source, options.to_queue):
            raise _bad_option(
                "to_queue",
                f"{source} has never had a queue named {options.to_queue!r}. Nothing was changed. "
                "See the queues page for its name.",
            )
        if options.patch is not None and not can.edit:
            raise _bad_option("patch", f"Jobs of {source} cannot be edited. Leave the change of arguments out.")
        if options.same_job_id and not can.same_id:
            raise _bad_option("same_job_id", f"{source} cannot send a job again with its former ID. Omit this option.")
        if options.attempts != RESET and not can.attempts:
            raise _bad_option("attempts", f"{source} cannot set how many attempts a job has made. Omit this option.")
        if priority is not None and not can.priority:
            raise Refused(
                "bad_pace",
                f"Jobs of {source} cannot be given a priority. Omit this option. Nothing was changed.",
                field="pace.priority",
            )


def knows_queue(source: str, queue: str) -> bool:
    """Return whether the queue of the source is known: sampled, consumed, configured, or named by a failure."""
    configured = config.sources().get(source)
    return (
        (configured is not None and queue in configured.queues)
        or DepthSample.objects.filter(source=source, queue=queue).exists()
        or FailureCount.objects.filter(source=source, queue=queue).exists()
        or any(queue in queues for queues in Worker.objects.filter(source=source).values_list("queues", flat=True))
    )


def _bad_option(field: str, message: str) -> Refused:
    return Refused("bad_option", message, field=field)


def _attempts(value: Any) -> str | int:
    text = str(value).strip()
    if text in (RESET, PRESERVED):
        return text
    is_number = isinstance(value, int | str) and not isinstance(value, bool)
    if not is_number or not (text.isascii() and text.isdigit() and len(text) < 9):
        raise _bad_option("attempts", f"attempts is reset, kept, or a number from 1 to {MOST_ATTEMPTS:,}.")
    if not 1 <= int(text) <= MOST_ATTEMPTS:
        raise _bad_option("attempts", f"A job can be given 1 to {MOST_ATTEMPTS:,} attempts, not {int(text):,}.")
    return int(text)


def _to_queue(value: Any) -> str:
    if not isinstance(value, str):
        raise _bad_option("to_queue", "to_queue is the name of a queue.")
    name = value.strip()
    if len(name) > 200 or representable(name) != name:
        raise _bad_option("to_queue", "A queue's name has at most 200 characters, and no NUL among them.")
    return name


def _same_job_id(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _bad_option("same_job_id", "same_job_id is true or false.")
    return value


def _accept(value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(name in ACCEPTABLE for name in names):
        raise _bad_option("accept", f"What can be accepted is {', '.join(ACCEPTABLE)}.")
    return tuple(name for name in ACCEPTABLE if name in names)


def _without_groups(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise _bad_option("without_groups", "without_groups must be a list of fingerprints.")
    if len(value) > MOST_EXCLUDED:
        raise _bad_option(
            "without_groups", f"At most {MOST_EXCLUDED} groups can be excluded. Narrow the search instead."
        )
    return group_ids(value)


def _patch(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not value or set(value) - {"args", "kwargs"}:
        raise _bad_option(
            "patch", 'A patch is an object with args, kwargs or both, such as {"kwargs": {"dry_run": true}}.'
        )
    if not isinstance(value.get("args", []), list):
        raise _bad_option(
            "patch", "The args of a patch are the whole new list: a merge patch cannot change one place of it."
        )
    if not isinstance(value.get("kwargs", {}), dict):
        raise _bad_option("patch", "The kwargs of a patch are an object; null inside it takes a name out.")
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise _bad_option(
            "patch", "The patch cannot be stored as JSON: it contains NaN or Infinity, or is nested too deep."
        ) from error
    if representable(text) != text or "\\u0000" in text.replace("\\\\", ""):
        raise _bad_option("patch", "The patch holds a NUL or half a character, which cannot be stored.")
    if len(text.encode()) > LARGEST_PATCH:
        raise _bad_option("patch", f"The patch is larger than {LARGEST_PATCH // 1000:,} kB.")
    try:
        arguments.refuse_placeholder(value, "patch")
    except Refused as error:
        raise _bad_option("patch", str(error)) from error
    return value
