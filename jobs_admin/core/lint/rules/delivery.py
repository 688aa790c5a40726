"""Rules about delays, limits and queues that the broker cannot handle, and about crashing jobs that are redelivered.

Only Celery's own delays are examined: jobs delayed by a policy wait in Redis, not in a worker.
"""

from __future__ import annotations

from collections.abc import Iterator

from jobs_admin.core.figures import exact_duration
from jobs_admin.core.lint.case import Case, Known
from jobs_admin.core.lint.configuration import Configuration, Where
from jobs_admin.core.lint.curve import Curve
from jobs_admin.core.lint.finding import HIGH, LOW, MEDIUM, Found, count, rule

SEVERAL_MINUTES_S = 600.0  # Celery's own default of retry_backoff_max
MANY_WAITING = 2_000  # 17 MB of a worker, at the measured 8.5 kB for each of 20,000
CONSUMER_TIMEOUT_S = 1_800.0  # RabbitMQ's default since 3.8.17


@rule(
    "delay-beyond-visibility-timeout",
    HIGH,
    title="A retry delay above the visibility timeout",
    why="On Redis and SQS, a job with a countdown is fetched at once and stays unacknowledged until it starts. If "
    "the wait is longer than `visibility_timeout`, the broker delivers the job to the next worker, which waits "
    "too: the job runs several times (in a measurement, 20 jobs with 14 s and a timeout of 4 s ran 80 times).",
    fix="Keep every wait below `visibility_timeout`, or retry by a policy.",
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
                    f"The wait after attempt {attempt} is {how}{exact_duration(wait.longest_s)}; visibility_timeout is "
                    f"{exact_duration(app.visibility_timeout)}."
                )
                yield Found(curve.where, evidence, curve.quoted)
                break


@rule(
    "delay-beyond-consumer-timeout",
    MEDIUM,
    title="A retry delay above RabbitMQ’s consumer_timeout",
    why="RabbitMQ closes the channel of a consumer that does not acknowledge within `consumer_timeout` (30 minutes "
    "by default; lint does not read the server's setting), and a job with a countdown is not acknowledged "
    "before it starts. All unacknowledged jobs of the worker are then redelivered.",
    fix="Keep waits below `consumer_timeout`, use quorum queues (Celery then delays jobs at the broker), or retry "
    "by a policy.",
    source="Celery, Calling Tasks: ETA and Countdown; RabbitMQ, Delivery Acknowledgement Timeout",
)
def delay_beyond_consumer_timeout(case: Case) -> Iterator[Found]:
    for curve in case.of_tasks:
        app = curve.found.app if curve.found else None
        if app and app.broker == "amqp" and curve.waits_in_worker and curve.longest_wait_s >= CONSUMER_TIMEOUT_S:
            evidence = (
                f"Waits are up to {exact_duration(curve.longest_wait_s)}; "
                f"the default timeout is {exact_duration(CONSUMER_TIMEOUT_S)}."
            )
            yield Found(curve.where, evidence, curve.quoted)


@rule(
    "limit-beyond-visibility-timeout",
    HIGH,
    title="A job may run longer than the visibility timeout",
    why="With late ack, a running job is unacknowledged. A job that runs longer than `visibility_timeout` is "
    "delivered to a second worker while the first still runs it. The time limit does not end the job before that.",
    fix="Set `time_limit` below `visibility_timeout`, or raise `visibility_timeout` above the longest job.",
    source="Celery, Using Redis: Visibility timeout; https://github.com/celery/celery/issues/5935",
)
def limit_beyond_visibility_timeout(case: Case) -> Iterator[Found]:
    for known in case.tasks:
        found, task, where = known.found, known.task, known.where
        timeout = found.app.visibility_timeout
        if timeout is not None and task.acks_late and task.time_limit and task.time_limit > timeout:
            evidence = (
                f"A job may run for {exact_duration(task.time_limit)}; visibility_timeout is {exact_duration(timeout)}."
            )
            yield Found(where, evidence, f"acks_late=True, time_limit={task.time_limit:g}")


@rule(
    "waits-in-worker-memory",
    LOW,
    title="Long waits in a worker's memory",
    why="A job with a countdown waits in the memory of the worker that fetched it, beyond its prefetch limit, and "
    "is no longer visible in the queue: 20,000 such jobs took one worker from 50 to 220 MB, and after a kill none ran "
    "before the visibility timeout. Celery advises “values no longer than several minutes”; the threshold here "
    "is Celery's default for the longest wait, ten minutes. Severity is medium if, at the failure rate of the "
    "last day's worst 15 minutes, 2,000 jobs or more would wait at once.",
    fix="Use shorter waits, quorum queues on RabbitMQ, or a policy: its retries wait in Redis.",
    source="Celery, Calling Tasks: ETA and Countdown",
)
def waits_in_worker_memory(case: Case) -> Iterator[Found]:
    for curve in case.of_tasks:
        if not curve.waits_in_worker or curve.longest_wait_s <= SEVERAL_MINUTES_S:
            continue
        waiting = _waiting(case, curve)
        evidence = f"Retries wait up to {exact_duration(curve.longest_wait_s)} in a worker."
        if waiting >= MANY_WAITING:
            worst = case.facts.failed_per_minute[curve.where.source, curve.where.queue]
            evidence += (
                f" At {worst:,.0f} failures/min, as in the worst 15 minutes of the queue, about {waiting:,.0f} "
                "would wait at once."
            )
            yield Found(curve.where, evidence, curve.quoted, MEDIUM)
        else:
            yield Found(curve.where, evidence, curve.quoted)


