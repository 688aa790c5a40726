"""Waits, limits and queues that the broker does not bear. Celery's own waits alone: a policy's wait in Redis, not in a worker."""

from __future__ import annotations

from collections.abc import Iterator

from jobs_admin.core.lint.case import Case
from jobs_admin.core.lint.configuration import Configuration
from jobs_admin.core.lint.curve import Curve
from jobs_admin.core.lint.finding import HIGH, LOW, MEDIUM, Found, rule
from jobs_admin.core.lint.where import Where
from jobs_admin.core.lint.words import count, span

SEVERAL_MINUTES_S = 600.0  # Celery's own default of retry_backoff_max
MANY_WAITING = 2_000  # 17 MB of a worker, at the 8.5 kB that each of 20,000 took when we measured it
CONSUMER_TIMEOUT_S = 1_800.0  # RabbitMQ's default since 3.8.17


@rule(
    "delay-beyond-visibility-timeout",
    HIGH,
    title="A retry that waits longer than the visibility timeout",
    why="On Redis and SQS a job with a countdown is fetched at once and stays unacknowledged until it starts."
    " When it waits longer than `visibility_timeout`, the broker hands it to the next worker, which waits"
    " too: it runs several times (20 jobs with 14 s and a timeout of 4 s ran 80 times when we measured "
    "it).",
    fix="Keep every wait below `visibility_timeout`, or let a policy do the waiting.",
    source="Celery, Using Redis: Caveats; https://github.com/celery/kombu/issues/337; "
    "https://github.com/codecov/umbrella/pull/720",
)
def delay_beyond_visibility_timeout(case: Case) -> Iterator[Found]:
    for curve in case.of_tasks:
        app = curve.found.app if curve.found else None
        if app is None or app.visibility_timeout is None or not curve.waits_in_worker:
            continue
        for attempt, wait in enumerate(curve.waits, 1):
            if wait.longest_s >= app.visibility_timeout:
                how = "up to " if wait.longest_s > wait.shortest_s else ""
                evidence = (
                    f"After attempt {attempt} it waits {how}{span(wait.longest_s)}; visibility_timeout is "
                    f"{span(app.visibility_timeout)}."
                )
                yield Found(curve.where, evidence, curve.quoted)
                break


@rule(
    "delay-beyond-consumer-timeout",
    MEDIUM,
    title="A retry that waits longer than RabbitMQ lets a consumer wait",
    why="RabbitMQ closes the channel of a consumer that does not acknowledge within `consumer_timeout`, 30 "
    "minutes unless the server was told otherwise, which we do not ask it; a countdown is not "
    "acknowledged before it starts. All unacknowledged jobs of the worker are then delivered again.",
    fix="Keep waits below `consumer_timeout`, use quorum queues (Celery then delays at the broker), or let a "
    "policy do the waiting.",
    source="Celery, Calling Tasks: ETA and Countdown; RabbitMQ, Delivery Acknowledgement Timeout",
)
def delay_beyond_consumer_timeout(case: Case) -> Iterator[Found]:
    for curve in case.of_tasks:
        app = curve.found.app if curve.found else None
        if app and app.broker == "amqp" and curve.waits_in_worker and curve.longest_wait_s >= CONSUMER_TIMEOUT_S:
            evidence = f"It waits up to {span(curve.longest_wait_s)}; the default is {span(CONSUMER_TIMEOUT_S)}."
            yield Found(curve.where, evidence, curve.quoted)


@rule(
    "limit-beyond-visibility-timeout",
    HIGH,
    title="A job may run longer than the visibility timeout",
    why="Under late ack a running job is unacknowledged. One that runs longer than `visibility_timeout` is "
    "delivered to a second worker while the first still works on it, and the time limit does not end it "
    "before.",
    fix="Set `time_limit` below `visibility_timeout`, or raise that above the longest job.",
    source="Celery, Using Redis: Visibility timeout; https://github.com/celery/celery/issues/5935",
)
def limit_beyond_visibility_timeout(case: Case) -> Iterator[Found]:
    for known in case.tasks:
        found, task, where = known.found, known.task, known.where
        timeout = found.app.visibility_timeout
        if timeout is not None and task.acks_late and task.time_limit and task.time_limit > timeout:
            evidence = f"It may run for {span(task.time_limit)}; visibility_timeout is {span(timeout)}."
            yield Found(where, evidence, f"acks_late=True, time_limit={task.time_limit:g}")


