"""Jobs that kill their worker and come back."""

from __future__ import annotations

from collections.abc import Iterator

from jobs_admin.core.lint.case import Case, Known
from jobs_admin.core.lint.finding import HIGH, LOW, Found, rule


@rule(
    "requeue-without-crash-cap",
    HIGH,
    title="What kills its worker is put back for ever",
    why="With `acks_late` and `reject_on_worker_lost` a job that kills its process is delivered again, at "
    "once and without end: 33 crashes in 7.7 s when we measured it, and no signal of Celery tells of it. "
    "A bound is `retry_on_worker_lost` (Celery 5.7, counts as a retry), a quorum queue's "
    "`x-delivery-limit`, or a policy with `poison` that is enforced in all workers of the app. Low on a "
    "quorum queue without a limit of its own: RabbitMQ has one since 4.0.",
    fix="Publish a policy with `poison` (3 crashes in 5 minutes) in mode enforce, or set `task_retry_on_worker_lost`.",
    source="https://github.com/celery/celery/issues/9082; Celery, Task.reject_on_worker_lost: “can cause message"
    " loops”",
)
def requeue_without_crash_cap(case: Case) -> Iterator[Found]:
    for known in case.tasks:
        task = known.task
        if not (task.acks_late and task.reject_on_worker_lost) or task.retry_on_worker_lost or _is_bounded(known):
            continue
        quoted = "acks_late=True, reject_on_worker_lost=True"
        queue = known.found.queue(task.queue)
        if known.found.app.broker != "amqp" or queue is None or queue.kind != "quorum":
            yield Found(known.where, "Nothing counts how often it has killed a worker.", quoted)
        elif queue.delivery_limit is None:
            evidence = f"The quorum queue {queue.name} sets no x-delivery-limit: 20 on RabbitMQ 4, none before."
            yield Found(known.where, evidence, quoted, LOW)


def _is_bounded(known: Known) -> bool:
    return known.enforced is not None and known.enforced.poison is not None
