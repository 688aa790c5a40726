"""Preview of a patch: the arguments of each job before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils import timezone

from jobs_admin import config
from jobs_admin.core.redacted_view import Piece, Veiled
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import whole_number
from jobs_admin.failures.contents import opened
from jobs_admin.fleet.signatures import Signatures, signatures
from jobs_admin.models import Failure, Payload
from jobs_admin.models.access import Viewer
from jobs_admin.replays import messages, target
from jobs_admin.replays.options import Options
from jobs_admin.replays.readiness import Readiness
from jobs_admin.replays.target import Target
from jobs_admin.sources.base import SourceRefused

MOST = 100  # jobs per page: each is decrypted and parsed


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments as displayed, with secrets redacted (core.redacted_view)."""

    args: Piece
    kwargs: Piece


@dataclass(frozen=True, slots=True)
class PatchedJob:
    failure: Failure
    before: Arguments | None = None  # None if unreadable; see `why`
    after: Arguments | None = None  # None also if unchanged
    why: str = ""


@dataclass(frozen=True, slots=True)
class PatchedPage:
    rows: list[PatchedJob]  # oldest first
    next: str | None  # pass it as `after`; None on the last page
    changed: int  # number of changed jobs among these rows
    unchanged: int
    unreadable: int


def list_patched_jobs(
    viewer: Viewer,
    scope: Target,
    patch: Mapping[str, Any],
    after: str | None = None,
    limit: int = 20,
    options: Options = Options(),  # noqa: B008 (frozen)
    now: datetime | None = None,
) -> PatchedPage:
    """Return a page of replayable jobs, each with its arguments before and after the patch. Changes nothing.

    Decrypts the real messages, as sending does. Raises Refused for an invalid patch.
    """
    limit = max(1, min(limit, MOST))
    read = Options.parse({"patch": patch}).patch or {}
    now = now or timezone.now()
    ready = Readiness(viewer, scope, max_id=target.highest_failure(), options=options, now=now).rows()
    if (cursor := whole_number(after)) is not None:
        ready = ready.filter(pk__gt=cursor)
    found = list(ready.defer("args", "kwargs", "headers", "message").order_by("pk")[: limit + 1])
    page = found[:limit]
    payloads = _latest_payloads(page)
    takes = signatures()
    rows = [_row(failure, payloads.get(failure.pk), read, takes) for failure in page]
    return PatchedPage(
        rows,
        str(page[-1].pk) if len(found) > limit else None,
        changed=sum(row.after is not None for row in rows),
        unchanged=sum(row.before is not None and row.after is None for row in rows),
        unreadable=sum(row.before is None for row in rows),
    )


def _latest_payloads(failures: list[Failure]) -> dict[int, Payload]:
    payloads = Payload.objects.filter(failure__in=[one.pk for one in failures], is_whole=True)
    return {payload.failure_id: payload for payload in payloads.order_by("run")}


def _row(failure: Failure, payload: Payload | None, patch: dict[str, Any], takes: Signatures) -> PatchedJob:
    try:
        if payload is None:
            raise SourceRefused("no complete message is stored")
        raw = opened(payload)
        adapter = config.adapter(failure.source)
        if not adapter.can.edit:
            raise SourceRefused(f"jobs of {failure.source} cannot be edited")
        args, kwargs = adapter.arguments(raw)
        new_args, new_kwargs = messages.patched_arguments(raw, failure.source, patch, failure.task, takes)
    except KeyError:
        return PatchedJob(failure, why=f"{failure.source} is not configured here.")
    except (SourceRefused, Refused) as error:
        return PatchedJob(failure, why=str(error))
    before = Arguments(Veiled(args), Veiled(kwargs))
    after = Arguments(
        Veiled(args if new_args is None else new_args), Veiled(kwargs if new_kwargs is None else new_kwargs)
    )
    is_same = before.args.same(after.args) and before.kwargs.same(after.kwargs)
    return PatchedJob(failure, before, None if is_same else after, "the patch does not change it" if is_same else "")