@rule(
    "waits-in-worker-memory",
    LOW,
    title="Long waits in a worker's memory",
    why="A job with a countdown waits in the memory of the worker that fetched it, beyond its prefetch limit,"
    " and is lost from sight: 20,000 of them took one worker from 50 to 220 MB, and after a kill none ran"
    " before the visibility timeout. Celery advises “values no longer than several minutes”; the line "
    "here is its own default for the longest wait, ten minutes. The finding is medium where the failures "
    "of the last day's worst quarter of an hour would put 2,000 jobs or more to wait at once.",
    fix="Shorter waits, quorum queues on RabbitMQ, or a policy: its waits are in Redis.",
    source="Celery, Calling Tasks: ETA and Countdown",
)
def waits_in_worker_memory(case: Case) -> Iterator[Found]:
    for curve in case.of_tasks:
        if not curve.waits_in_worker or curve.longest_wait_s <= SEVERAL_MINUTES_S:
            continue
        waiting = _waiting(case, curve)
        evidence = f"It waits up to {span(curve.longest_wait_s)} in a worker."
        if waiting >= MANY_WAITING:
            worst = case.facts.failed_per_minute[curve.where.source, curve.where.queue]
            evidence += (
                f" At the {worst:,.0f} failures a minute of its queue's worst quarter of an hour some "
                f"{waiting:,.0f} would wait at once."
            )
            yield Found(curve.where, evidence, curve.quoted, MEDIUM)
        else:
            yield Found(curve.where, evidence, curve.quoted)


def _waiting(case: Case, curve: Curve) -> float:
    """Jobs that would wait together at the worst rate of failures, shared out among the tasks of the queue."""
    place = curve.where.source, curve.where.queue
    rate = case.facts.failed_per_minute.get(place, 0.0) / case.tasks_in(*place)
    return rate * max(wait.mean_s for wait in curve.waits) / 60


@rule(
    "visibility-timeouts-differ",
    HIGH,
    title="Apps on one broker have different visibility timeouts",
    why="The list of unacknowledged jobs belongs to the whole Redis database: the shortest timeout of all "
    "apps holds for everybody's jobs, also where an app sets none and has the default of an hour.",
    fix="Set the same `visibility_timeout` in every app that uses this broker.",
    source="Celery, Using Redis: Caveats: “the shortest value will be used”",
)
def visibility_timeouts_differ(case: Case) -> Iterator[Found]:
    by_broker: dict[str, dict[float, list[Configuration]]] = {}
    for found in case.found:
        if found.app.visibility_timeout is not None:
            seen = by_broker.setdefault(found.app.broker_mark or found.source, {})
            seen.setdefault(found.app.visibility_timeout, []).append(found)
    for seen in by_broker.values():
        if len(seen) > 1:
            told = ", ".join(f"{span(timeout)} in {_whose(seen[timeout])}" for timeout in sorted(seen))
            for source in sorted({found.source for founds in seen.values() for found in founds}):
                yield Found(Where(source), f"visibility_timeout: {told}.")


def _whose(found: list[Configuration]) -> str:
    workers: dict[str, int] = {}
    for one in found:
        workers[one.source] = workers.get(one.source, 0) + max(1, len(one.workers))
    return " and ".join(f"{count(n, 'worker')} of {source}" for source, n in sorted(workers.items()))


@rule(
    "prefetch-without-bound",
    MEDIUM,
    title="Prefetch without a bound",
    why="With `worker_prefetch_multiplier=0` one worker fetches everything that waits. On Redis the "
    "visibility timeout of each job begins with the fetch: those that are not reached in time run twice.",
    fix="Set `worker_prefetch_multiplier` to 1 for long jobs, some more for short ones.",
    source="Celery, worker_prefetch_multiplier: “the worker will keep consuming as many messages as it wants”",
)
def prefetch_without_bound(case: Case) -> Iterator[Found]:
    for found in case.found:
        if found.app.prefetch_multiplier == 0 and found.app.visibility_timeout is not None:
            evidence = (
                f"One worker may hold the whole queue; visibility_timeout is {span(found.app.visibility_timeout)}."
            )
            yield Found(Where(found.source), evidence, "worker_prefetch_multiplier=0")


@rule(
    "queue-forgets",
    MEDIUM,
    title="A queue that does not survive a restart of the broker",
    why="A RabbitMQ queue that is not durable is gone after a restart, with every job and every retry that "
    "waited in it.",
    fix="Declare the queue with `durable=True`.",
    source="RabbitMQ, Queues: Durability",
)
def queue_forgets(case: Case) -> Iterator[Found]:
    for found in case.found:
        for queue in found.queues:
            if found.app.broker == "amqp" and not queue.is_durable:
                evidence = "What waits in it is lost when the broker restarts."
                yield Found(Where(found.source, queue.name), evidence, f"Queue({queue.name!r}, durable=False)")
