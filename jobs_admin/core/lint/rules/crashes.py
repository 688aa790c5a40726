"""Jobs that kill their worker and come back."""

from __future__ import annotations

from collections.abc import Iterator

from jobs_admin.core.lint.case import Case, Known
from jobs_admin.core.lint.finding import HIGH, LOW, Found, rule
from jobs_admin.core.lint.where import Where


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


@rule(
    "one-crash-is-two-starts",
    LOW,
    title="A job that ends its whole worker starts twice where one crash is allowed",
    why="With `crashes: 1` a job whose own process dies is in quarantine after one start. Where the worker's main process "
    "dies too (out of memory, a machine that is gone, a pill that kills its parent), every job that ran in it may be to "
    "blame, and so may somebody from outside: nothing that is left tells which. Each of them runs once more, alone, and only "
    "one that ends its worker then is convicted. So it has started twice; from `crashes: 2` on the first of these starts is "
    "one of those that are allowed, and there are exactly so many.",
    fix="Nothing, if a second start does no harm; else set `acks_late=False` for the task: then it never starts again "
    "after a death of its worker, and is lost with it (with `file_lost` that is told).",
    source="docs/workers.md, Poison pills",
)
def one_crash_is_two_starts(case: Case) -> Iterator[Found]:
    for policy in case.policies:
        if policy.poison is not None and policy.poison.crashes == 1:
            yield Found(Where(policy=policy.name), "It quarantines after 1 crash.", "poison: crashes 1")


@rule(
    "keeps-what-comes-back",
    LOW,
    title="file_lost where the broker gives every job again",
    why="`file_lost` keeps jobs that are acknowledged before they run, because nobody has them when their worker dies. "
    "What is acknowledged late the broker gives to another worker by itself: nothing is kept of it, and nothing is filed. "
    "All tasks that this policy is for are acknowledged late, as far as their workers tell.",
    fix="Take `file_lost` out of the policy. To bound how often such a job may take its worker along, use `poison`.",
    source="docs/workers.md, Jobs that vanish with their worker",
)
def keeps_what_comes_back(case: Case) -> Iterator[Found]:
    for policy in case.policies:
        late = [known.task.acks_late for known in case.tasks if known.policy == policy]
        if policy.file_lost and late and all(late):
            tasks = (
                "The one task that it is for is" if len(late) == 1 else f"All {len(late):,} tasks that it is for are"
            )
            yield Found(Where(policy=policy.name), f"{tasks} acknowledged late.", "file_lost: true")
