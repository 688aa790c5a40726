"""From an item to the message that is sent: the captured bytes, and edited arguments laid over them."""

from __future__ import annotations

import json
import uuid
from typing import Any

from jobs_admin import config
from jobs_admin.contents import opened
from jobs_admin.core import editing
from jobs_admin.core.envelope import Lineage
from jobs_admin.models import Failure, Payload, Replay, ReplayItem
from jobs_admin.replays.refusals import ReplayRefused
from jobs_admin.replays.scoping import Scope
from jobs_admin.sources.base import Letter, SourceRefused


def new_job_id(replay: Replay, n: int) -> str:
    """The same for every try to send the item."""
    return str(uuid.uuid5(uuid.UUID(hex=replay.key), str(n)))


def letter(replay: Replay, item: ReplayItem, payload: Payload | None) -> Letter:
    """What to send for an item (with its failure loaded). Raises SourceRefused where it can never be sent."""
    if payload is None:
        raise SourceRefused("no whole message is kept", token=item.pk)
    raw = opened(payload)
    failure = item.failure
    lineage = Lineage(queue=failure.queue, job_id=failure.first_job_id, run=item.run, item=item.pk, replay=replay.key)
    args = kwargs = None
    if replay.edit is not None:
        args, kwargs = edited_arguments(raw, failure, replay.edit)
    return Letter(item.pk, raw, failure.queue, item.job_id, lineage.as_header(), args, kwargs)


def payloads_for(items: list[ReplayItem]) -> dict[int, Payload]:
    """Failure id -> the latest whole message from before the run that the item starts."""
    runs = {item.failure_id: item.run for item in items}
    found: dict[int, Payload] = {}
    for payload in Payload.objects.filter(failure__in=runs, is_whole=True).order_by("run"):
        if payload.run < runs[payload.failure_id]:
            found[payload.failure_id] = payload
    return found


def edited_arguments(
    raw: bytes, failure: Failure, edit: dict[str, Any]
) -> tuple[list[Any] | None, dict[str, Any] | None]:
    """The arguments to send. Raises SourceRefused for a message that cannot be edited, EditRefused for the edit itself."""
    real_args, real_kwargs = config.adapter(failure.source).arguments(raw)
    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None
    if "args" in edit:
        args = editing.merge(real_args, _shown(failure.args, "args"), edit["args"], "args")
    if "kwargs" in edit:
        kwargs = editing.merge(real_kwargs, _shown(failure.kwargs, "kwargs"), edit["kwargs"], "kwargs")
    return args, kwargs


def _shown(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise editing.EditRefused(name, f"{name} could not be read or shown, so they cannot be edited.") from error


def check_edit(scope: Scope, edit: dict[str, Any]) -> None:
    """Try the edit on the real message without keeping the result. Raises ReplayRefused beside the field."""
    if not scope.is_one_job:
        raise ReplayRefused("bad_edit", "Arguments can be edited for one job at a time.", field="args")
    unknown = set(edit) - {"args", "kwargs"}
    if unknown:
        raise ReplayRefused("bad_edit", f"An edit has args and kwargs, not {sorted(unknown)[0]!r}.", field="args")
    for name, kind, word in (("args", list, "a JSON list"), ("kwargs", dict, "a JSON object")):
        if name in edit and not isinstance(edit[name], kind):
            raise ReplayRefused("bad_edit", f"{name} must be {word}.", field=name)
    failure = Failure.objects.get(pk=scope.selection[0])
    payload = Payload.objects.filter(failure=failure, is_whole=True).order_by("-run").first()
    try:
        if payload is None:
            raise SourceRefused("No whole message is kept, so it cannot be edited.")
        if not config.adapter(failure.source).can.edit:
            raise SourceRefused(f"Jobs of {failure.source} cannot be edited.")
        edited_arguments(opened(payload), failure, edit)
    except editing.EditRefused as error:
        raise ReplayRefused("bad_edit", str(error), field=error.path.partition(".")[0]) from error
    except SourceRefused as error:
        raise ReplayRefused("bad_edit", str(error), field="args") from error
