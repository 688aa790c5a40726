"""Outgoing messages of items: the captured bytes, with edited or patched arguments."""

from __future__ import annotations

import json
from typing import Any, Protocol

from jobs_admin import config
from jobs_admin.core import arguments
from jobs_admin.core.arguments import merge_patch
from jobs_admin.core.priority import number
from jobs_admin.core.refused import Refused
from jobs_admin.db.abilities import scale_of
from jobs_admin.failures.contents import opened
from jobs_admin.fleet.signatures import Signatures, signatures
from jobs_admin.models import Failure, Payload, Replay
from jobs_admin.models.failure import Caveat
from jobs_admin.replays.claiming import Claimed
from jobs_admin.replays.target import Target
from jobs_admin.sources.base import OutgoingMessage, SourceRefused

_UNKNOWN = Signatures()


class Writer:
    """Builder of the messages of one replay. Reads no table, so that it can run beside code that does."""

    def __init__(self, replay: Replay) -> None:
        self._key = replay.key
        key = replay.key
        # A UUID of version 8 (RFC 9562) that ends with the item's place: cheap to create, and the ids of one replay are
        # adjacent in every index.
        self._ids = f"{key[:8]}-{key[8:12]}-8{key[13:16]}-{key[16:20]}-"
        self._edit = replay.edit
        self._patch = replay.patch
        self._attempts = replay.attempts
        self._to_queue = replay.to_queue
        self._same_job_id = replay.same_job_id
        # Read once: a patch changes the arguments of many jobs, and an edit was checked when it was drafted.
        self._signatures = signatures() if replay.patch is not None else _UNKNOWN
        self._in_place = {name for name in config.sources() if _is_in_place(name)}
        self.priority = replay.pace.get("priority")  # of messages built from now on; a new pace may change it

    def job_id(self, item: Claimed) -> str:
        """Return the id of the job in its new run, the same for every attempt to send the item."""
        if self._same_job_id or item.source in self._in_place:
            return item.last_job_id
        return f"{self._ids}{item.n:012x}"

    def queue(self, item: Claimed) -> str:
        return self._to_queue or item.queue

    def build(self, item: Claimed) -> OutgoingMessage:
        """Return the message to send. Raises SourceRefused or Refused if it can never be sent."""
        if not item.body:
            raise SourceRefused("no complete message is stored", token=item.pk)
        raw = item.body if item.is_open else opened(item)
        args, kwargs = self._arguments(item, raw)
        lineage = {
            "queue": item.queue, "job_id": item.first_job_id, "run": item.run, "item": item.pk, "replay": self._key,
            "sent_as": item.job_id,
        }  # fmt: skip
        return OutgoingMessage(
            item.pk,
            raw,
            self.queue(item),
            item.job_id,
            lineage,
            args,
            kwargs,
            self._priority(item),
            self._retries(item),
            was_removed=bool((item.caveats or 0) & Caveat.REMOVED),
        )

    def _priority(self, item: Claimed) -> int | None:
        priority = self.priority
        return number(priority, scale_of(item.source)) if isinstance(priority, str) else priority

    def _arguments(self, item: Claimed, raw: bytes) -> tuple[list[Any] | None, dict[str, Any] | None]:
        if self._edit is not None:
            return edited_arguments(raw, item, self._edit)
        if self._patch is not None:
            return patched_arguments(raw, item.source, self._patch, item.task, self._signatures)
        return None, None

    def _retries(self, item: Claimed) -> int | None:
        """Return the number of retries that count as used; None: unchanged."""
        if self._attempts == "reset":
            return 0
        if self._attempts == "kept":
            return None
        if item.max_attempts is None:
            raise SourceRefused(
                f"its maximum attempts are unknown, so it cannot be given {self._attempts}", token=item.pk
            )
        return max(0, item.max_attempts - int(self._attempts))


def _is_in_place(source: str) -> bool:
    try:
        return config.adapter(source).can.in_place
    except SourceRefused:
        return False  # nothing can be sent there


