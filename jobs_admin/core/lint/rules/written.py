"""Settings that do not do what is written."""

from __future__ import annotations

from collections.abc import Iterator

from jobs_admin.core.lint.case import Case
from jobs_admin.core.lint.curve import AUTORETRY
from jobs_admin.core.lint.finding import HIGH, LOW, MEDIUM, Found, rule
from jobs_admin.core.lint.words import span


@rule(
    "backoff-above-its-cap",
    HIGH,
    title="retry_backoff above retry_backoff_max",
    why="Celery takes the smaller of the two at every retry, and `retry_backoff_max` is 600 where it is not "
    "set: `retry_backoff=3600` never waits an hour, all retries come within minutes.",
    fix="Raise `retry_backoff_max` above the longest wait that is wanted.",
    source="https://github.com/hypothesis/lms/pull/5511",
)
def backoff_above_its_cap(case: Case) -> Iterator[Found]:
    for curve in case.of_tasks:
        task = curve.task
        if task is not None and curve.by == AUTORETRY and int(task.retry_backoff) > task.retry_backoff_max:
            wanted, cap = span(int(task.retry_backoff)), span(task.retry_backoff_max)
            yield Found(curve.where, f"It is to begin with {wanted}, and never waits longer than {cap}.", curve.quoted)


@rule(
    "backoff-without-autoretry",
    MEDIUM,
    title="retry_backoff that nothing reads",
    why="`retry_backoff` belongs to `autoretry_for`. Without it nothing reads it: `self.retry()` waits for "
    "`default_retry_delay`, 180 s where that is not set, every time.",
    fix="Name the errors in `autoretry_for`, or hand `self.retry` a `countdown` that grows.",
    source="Celery, celery/app/autoretry.py and Task.retry",
)
def backoff_without_autoretry(case: Case) -> Iterator[Found]:
    for known in case.tasks:
        task, where = known.task, known.where
        if task.idle_backoff:
            yield Found(
                where, "retry_backoff is set, and autoretry_for is not.", f"retry_backoff={task.retry_backoff:g}"
            )


@rule(
    "soft-limit-never-fires",
    MEDIUM,
    title="Soft time limit at or above the hard one",
    why="The hard limit kills the process before the soft one is raised: the task never cleans up, and its "
    "job ends as a killed worker instead of an error that can be retried.",
    fix="Set `soft_time_limit` some seconds below `time_limit`.",
    source="Celery, Workers guide: Time Limits",
)
def soft_limit_never_fires(case: Case) -> Iterator[Found]:
    for known in case.tasks:
        task, where = known.task, known.where
        soft, hard = task.soft_time_limit, task.time_limit
        if soft and hard and soft >= hard:
            yield Found(
                where, f"Soft after {span(soft)}, killed after {span(hard)}.", f"soft_time_limit={soft:g}, time_limit={hard:g}"
            )  # fmt: skip


@rule(
    "requeue-without-late-ack",
    LOW,
    title="reject_on_worker_lost without late ack",
    why="A job that was acknowledged before it ran cannot be put back: without `acks_late` the setting does "
    "nothing, and a worker that dies takes its job with it.",
    fix="Set `acks_late=True` too, together with a policy that quarantines what keeps crashing; or take the "
    "setting away.",
    source="Celery, Task.reject_on_worker_lost",
)
def requeue_without_late_ack(case: Case) -> Iterator[Found]:
    for known in case.tasks:
        task, where = known.task, known.where
        if task.reject_on_worker_lost and not task.acks_late:
            yield Found(
                where, "Its jobs are acknowledged before they run.", "reject_on_worker_lost=True, acks_late=False"
            )  # fmt: skip
