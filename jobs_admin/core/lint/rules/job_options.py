"""Options of jobs in their queues: options without effect, and those that lose dead letters."""

from __future__ import annotations

from collections.abc import Iterator

from jobs_admin.core.lint.case import Case
from jobs_admin.core.lint.configuration import Where
from jobs_admin.core.lint.curve import Curve
from jobs_admin.core.lint.finding import HIGH, LOW, MEDIUM, Found, count, rule, span
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
    why="With `removeOnFail: true` (or a count of 0) BullMQ deletes a job that is out of attempts in the same "
    "step in which it fails: its data, its error and its stack are gone, and there is nothing to replay. "
    "Redrive can only file what its event stream still contains.",
    fix="`removeOnFail: false`, or a count well above what dies in an outage.",
    source="docs/sources/bullmq.md",
)
def dropped_at_once(case: Case) -> Iterator[Found]:
    for curve, options, _ in _each(case):
        if options.keeps == 0:
            yield Found(curve.where, f"A job that dies is deleted. {curve.seen}.", curve.quoted)


@rule(
    "fewer-dead-letters-kept-than-die",
    HIGH,
    title="More dead letters than removeOnFail keeps",
    why="`removeOnFail: 500` keeps the latest 500 dead letters of the queue, and each further one deletes the "
    "oldest: of 45,000 jobs that die in an outage, 44,500 are deleted. High where the queue holds as many as "
    "are kept, so that the next one deletes; medium where, in its worst quarter of an hour of the last day, "
    "more attempts failed than are kept; low where they are deleted by age within a day.",
    fix="`removeOnFail: false`, or a count above what dies in the longest outage. What Redrive has filed it "
    "keeps, and sends again from its own copy.",
    source="docs/sources/bullmq.md",
)
def fewer_stored(case: Case) -> Iterator[Found]:
    for curve, options, sampled in _each(case):
        failed = case.facts.failed_per_minute.get((curve.where.source, curve.where.queue), 0.0) * A_QUARTER_MIN
        if options.keeps and sampled.dead is not None and sampled.dead >= options.keeps:
            count_now = f"{count(sampled.dead, 'dead letter')} in {sampled.queue}"
            yield Found(
                curve.where, f"{count_now}, and {options.keeps:,} are kept: the next deletes the oldest. {curve.seen}.", curve.quoted
            )  # fmt: skip
        elif options.keeps and failed > options.keeps:
            evidence = f"{options.keeps:,} are kept; {failed:,.0f} attempts failed in the worst quarter of an hour. {curve.seen}."
            yield Found(curve.where, evidence, curve.quoted, MEDIUM)
        elif options.keeps_s is not None and options.keeps_s < A_DAY_S and options.keeps != 0:
            evidence = f"A dead letter is kept for {span(options.keeps_s)}. {curve.seen}."
            yield Found(curve.where, evidence, curve.quoted, LOW)


@rule(
    "backoff-without-attempts",
    MEDIUM,
    title="A backoff without retries",
    why="BullMQ retries only where `attempts` is 2 or more; the default is 1. A `backoff` beside it changes "
    "nothing: the first error is the last.",
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
    title="A backoff that the worker does not know",
    why="A `backoff` of another type than `fixed` and `exponential` asks for the worker's own `backoffStrategy`. "
    "Without one BullMQ throws while it handles the failure: the job stays active, is found stalled half a "
    "minute later, and is run again or fails as stalled, whatever its attempts. Found where jobs with such "
    "a type have stalled; medium where the backoff is no object with a type, and none has stalled yet.",
    fix="Give the worker `settings: { backoffStrategy }` (Redrive's `clients/node` brings one), or use the type "
    "`exponential`: `backoff: { type: 'exponential', delay: 2000 }`.",
    source="https://docs.bullmq.io/guide/retrying-failing-jobs",
)
def backoff_without_strategy(case: Case) -> Iterator[Found]:
    for curve, options, _ in _each(case):
        if curve.is_known or options.attempts < 2:
            continue
        if options.stalled:
            yield Found(curve.where, f"{count(options.stalled, 'job')} of it stalled. {curve.seen}.", curve.quoted)
        elif not options.is_named:
            yield Found(curve.where, f"The backoff is not an object with a type. {curve.seen}.", curve.quoted, MEDIUM)


@rule(
    "no-priority-goes-first",
    LOW,
    title="Jobs without a priority go before all others",
    why="In BullMQ 1 is the highest priority and greater numbers come later; a job without one (or with 0) waits in "
    "a list that is emptied before any of them. Where a queue has both, what was not marked as urgent "
    "overtakes what was.",
    fix="Give every job of the queue a priority, or none.",
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
                    f"{without:,} of {sampled.jobs:,} jobs looked at in {sampled.queue} have none, {marked:,} have one."
                )
                yield Found(Where(some.source, sampled.queue), evidence)


@rule(
    "dead-letters-go-first",
    LOW,
    title="Dead letters at the highest priority",
    why="In BullMQ 1 is the highest priority, and greater numbers come later. A handler that puts jobs aside for review with "
    "`priority: 1`, meant as low, gets the opposite: should anything ever work on that queue, it takes these before all "
    "others. Found in queues of dead letters.",
    fix="Omit the priority, or set a large number.",
    source="https://docs.bullmq.io/guide/jobs/prioritized",
)
def dead_jobs_go_first(case: Case) -> Iterator[Found]:
    for curve, options, sampled in _each(case):
        if sampled.is_for_dead and options.first_priority:
            yield Found(curve.where, f"{count(options.first_priority, 'job')} of it have priority 1. {curve.seen}.")
