"""Rules about the number of attempts (too few for an outage, unlimited, none), and about settings without their
effect.
"""

from __future__ import annotations

from collections.abc import Iterator

from jobs_admin.core.backoff import Range
from jobs_admin.core.figures import exact_duration
from jobs_admin.core.lint.case import Case
from jobs_admin.core.lint.curve import AUTORETRY
from jobs_admin.core.lint.finding import HIGH, LOW, MEDIUM, Found, count, rule


@rule(
    "gives-up-before-outage",
    LOW,
    title="Gives up before an outage ends",
    why="If the service is still down at the last attempt, every failed job is dead. The outage to survive is the "
    "longest one recorded on the job's queue in the last seven days: a period with at least ten failed "
    "attempts/min and no more successes than failures (counted per minute for two days, per 15 minutes before). "
    "Severity is high if even the longest waits end before the outage does, and medium if the average waits do. "
    "Without a recorded outage, the outage to survive is five minutes, and severity is low.",
    fix="Allow more attempts or longer waits. The policy editor shows which outage a policy survives.",
    source="hypothesis/lms#5511",
)
def gives_up_before_outage(case: Case) -> Iterator[Found]:
    for curve in case.curves:
        total = curve.total()
        if total is None or not curve.retries:
            continue
        seen = [one for queue in case.queues_of(curve) if (one := case.facts.longest_outage(*queue))]
        tried = f"Retries stop after {_lasts(total)} ({count(curve.retries, 'retry')})"
        worst = max(seen, key=lambda one: one.seconds, default=None)
        if worst is None:
            if total.longest_s < case.facts.outage_s:
                yield Found(curve.where, f"{tried}, less than {exact_duration(case.facts.outage_s)}.", curve.quoted)
        elif total.mean_s < worst.seconds:
            severity = HIGH if total.longest_s < worst.seconds else MEDIUM
            outage = (
                f"on {worst.began:%-d %b %H:%M} UTC {worst.failed:,} attempts of {worst.queue} failed within about "
                f"{exact_duration(worst.seconds)}, and {worst.succeeded or 'none'} succeeded"
            )
            yield Found(curve.where, f"{tried}; {outage}.", curve.quoted, severity)


def _lasts(total: Range) -> str:
    if total.longest_s == total.shortest_s:
        return exact_duration(total.longest_s)
    return f"{exact_duration(total.mean_s)} on average and {exact_duration(total.longest_s)} at most"


@rule(
    "attempts-without-end",
    HIGH,
    title="Unlimited attempts",
    why="With `max_retries=None`, Celery never stops retrying: a job that cannot succeed is tried until it is "
    "purged, is never dead, and causes no alert.",
    fix="Set `max_retries`, or publish a policy for the task: its `max_attempts` is bounded.",
    source="Celery, Task.max_retries: “If set to None, it will never stop retrying”",
)
def attempts_without_end(case: Case) -> Iterator[Found]:
    for curve in case.of_tasks:
        if curve.attempts is None:
            yield Found(curve.where, "max_retries is None: the job is retried forever.", curve.quoted)


@rule(
    "autoretry-never-retries",
    MEDIUM,
    title="autoretry_for that never retries",
    why="`autoretry_for` names the errors to retry, but `max_retries=0` allows no retries: the first error is final.",
    fix="Raise `max_retries`, or remove `autoretry_for`.",
    source="Celery, Task.max_retries and celery/app/autoretry.py",
)
def autoretry_never_retries(case: Case) -> Iterator[Found]:
    for curve in case.of_tasks:
        if curve.by == AUTORETRY and curve.retries == 0:
            yield Found(curve.where, "Names errors to retry, but allows no retries.", curve.quoted)


@rule(
    "backoff-above-its-cap",
    HIGH,
    title="retry_backoff above retry_backoff_max",
    why="Celery uses the smaller of the two for every retry, and `retry_backoff_max` is 600 by default: "
    "`retry_backoff=3600` never waits an hour; all retries come within minutes.",
    fix="Raise `retry_backoff_max` above the longest wait that you want.",
    source="https://github.com/hypothesis/lms/pull/5511",
)
def backoff_above_its_cap(case: Case) -> Iterator[Found]:
    for curve in case.of_tasks:
        task = curve.task
        if task is not None and curve.by == AUTORETRY and int(task.retry_backoff) > task.retry_backoff_max:
            wanted, cap = exact_duration(int(task.retry_backoff)), exact_duration(task.retry_backoff_max)
            yield Found(
                curve.where, f"The first wait is set to {wanted}, but no wait is longer than {cap}.", curve.quoted
            )


@rule(
    "backoff-without-autoretry",
    MEDIUM,
    title="retry_backoff has no effect",
    why="`retry_backoff` applies only with `autoretry_for`. Without that, `self.retry()` always waits for "
    "`default_retry_delay` (180 s by default).",
    fix="Name the errors in `autoretry_for`, or pass a growing `countdown` to `self.retry`.",
    source="Celery, celery/app/autoretry.py and Task.retry",
)
def backoff_without_autoretry(case: Case) -> Iterator[Found]:
    for known in case.tasks:
        task, where = known.task, known.where
        if task.idle_backoff:
            yield Found(
                where, "retry_backoff is set, but autoretry_for is not.", f"retry_backoff={task.retry_backoff:g}"
            )


@rule(
    "soft-limit-never-fires",
    MEDIUM,
    title="Soft time limit at or above the hard one",
    why="The hard limit kills the process before the soft limit raises its error: the task never cleans up, and its "
    "job ends with a killed worker instead of an error that can be retried.",
    fix="Set `soft_time_limit` a few seconds below `time_limit`.",
    source="Celery, Workers guide: Time Limits",
)
def soft_limit_never_fires(case: Case) -> Iterator[Found]:
    for known in case.tasks:
        task, where = known.task, known.where
        soft, hard = task.soft_time_limit, task.time_limit
        if soft and hard and soft >= hard:
            yield Found(
                where,
                f"Soft after {exact_duration(soft)}, killed after {exact_duration(hard)}.",
                f"soft_time_limit={soft:g}, time_limit={hard:g}",
            )


@rule(
    "requeue-without-late-ack",
    LOW,
    title="reject_on_worker_lost without late ack",
    why="A job that was acknowledged before it ran cannot be requeued: without `acks_late`, the setting has no "
    "effect, and the job is lost if its worker crashes.",
    fix="Set `acks_late=True` as well, together with a policy that quarantines jobs that keep crashing; or remove "
    "the setting.",
    source="Celery, Task.reject_on_worker_lost",
)
def requeue_without_late_ack(case: Case) -> Iterator[Found]:
    for known in case.tasks:
        task, where = known.task, known.where
        if task.reject_on_worker_lost and not task.acks_late:
            yield Found(
                where, "Jobs of this task are acknowledged before they run.", "reject_on_worker_lost=True, "
                    "acks_late=False"
            )  # fmt: skip
