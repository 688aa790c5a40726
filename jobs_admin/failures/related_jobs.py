"""Related jobs of a failure: parents and children that also failed, and similar failures.

Jobs have their parent and root by id (Celery's headers), or parent and children by queue and id (BullMQ's flows).
Children are searched among the failures that arrived around it, up to a limit: an index on parents would cost every
failure for a query about few.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db.models import Q

from jobs_admin import failures
from jobs_admin.core import query as language
from jobs_admin.core import untrusted
from jobs_admin.core.query import parse
from jobs_admin.core.redaction import PLACEHOLDER
from jobs_admin.models import Failure, FailureCount
from jobs_admin.models.access import Viewer
from jobs_admin.search import scope as scopes

SEARCHED_BEFORE, SEARCHED_AFTER = 500, 2_500  # failures that arrived before and after it
MOST_SHOWN = 20
AROUND = timedelta(minutes=10)
MOST_PATHS = 4
# Names of arguments that identify the subject of a job.
_IDENTIFYING = (
    "id",
    "uuid",
    "email",
    "tenant",
    "customer",
    "user",
    "account",
    "order",
    "shop",
    "host",
    "url",
    "domain",
)

_LIGHT = (
    "pk",
    "source",
    "queue",
    "task",
    "state",
    "error_type",
    "job_id",
    "first_job_id",
    "run",
    "failed_at",
    "headers",
)


@dataclass(frozen=True, slots=True)
class Relative:
    """A related job: its id, and its failure if it also failed."""

    how: str  # parent, child, root, started, same root
    job_id: str
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Alike:
    """Failures that share a value with this one: the search for them, and their number."""

    what: str
    query: str
    count: failures.Count


@dataclass(slots=True)
class RelatedJobs:
    relatives: list[Relative] = field(default_factory=list)
    batch: str = ""  # Celery's group
    newer: int | None = None  # the next one in the same group and state
    older: int | None = None
    alike: list[Alike] = field(default_factory=list)


def find_related(viewer: Viewer, failure: Failure) -> RelatedJobs:
    found = RelatedJobs()
    headers = _mapping(failure.headers)
    found.batch = _id(headers.get("group"))
    found.relatives = [
        *_ancestors(viewer, failure, headers),
        *_in_flow(viewer, failure, headers),
        *_descendants(viewer, failure, headers),
    ]
    found.newer, found.older = _neighbours(viewer, failure)
    alike = (Alike(what, text, failures.count(viewer, parse(text))) for what, text in _searches(failure))
    # A search that does not even match this failure uses a value without an index: an argument deep in a structure.
    found.alike = [one for one in alike if one.count.number]
    return found


def _mapping(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _id(value: object) -> str:
    return untrusted.text(value, 255) if isinstance(value, str) and PLACEHOLDER not in value else ""


def _ancestors(viewer: Viewer, failure: Failure, headers: dict[str, Any]) -> list[Relative]:
    own = {failure.job_id, failure.first_job_id, _id(headers.get("id"))}
    ids = {how: job_id for how in ("parent", "root") if (job_id := _id(headers.get(f"{how}_id"))) and job_id not in own}
    if ids.get("root") == ids.get("parent"):
        ids.pop("root", None)
    known = _by_job(viewer, failure.source, ids.values()) if ids else {}
    return [Relative(how, job_id, known.get(job_id)) for how, job_id in ids.items()]


def _by_job(viewer: Viewer, source: str, job_ids: Iterable[str]) -> dict[str, Failure]:
    """Return job id, of any known run -> its failure."""
    ids = list(job_ids)
    # With its queues, because the index on first ids starts with the queue.
    queues = FailureCount.objects.filter(source=source).values_list("queue", flat=True).distinct()
    named = Q(job_id__in=ids) | Q(queue__in=list(queues), first_job_id__in=ids)
    rows = Failure.objects.filter(scopes.visible(viewer), named, source=source).only(*_LIGHT)[:MOST_SHOWN]
    return {job_id: row for row in rows for job_id in (row.job_id, row.first_job_id)}


def _in_flow(viewer: Viewer, failure: Failure, headers: dict[str, Any]) -> list[Relative]:
    """Return parent and children, as in the headers of BullMQ's jobs (`sources/bullmq/job_hash.py`, `jobs.py`)."""
    named: list[tuple[str, str, str]] = []  # how, queue, id
    parent, children = headers.get("parent"), headers.get("children")
    if isinstance(parent, dict) and (job_id := _id(parent.get("id"))):
        named.append(("parent", _id(parent.get("queue")), job_id))
    for kind in children.values() if isinstance(children, dict) else ():
        some = kind.get("some") if isinstance(kind, dict) else None
        for key in some if isinstance(some, list) else ():
            queue, _, job_id = _id(key).partition(":")
            named += [("child", queue, job_id)] if job_id else []
    named = named[:MOST_SHOWN]
    if not named:
        return []
    wanted = Q()
    for _, queue, job_id in named:
        wanted |= Q(queue=queue, first_job_id=job_id)
    rows = Failure.objects.filter(scopes.visible(viewer), wanted, source=failure.source).only(*_LIGHT)
    known = {(row.queue, row.first_job_id): row for row in rows}
    return [Relative(how, job_id, known.get((queue, job_id))) for how, queue, job_id in named]


