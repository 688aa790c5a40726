"""Rules about options of queued jobs: options without effect, and options that lose dead letters."""

from __future__ import annotations

from collections.abc import Iterator

from jobs_admin.core.figures import exact_duration
from jobs_admin.core.lint.case import Case
from jobs_admin.core.lint.configuration import Where
from jobs_admin.core.lint.curve import Curve
from jobs_admin.core.lint.finding import HIGH, LOW, MEDIUM, Found, count, rule
from jobs_admin.core.lint.options import NONE, Options, SampledQueue

A_QUARTER_MIN = 15.0
A_DAY_S = 86_400.0


def _each(case: Case) -> Iterator[tuple[Curve, Options, SampledQueue]]:
    sampled = {(some.source, one.queue): one for some in case.lying for one in some.queues}
    for curve in case.of_options:
        if curve.options is not None:
            where = curve.where.source, curve.where.queue
            yield curve, curve.options, sampled.get(where, SampledQueue(where[1]))


@rule(
    "dead-letters-dropped-at-once",
    HIGH,
    title="Dead letters are deleted immediately",
    why="With `removeOnFail: true` (or a count of 0), BullMQ deletes a job the moment it fails for the last time: "
    "its data, error and stack are gone, and nothing can be replayed. Redrive records only what the event "
    "stream still contains.",
    fix="Set `removeOnFail: false`, or a count well above the number of jobs that die in an outage.",
    source="docs/sources/bullmq.md",
)
def dropped_at_once(case: Case) -> Iterator[Found]:
    for curve, options, _ in _each(case):
        if options.keeps == 0:
            yield Found(curve.where, f"Dead jobs are deleted. {curve.seen}.", curve.quoted)


@rule(
    "fewer-dead-letters-kept-than-die",
    HIGH,
    title="More dead letters than removeOnFail keeps",
    why="`removeOnFail: 500` keeps the latest 500 dead letters of the queue, and each further one deletes the "
    "oldest: of 45,000 jobs that die in an outage, 44,500 are deleted. Severity is high if the limit is "
    "reached, so that the next dead letter deletes the oldest; medium if more attempts failed in the worst 15 "
    "minutes of the last day than the limit allows; low if dead letters are deleted by age within a day.",
    fix="Set `removeOnFail: false`, or a count above the number of jobs that die in the longest outage. Jobs that "
    "Redrive has recorded can still be replayed from its own copy.",
    source="docs/sources/bullmq.md",
)
def fewer_stored(case: Case) -> Iterator[Found]:
    for curve, options, sampled in _each(case):
        failed = case.facts.failed_per_minute.get((curve.where.source, curve.where.queue), 0.0) * A_QUARTER_MIN
        if options.keeps and sampled.dead is not None and sampled.dead >= options.keeps:
            count_now = f"{count(sampled.dead, 'dead letter')} in {sampled.queue}"
            yield Found(
                curve.where, f"{count_now}, the limit is {options.keeps:,}: the next deletes the oldest. "
                    f"{curve.seen}.", curve.quoted
            )  # fmt: skip
        elif options.keeps and failed > options.keeps:
            evidence = (
                f"The limit is {options.keeps:,}; {failed:,.0f} attempts failed in the worst 15 minutes. {curve.seen}."
            )
            yield Found(curve.where, evidence, curve.quoted, MEDIUM)
        elif options.keeps_s is not None and options.keeps_s < A_DAY_S and options.keeps != 0:
            evidence = f"Dead letters are deleted after {exact_duration(options.keeps_s)}. {curve.seen}."
            yield Found(curve.where, evidence, curve.quoted, LOW)


@rule(
    "backoff-without-attempts",
    MEDIUM,
    title="A backoff without retries",
    why="BullMQ retries only if `attempts` is 2 or more; the default is 1. Without that, a `backoff` has no effect: "
    "the first error is final.",
    fix="Set `attempts`, or remove the `backoff`.",
    source="https://docs.bullmq.io/guide/retrying-failing-jobs",
)
def backoff_without_attempts(case: Case) -> Iterator[Found]:
    for curve, options, _ in _each(case):
        if options.attempts < 2 and options.backoff != NONE:
            yield Found(curve.where, f"Names a backoff, but allows no retries. {curve.seen}.", curve.quoted)


@rule(
    "backoff-without-strategy",
    HIGH,
    title="Backoff type unknown to the worker",
    why="A `backoff` type other than `fixed` and `exponential` needs the worker's own `backoffStrategy`. Without "
    "one, BullMQ throws while it handles the failure: the job stays active, is stalled half a minute later, and "
    "then runs again or fails as stalled, regardless of its attempts. Reported if jobs with such a type have "
    "stalled; severity is medium if the backoff is not an object with a type and no job has stalled yet.",
    fix="Give the worker `settings: { backoffStrategy }` (Redrive's `clients/node` brings one), or use the type "
    "`exponential`: `backoff: { type: 'exponential', delay: 2000 }`.",
    source="https://docs.bullmq.io/guide/retrying-failing-jobs",
)
def backoff_without_strategy(case: Case) -> Iterator[Found]:
    for curve, options, _ in _each(case):
        if curve.is_known or options.attempts < 2:
            continue
        if options.stalled:
            yield Found(curve.where, f"{count(options.stalled, 'stalled job')}. {curve.seen}.", curve.quoted)
        elif not options.is_named:
            yield Found(curve.where, f"The backoff is not an object with a type. {curve.seen}.", curve.quoted, MEDIUM)


@rule(
    "no-priority-goes-first",
    LOW,
    title="Jobs without a priority run first",
    why="In BullMQ, 1 is the highest priority and larger numbers run later; jobs without a priority (or with 0) run "
    "before all of them. If a queue has both, jobs that were not marked as urgent overtake those that were.",
    fix="Set a priority for every job of the queue, or for none.",
    source="https://docs.bullmq.io/guide/jobs/prioritized",
)
def no_priority_goes_first(case: Case) -> Iterator[Found]:
    for some in case.lying:
        for sampled in some.queues:
            mine = [
                curve
                for curve in case.of_options
                if (curve.where.source, curve.where.queue) == (some.source, sampled.queue)
            ]
            without = sum(curve.options.without_priority for curve in mine if curve.options)
            marked = sum(curve.options.with_priority for curve in mine if curve.options)
            if without and marked:
                evidence = (
                    f"{without:,} of {sampled.jobs:,} jobs checked in {sampled.queue} have no priority, {marked:,} "
                    "have one."
                )
                yield Found(Where(some.source, sampled.queue), evidence)


@rule(
    "dead-letters-go-first",
    LOW,
    title="Dead letters at the highest priority",
    why="In BullMQ, 1 is the highest priority and larger numbers run later. A handler that sets jobs aside for "
    "review with `priority: 1`, meant as low, gets the opposite: a worker on that queue would run these jobs "
    "first. Reported for dead-letter queues.",
    fix="Omit the priority, or set a large number.",
    source="https://docs.bullmq.io/guide/jobs/prioritized",
)
def dead_jobs_go_first(case: Case) -> Iterator[Found]:
    for curve, options, sampled in _each(case):
        if sampled.is_for_dead and options.first_priority:
            yield Found(curve.where, f"{count(options.first_priority, 'job')} with priority 1. {curve.seen}.")
