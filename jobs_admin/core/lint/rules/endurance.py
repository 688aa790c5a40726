"""How long a job is tried for: too short to outlive an outage, without end, or not at all."""

from __future__ import annotations

from collections.abc import Iterator

from jobs_admin.core.backoff import Range
from jobs_admin.core.lint.case import Case
from jobs_admin.core.lint.curve import AUTORETRY
from jobs_admin.core.lint.finding import HIGH, LOW, MEDIUM, Found, rule
from jobs_admin.core.lint.words import count, span


@rule(
    "gives-up-before-outage",
    LOW,
    title="Gives up before an outage is over",
    why="When the last attempt comes while the service is still down, every job that failed is lost to the "
    "dead letters. The outage to survive is the longest that was seen on the job's queue in the last "
    "seven days: a time in which ten attempts a minute or more failed, and no more are known to have run "
    "well (counted by the minute for two days, by the quarter of an hour before). Then the finding is "
    "high where even the longest waits end before it, and medium where the average does. Where none was "
    "seen it is five minutes, and the finding is low.",
    fix="More attempts, or longer waits: the policy editor shows which outage a policy survives.",
    source="hypothesis/lms#5511",
)
def gives_up_before_outage(case: Case) -> Iterator[Found]:
    for curve in case.curves:
        total = curve.total()
        if total is None or not curve.retries:
            continue
        seen = [one for queue in case.queues_of(curve) if (one := case.facts.longest_outage(*queue))]
        tried = f"It is tried for {_lasts(total)} ({count(curve.retries, 'retry')})"
        worst = max(seen, key=lambda one: one.seconds, default=None)
        if worst is None:
            if total.longest_s < case.facts.outage_s:
                yield Found(curve.where, f"{tried}, less than {span(case.facts.outage_s)}.", curve.quoted)
        elif total.mean_s < worst.seconds:
            severity = HIGH if total.longest_s < worst.seconds else MEDIUM
            outage = (
                f"on {worst.began:%-d %b %H:%M} UTC {worst.failed:,} attempts of {worst.queue} failed within about "
                f"{span(worst.seconds)}, and {worst.succeeded or 'none'} ran well"
            )
            yield Found(curve.where, f"{tried}; {outage}.", curve.quoted, severity)


def _lasts(total: Range) -> str:
    if total.longest_s == total.shortest_s:
        return span(total.longest_s)
    return f"{span(total.mean_s)} on average and {span(total.longest_s)} at most"


@rule(
    "attempts-without-end",
    HIGH,
    title="Attempts without end",
    why="With `max_retries=None` Celery never stops retrying: a job that cannot succeed is tried until "
    "somebody purges it, never becomes a dead letter, and nobody is told.",
    fix="Set `max_retries`, or publish a policy for the task: its `max_attempts` is bounded.",
    source="Celery, Task.max_retries: “If set to None, it will never stop retrying”",
)
def attempts_without_end(case: Case) -> Iterator[Found]:
    for curve in case.of_tasks:
        if curve.attempts is None:
            yield Found(curve.where, "max_retries is None: no attempt is the last.", curve.quoted)


@rule(
    "autoretry-never-retries",
    MEDIUM,
    title="autoretry_for that never retries",
    why="`autoretry_for` names the errors to be retried, and `max_retries=0` allows no retry: the first error"
    " is the last.",
    fix="Raise `max_retries`, or take `autoretry_for` away.",
    source="Celery, Task.max_retries and celery/app/autoretry.py",
)
def autoretry_never_retries(case: Case) -> Iterator[Found]:
    for curve in case.of_tasks:
        if curve.by == AUTORETRY and curve.retries == 0:
            yield Found(curve.where, "It names errors to be retried, and allows no retry.", curve.quoted)