class Shown(Protocol):
    """A job as displayed: JSON text, redacted and truncated."""

    @property
    def source(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def args(self) -> str: ...
    @property
    def kwargs(self) -> str: ...


def edited_arguments(raw: bytes, shown: Shown, edit: dict[str, Any]) -> tuple[list[Any] | None, dict[str, Any] | None]:
    """Return the edited arguments.

    Raises SourceRefused for a message that cannot be edited, Refused for an invalid edit.
    """
    adapter = config.adapter(shown.source)
    real_args, real_kwargs = adapter.arguments(raw)
    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None
    if "args" in edit:
        args = arguments.merge(real_args, _parse_shown(shown.args, "args"), edit["args"], "args")
    if "kwargs" in edit:
        kwargs = arguments.merge(real_kwargs, _parse_shown(shown.kwargs, "kwargs"), edit["kwargs"], "kwargs")
    adapter.check_arguments(raw, real_args if args is None else args, real_kwargs if kwargs is None else kwargs)
    return args, kwargs


def patched_arguments(
    raw: bytes, source: str, patch: dict[str, Any], task: str = "", takes: Signatures = _UNKNOWN
) -> tuple[list[Any] | None, dict[str, Any] | None]:
    """Return the real arguments after a JSON Merge Patch to {"args": …, "kwargs": …}; None for an unchanged part.

    Raises SourceRefused for a message that cannot be edited, Refused if the patch removes all arguments or the task
    does not accept the result.
    """
    # The real arguments contain no placeholders, and the patch may not add any.
    arguments.refuse_placeholder(patch, "patch")
    adapter = config.adapter(source)
    real_args, real_kwargs = adapter.arguments(raw)
    merged = merge_patch({"args": real_args, "kwargs": real_kwargs}, patch)
    args, kwargs = merged.get("args"), merged.get("kwargs")
    if not isinstance(args, list):
        raise Refused("args", "With this patch args would be no list.")
    if not isinstance(kwargs, dict):
        raise Refused("kwargs", "With this patch kwargs would be no object.")
    adapter.check_arguments(raw, args, kwargs)
    takes.check(source, task, args, kwargs)
    return args if "args" in patch else None, kwargs if "kwargs" in patch else None


def _parse_shown(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused("bad_edit", f"{name} could not be read or shown, so they cannot be edited.", name) from error


def editable_fields(failure: Failure) -> tuple[str, ...]:
    """Return which of args and kwargs the job can have: jobs of some systems have a single value."""
    payload = Payload.objects.filter(failure=failure, is_whole=True).order_by("-run").first()
    if payload is None:
        return ("args", "kwargs")
    try:
        adapter, raw = config.adapter(failure.source), opened(payload)
        args, kwargs = adapter.arguments(raw)
    except (KeyError, SourceRefused):
        return ("args", "kwargs")  # the attempt to edit it reports why it cannot be edited
    fields = []
    for name, is_there, more in (
        ("args", bool(args), ([None], kwargs)),
        ("kwargs", bool(kwargs), (args, {"name": None})),
    ):
        try:
            if not is_there:
                adapter.check_arguments(raw, *more)
        except SourceRefused:
            continue
        fields.append(name)
    return tuple(fields)


def check_edit(scope: Target, edit: dict[str, Any]) -> None:
    """Try the edit on the real message and discard the result. Raises Refused for the field."""
    if not scope.is_one_job:
        raise Refused("bad_edit", "Arguments can be edited for one job at a time.", field="args")
    unknown = set(edit) - {"args", "kwargs"}
    if unknown:
        raise Refused("bad_edit", f"An edit has args and kwargs, not {sorted(unknown)[0]!r}.", field="args")
    for name, kind, word in (("args", list, "a JSON list"), ("kwargs", dict, "a JSON object")):
        if name in edit and not isinstance(edit[name], kind):
            raise Refused("bad_edit", f"{name} must be {word}.", field=name)
    failure = Failure.objects.get(pk=scope.selection[0])
    payload = Payload.objects.filter(failure=failure, is_whole=True).order_by("-run").first()
    try:
        if payload is None:
            raise SourceRefused("No complete message is stored, so it cannot be edited.")
        if not config.adapter(failure.source).can.edit:
            raise SourceRefused(f"Jobs of {failure.source} cannot be edited.")
        raw = opened(payload)
        args, kwargs = edited_arguments(raw, failure, edit)
        real_args, real_kwargs = config.adapter(failure.source).arguments(raw)
        signatures().check(
            failure.source, failure.task, real_args if args is None else args, real_kwargs if kwargs is None else kwargs
        )
    except Refused as error:
        raise Refused("bad_edit", error.message, (error.field or "").partition(".")[0]) from error
    except SourceRefused as error:
        raise Refused("bad_edit", str(error), field="args") from error
