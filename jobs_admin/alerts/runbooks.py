"""Runbooks of tasks: one address per pattern of task names."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction
from django.db.models import Sum

from jobs_admin.alerts import checking
from jobs_admin.alerts.affected_groups import RisenGroup
from jobs_admin.core.matching import matches
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.db import audit
from jobs_admin.db.authorizing import authorize
from jobs_admin.models import Alert, FailureCount, Group, Runbook
from jobs_admin.models.access import EVERY_SOURCE, OPERATOR, VIEWER, Viewer

MOST = 500
LONGEST_TASK = 255


def runbooks(viewer: Viewer) -> list[Runbook]:
    """Return the runbooks by pattern. They apply to the entire desk, and every viewer can read them."""
    return list(Runbook.objects.order_by("task")[:MOST]) if viewer.may_anywhere(VIEWER) else []


def may_change(viewer: Viewer) -> bool:
    return viewer.may(OPERATOR, EVERY_SOURCE)


def save_runbook(viewer: Viewer, task: str, url: str) -> Runbook:
    """Save the address of this pattern; an existing one gets the new address. Raises Refused."""
    _authorize(viewer, "runbook.save", str(task)[:100])
    pattern = _parse_field("task", lambda: checking.parse_line(task, LONGEST_TASK, "A task"))
    address = _parse_field("url", lambda: checking.parse_url(url))
    if not pattern or not address:
        field = "task" if not pattern else "url"
        raise Refused("invalid", "Enter a task (wildcard *) and an address. Nothing was changed.", field)
    with transaction.atomic():
        before = Runbook.objects.select_for_update().filter(task=pattern).first()
        if before is None and Runbook.objects.count() >= MOST:
            raise Refused(
                "too_many", f"The limit of {MOST} runbooks is reached. Delete one first. Nothing was changed."
            )
        row, _ = Runbook.objects.update_or_create(
            task=pattern, defaults={"url": address, "changed_by": viewer.name[:150]}
        )
        was = before and {"task": before.task, "url": before.url}
        audit.record(viewer, "runbook.save", f"runbook:{row.pk}", before=was, after={"task": pattern, "url": address})
    return row


def delete_runbook(viewer: Viewer, pk: int) -> None:
    """Delete a runbook. Raises Refused, and NotFound."""
    found = Runbook.objects.filter(pk=pk).first()
    if found is None or not viewer.may_anywhere(VIEWER):
        raise NotFound("No such runbook.")
    _authorize(viewer, "runbook.delete", f"runbook:{pk}")
    with transaction.atomic():
        if not Runbook.objects.filter(pk=pk).delete()[0]:
            raise NotFound("No such runbook.")
        audit.record(viewer, "runbook.delete", f"runbook:{pk}", before={"task": found.task, "url": found.url})


def for_task(task: str) -> str:
    """Return the address of the most specific matching pattern: exact first, then by length before the first star."""
    fitting = [one for one in Runbook.objects.order_by("task")[:MOST] if matches(one.task, task)]
    best = max(fitting, key=lambda one: ("*" not in one.task, len(one.task.partition("*")[0]), one.task), default=None)
    return best.url if best is not None else ""


def _authorize(viewer: Viewer, act: str, name: str) -> None:
    message = "Changing a runbook needs the role {role} on {where}. Nothing was changed."
    authorize(viewer, OPERATOR, EVERY_SOURCE, act, name, message=message, field="source")


def _parse_field(field: str, read):
    try:
        return read()
    except ValueError as error:
        raise Refused("invalid", f"{error} Nothing was changed.", field) from error


def find_alert_runbook(alert: Alert, groups: Sequence[RisenGroup | Group]) -> str:
    """Return the rule's own runbook, else that of the group with most jobs, else that of the most frequent task."""
    if alert.rule.runbook_url or (groups and groups[0].runbook_url):
        return alert.rule.runbook_url or groups[0].runbook_url
    if not alert.source or not alert.subject or not Runbook.objects.exists():
        return ""
    row = FailureCount.objects.filter(source=alert.source, queue=alert.subject, state="dead", count__gt=0)
    task = row.values_list("task").annotate(n=Sum("count")).order_by("-n", "task").first()
    return for_task(task[0]) if task else ""