def _waiting(case: Case, curve: Curve) -> float:
    """Return the number of jobs delayed at once at the worst failure rate, divided among the queue's tasks."""
    place = curve.where.source, curve.where.queue
    rate = case.facts.failed_per_minute.get(place, 0.0) / case.tasks_in(*place)
    return rate * max(wait.mean_s for wait in curve.waits) / 60


@rule(
    "visibility-timeouts-differ",
    HIGH,
    title="Apps on one broker have different visibility timeouts",
    why="All apps on a Redis database share one list of unacknowledged jobs: the shortest timeout of all apps "
    "applies to all jobs, including those of apps with the default of one hour.",
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
            listed = ", ".join(f"{exact_duration(timeout)} in {_whose(seen[timeout])}" for timeout in sorted(seen))
            for source in sorted({found.source for founds in seen.values() for found in founds}):
                yield Found(Where(source), f"visibility_timeout: {listed}.")


def _whose(found: list[Configuration]) -> str:
    workers: dict[str, int] = {}
    for one in found:
        workers[one.source] = workers.get(one.source, 0) + max(1, len(one.workers))
    return " and ".join(f"{count(n, 'worker')} of {source}" for source, n in sorted(workers.items()))


@rule(
    "prefetch-without-bound",
    MEDIUM,
    title="Prefetch without a bound",
    why="With `worker_prefetch_multiplier=0`, one worker fetches all waiting jobs. On Redis, the visibility timeout "
    "of each job begins with the fetch: jobs that do not start in time run twice.",
    fix="Set `worker_prefetch_multiplier` to 1 for long jobs, slightly higher for short ones.",
    source="Celery, worker_prefetch_multiplier: “the worker will keep consuming as many messages as it wants”",
)
def prefetch_without_bound(case: Case) -> Iterator[Found]:
    for found in case.found:
        if found.app.prefetch_multiplier == 0 and found.app.visibility_timeout is not None:
            evidence = f"One worker may fetch the entire queue; visibility_timeout is {exact_duration(found.app.visibility_timeout)}."
            yield Found(Where(found.source), evidence, "worker_prefetch_multiplier=0")


@rule(
    "queue-forgets",
    MEDIUM,
    title="Queue lost when the broker restarts",
    why="A RabbitMQ queue that is not durable is lost in a restart, with every waiting job and retry.",
    fix="Declare the queue with `durable=True`.",
    source="RabbitMQ, Queues: Durability",
)
def queue_forgets(case: Case) -> Iterator[Found]:
    for found in case.found:
        for queue in found.queues:
            if found.app.broker == "amqp" and not queue.is_durable:
                evidence = "Jobs in the queue are lost when the broker restarts."
                yield Found(Where(found.source, queue.name), evidence, f"Queue({queue.name!r}, durable=False)")


@rule(
    "requeue-without-crash-cap",
    HIGH,
    title="Jobs that crash their worker are requeued forever",
    why="With `acks_late` and `reject_on_worker_lost`, a job that kills its process is redelivered immediately and "
    "without a limit (33 crashes in 7.7 s in a measurement), and Celery sends no signal. Limits are "
    "`retry_on_worker_lost` (Celery 5.7, counts as a retry), a quorum queue's `x-delivery-limit`, and a policy "
    "with `poison` that is enforced in all workers of the app. Severity is low on a quorum queue without its "
    "own limit: RabbitMQ has a default since 4.0.",
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
            yield Found(known.where, "Crashes of this job are not counted.", quoted)
        elif queue.delivery_limit is None:
            evidence = f"The quorum queue {queue.name} sets no x-delivery-limit: 20 on RabbitMQ 4, none before."
            yield Found(known.where, evidence, quoted, LOW)


def _is_bounded(known: Known) -> bool:
    return known.enforced is not None and known.enforced.poison is not None


@rule(
    "one-crash-is-two-starts",
    LOW,
    title="A job that crashes its worker starts twice although one crash is allowed",
    why="With `crashes: 1`, a job whose own process crashes is in quarantine after one start. If the worker's main "
    "process crashes too (out of memory, a lost machine, a job that kills the parent process), the cause may be "
    "any job that ran in the worker, or something outside. Each of these jobs runs again, alone, and is "
    "quarantined only if it crashes its worker then: after two starts. With `crashes: 2` or more, the first of "
    "these starts counts as one of the allowed crashes.",
    fix="If a second start is harmless, no change is needed. Otherwise set `acks_late=False` for the task: a job "
    "then never restarts after a crash of its worker, and is lost (with `file_lost`, recorded as lost).",
    source="docs/workers.md, Poison pills",
)
def one_crash_is_two_starts(case: Case) -> Iterator[Found]:
    for policy in case.policies:
        if policy.poison is not None and policy.poison.crashes == 1:
            yield Found(Where(policy=policy.name), "The policy quarantines a job after 1 crash.", "poison: crashes 1")


@rule(
    "keeps-what-comes-back",
    LOW,
    title="file_lost where the broker redelivers every job",
    why="`file_lost` stores jobs that are acknowledged before they run, because they are lost if their worker "
    "crashes. A job with late ack is redelivered by the broker and is not stored. Workers report late ack for "
    "all tasks that this policy matches.",
    fix="Remove `file_lost` from the policy. To limit how often such a job may crash its worker, use `poison`.",
    source="docs/workers.md, Jobs that vanish with their worker",
)
def keeps_what_comes_back(case: Case) -> Iterator[Found]:
    for policy in case.policies:
        late = [known.task.acks_late for known in case.tasks if known.policy == policy]
        if policy.file_lost and late and all(late):
            tasks = "The only matching task is" if len(late) == 1 else f"All {len(late):,} matching tasks are"
            yield Found(Where(policy=policy.name), f"{tasks} acknowledged late.", "file_lost: true")
