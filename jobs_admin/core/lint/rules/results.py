"""Rules about data that expires before the last attempt, or before it can be replayed."""

from __future__ import annotations

from collections.abc import Iterator

from jobs_admin.core.figures import exact_duration
from jobs_admin.core.lint.case import Case
from jobs_admin.core.lint.finding import HIGH, LOW, MEDIUM, Found, rule

A_DAY_S = 86_400.0  # Celery's default of result_expires


@rule(
    "results-too-short-to-replay",
    LOW,
    title="Results are kept too short to replay",
    why="The result backend counts the finished parts of a chord and holds results for callers. If results expire "
    "before a failed part is replayed, the chord never completes and no caller receives its result. The "
    "threshold is Celery's default, one day: jobs that die at night are replayed in the morning. Severity is "
    "medium if results expire even before the last retry.",
    fix="Raise `result_expires` to a day or more, or set `ignore_result=True` where results are not read.",
    source="Celery, Configuration: result_expires, 1 day where it is not set",
)
def results_too_short_to_replay(case: Case) -> Iterator[Found]:
    for curve in case.of_tasks:
        task, app = curve.task, curve.found.app if curve.found else None
        if task is None or app is None or not app.result_backend or not task.stores_result or not app.result_expires:
            continue
        total = curve.total()
        quoted = f"result_expires={app.result_expires:g}"
        if total is not None and total.longest_s >= app.result_expires:
            evidence = f"Results expire after {exact_duration(app.result_expires)}; retries take up to {exact_duration(total.longest_s)}."
            yield Found(curve.where, evidence, quoted, MEDIUM)
        elif app.result_expires < A_DAY_S:
            yield Found(curve.where, f"Results expire after {exact_duration(app.result_expires)}.", quoted)


@rule(
    "expires-before-retries-end",
    HIGH,
    title="Jobs expire before their last retry",
    why="A retry keeps the expiry time of its job. A retry that is due later is revoked, not run: the job is never "
    "dead, and no failure signal is sent.",
    fix="Raise `expires` above the sum of all waits, or retry for a shorter time.",
    source="Celery, Calling Tasks: Expiration; celery/app/task.py, Context.as_execution_options",
)
def expires_before_retries_end(case: Case) -> Iterator[Found]:
    for curve in case.of_tasks:
        task, total = curve.task, curve.total()
        if task is not None and task.expires and total is not None and total.mean_s >= task.expires:
            evidence = f"Jobs expire after {exact_duration(task.expires)}; retries take {exact_duration(total.mean_s)} on average."
            yield Found(curve.where, evidence, f"expires={task.expires:g}")
