"""Requests to force a breaker, if a replay of its jobs would need a second person.

Another operator confirms by the same act. A request is an audit event. It is valid for an hour, or until the breaker is
forced.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from jobs_admin import config
from jobs_admin.core.matching import matches, meet
from jobs_admin.core.text import terminal_line
from jobs_admin.fleet import heartbeats
from jobs_admin.models import AuditEvent, FailureCount, PolicyVersion

ACT, FORCE = "breaker.request", "breaker.force"
VALID = timedelta(hours=1)


def approval_reason(source: str, policies: tuple[PolicyVersion, ...], on_hold: int, tasks: Iterable[str]) -> str:
    """Return why a second person must confirm; "" if none is needed. `tasks`: of held jobs."""
    most = config.approve_above()
    if most is not None and on_hold > most:
        return f"{on_hold:,} jobs are held. Above {most:,}, another operator must confirm (REDRIVE_APPROVE_ABOVE)."
    if not config.dangerous_tasks():
        return ""
    failed = FailureCount.objects.filter(source=source).order_by().values_list("task", flat=True).distinct()
    registered = heartbeats.known_tasks(source)
    globs = [one.match_task for one in policies]
    known = {task for task in {*failed, *(registered or ())} if any(matches(glob, task) for glob in globs)}
    # A policy may match tasks that never failed: `shop.pay`, or `shop.pay*`.
    found = [task for task in sorted({*tasks, *known, *globs}) if config.is_dangerous(task)]
    if not found and registered is None:  # a worker may run any task that a policy matches
        found = [one for one in config.dangerous_tasks() if any(meet(glob, one) for glob in globs)]
    if not found:
        return ""
    return f"Another operator must confirm, because of task {terminal_line(found[0], 60)} (REDRIVE_DANGEROUS_TASKS)."


def find(object: str, now: datetime, **after: object) -> AuditEvent | None:
    """Return the latest valid request for a breaker; with `after`, only one with these values."""
    acts = AuditEvent.objects.filter(object=object, act__in=(ACT, FORCE), allowed=True, at__gt=now - VALID)
    latest = acts.order_by("-id").first()
    if latest is None or latest.act != ACT or not isinstance(latest.after, dict):
        return None
    return latest if all(latest.after.get(name) == value for name, value in after.items()) else None