def _descendants(viewer: Viewer, failure: Failure, headers: dict[str, Any]) -> list[Relative]:
    """Return failures around this one that name it as their parent, or that have the same root."""
    own = [failure.job_id, failure.first_job_id]
    root = _id(headers.get("root_id")) or failure.first_job_id
    around = Failure.objects.filter(
        scopes.visible(viewer),
        source=failure.source,
        pk__gte=failure.pk - SEARCHED_BEFORE,
        pk__lte=failure.pk + SEARCHED_AFTER,
    ).exclude(pk=failure.pk)
    named = Q()
    for job_id in {*own, root}:
        named |= Q(headers__contains=json.dumps(job_id))
    found = []
    for row in around.filter(named).only(*_LIGHT).order_by("pk")[: 3 * MOST_SHOWN]:
        theirs = _mapping(row.headers)
        if _id(theirs.get("parent_id")) in own:
            found.append(Relative("started", row.first_job_id, row))
        elif _id(theirs.get("root_id")) == root and row.first_job_id not in {root, _id(headers.get("parent_id"))}:
            found.append(Relative("same root", row.first_job_id, row))
    return sorted(found, key=lambda relative: relative.how != "started")[:MOST_SHOWN]


def _neighbours(viewer: Viewer, failure: Failure) -> tuple[int | None, int | None]:
    if failure.group_id is None:
        return None, None
    same = Failure.objects.filter(scopes.visible(viewer), group_id=failure.group_id, state=failure.state)
    newer = same.filter(pk__gt=failure.pk).order_by("pk").values_list("pk", flat=True).first()
    older = same.filter(pk__lt=failure.pk).order_by("-pk").values_list("pk", flat=True).first()
    return newer, older


def _searches(failure: Failure) -> Iterator[tuple[str, str]]:
    """Yield (shared value, search), each in every state."""

    def build_search(*pairs: tuple[str, str]) -> str:
        return " ".join([*(language.qualifier(name, value) for name, value in pairs), "state:any"])

    if failure.group:
        group = ("group", failure.group.name)
        yield "same group", build_search(group)
        if failure.tenant:
            yield "same tenant, in this group", build_search(group, ("tenant", failure.tenant))
    if failure.tenant:
        yield "same tenant", build_search(("tenant", failure.tenant))
    for path, value in identifying_arguments(failure):
        yield f"same {path}", build_search((path, value))
    if failure.worker and failure.failed_at >= untrusted.FIRST:  # rows of earlier versions may be dated to year 1
        since, until = (failure.failed_at + step for step in (-AROUND, AROUND))
        moment = "%Y-%m-%dT%H:%M:%SZ"
        span = f"since:{since:{moment}} until:{until:{moment}}"
        yield "same worker, within 10 minutes", f"{build_search(('worker', failure.worker))} {span}"


def identifying_arguments(failure: Failure) -> list[tuple[str, str]]:
    """Return (path, value) of the arguments that identify the job's subject, at most MOST_PATHS."""
    found: list[tuple[str, str]] = []
    for root, text in (("kwargs", failure.kwargs), ("args", failure.args)):
        try:
            waiting = [(root, json.loads(text))] if text else []
        except (ValueError, RecursionError):
            continue
        visited = 0
        while waiting and visited < 200 and len(found) < MOST_PATHS:
            path, value = waiting.pop(0)
            visited += 1
            if isinstance(value, dict):
                waiting += [(f"{path}.{name}", inner) for name, inner in value.items() if _is_plain(name)]
            elif isinstance(value, list):
                waiting += [(f"{path}.{n}", inner) for n, inner in enumerate(value[:20])]
            elif _is_identifying(path.rpartition(".")[2], value):
                found.append((path, value if isinstance(value, str) else json.dumps(value)))
    return found


def _is_plain(name: str) -> bool:
    return 0 < len(name) <= 60 and name.replace("_", "").replace("-", "").isalnum()


def _is_identifying(name: str, value: object) -> bool:
    is_name = any(name.lower() == word or name.lower().endswith(f"_{word}") for word in _IDENTIFYING)
    if not is_name or isinstance(value, bool | float) or value is None:
        return False
    return not isinstance(value, str) or (0 < len(value) <= 100 and PLACEHOLDER not in value and "…" not in value)
