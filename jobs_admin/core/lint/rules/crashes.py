"""Jobs that kill their worker and come back."""

from __future__ import annotations

from collections.abc import Iterator

from jobs_admin.core.lint.case import Case, enforced
from jobs_admin.core.lint.configuration import Configuration, Task
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
    for found, task, where in case.tasks():
        if (
            task.acks_late
            and task.reject_on_worker_lost
            and not task.retry_on_worker_lost
            and not _is_bounded(case, found, task)
        ):
            yield Found(
                where, "Nothing counts how often it has killed a worker.", "acks_late=True, reject_on_worker_lost=True"
            )  # fmt: skip


def _is_bounded(case: Case, found: Configuration, task: Task) -> bool:
    policy = enforced(case.policies, found.source, task.queue, task.name, found.modes)
    if policy is not None and policy.poison is not None:
        return True
    queue = found.queue(task.queue)
    return (
        found.app.broker == "amqp" and queue is not None and queue.kind == "quorum" and queue.delivery_limit is not None
    )
