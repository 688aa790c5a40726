"""Jobs that kill their worker and come back."""

from __future__ import annotations

from collections.abc import Iterator

from jobs_admin.core.lint.case import Case, Known
from jobs_admin.core.lint.finding import HIGH, Found, rule


@rule(
    "requeue-without-crash-cap",
    HIGH,
    title="What kills its worker is put back for ever",
    why="With `acks_late` and `reject_on_worker_lost` a job that kills its process is delivered again, at "
    "once and without end: 33 crashes in 7.7 s when we measured it, and no signal of Celery tells of it. "
    "A bound is `retry_on_worker_lost` (Celery 5.7, counts as a retry), a quorum queue's "
    "`x-delivery-limit`, or a policy with `poison` that is enforced in all workers of the app.",
    fix="Publish a policy with `poison` (3 crashes in 5 minutes) in mode enforce, or set `task_retry_on_worker_lost`.",
    source="https://github.com/celery/celery/issues/9082; Celery, Task.reject_on_worker_lost: “can cause message"
    " loops”",
)
def requeue_without_crash_cap(case: Case) -> Iterator[Found]:
    for known in case.tasks:
        task = known.task
        if task.acks_late and task.reject_on_worker_lost and not task.retry_on_worker_lost and not _is_bounded(known):
            quoted = "acks_late=True, reject_on_worker_lost=True"
            yield Found(known.where, "Nothing counts how often it has killed a worker.", quoted)


def _is_bounded(known: Known) -> bool:
    policy, found = known.enforced, known.found
    if policy is not None and policy.poison is not None:
        return True
    queue = found.queue(known.task.queue)
    return (
        found.app.broker == "amqp" and queue is not None and queue.kind == "quorum" and queue.delivery_limit is not None
    )
