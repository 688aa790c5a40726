"""Random histories against a model, on real servers: `python -m bench.histories WORLD [--histories N] [--seed N] [--kills]`.

WORLD is one of those below. Each history is a seed; one that diverges is printed as short as it could be made, with the command
that repeats it. What histories are: tests/histories/kit.py. Ends with 1 where one diverged.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path

os.environ.setdefault("SECRET_KEY", "bench-only-" + "x" * 40)

WORLDS = {
    "celery_redis": "tests.histories.celery:CeleryOnRedis",
    "celery_rabbitmq": "tests.histories.celery:CeleryOnRabbitMQ",
    "bullmq": "tests.histories.bullmq:Bullmq",
    "bull": "tests.histories.bull:Bull",
    "jobs_table": "tests.histories.jobs_table:JobsTable",
    "jobs_table_postgresql": "tests.histories.jobs_table:JobsTableOnPostgreSQL",
    "django_tasks": "tests.histories.django_tasks:DjangoTasks",
    "django_tasks_postgresql": "tests.histories.django_tasks:DjangoTasksOnPostgreSQL",
    "followed": "tests.histories.followed:FollowedCelery",
    "rq": "tests.histories.rq:Rq",
    "sqs": "tests.histories.sqs:SqsDeadLetters",
    "dramatiq": "tests.histories.dramatiq:Dramatiq",
    "dramatiq_rabbitmq": "tests.histories.dramatiq_rabbitmq:DramatiqOnRabbitMQ",
    "sidekiq": "tests.histories.sidekiq:Sidekiq",
    "rabbitmq": "tests.histories.rabbitmq_dead_letters:RabbitMQDeadLetters",
    "replays": "tests.histories.replays:Replays",
    "alerts": "tests.histories.alerts:Alerts",
    "undo": "tests.histories.undo:Undo",
}


def _fastest_folder() -> str | None:
    """Return a folder in memory where this machine has one, unless TMPDIR names another. None: the usual one."""
    memory = Path("/dev/shm")  # noqa: S108
    return str(memory) if "TMPDIR" not in os.environ and os.access(memory, os.W_OK) else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("world", choices=WORLDS)
    parser.add_argument("--histories", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="of the first history")
    parser.add_argument("--within", type=float, default=float("inf"), help="seconds after which no history begins")
    parser.add_argument("--at-least", type=int, default=1, help="histories that run even after --within")
    parser.add_argument("--failures", type=int, default=5, help="after so many no history begins")
    parser.add_argument("--kills", action="store_true", help="end processes of the desk and its servers by SIGKILL")
    options = parser.parse_args()
    from tests.histories.kit import run_histories

    module, _, name = WORLDS[options.world].partition(":")
    with tempfile.TemporaryDirectory(prefix="redrive-histories-", dir=_fastest_folder()) as folder:
        world = getattr(import_module(module), name)(Path(folder))
        world.kills = options.kills
        try:
            failed = run_histories(
                world,
                first_seed=options.seed,
                count=options.histories,
                command=f"python -m bench.histories {options.world}{' --kills' if options.kills else ''}",
                most_failed=options.failures,
                within_s=options.within,
                at_least=options.at_least,
            )
            if options.kills:
                print(f"{world.killed} kills", file=sys.stderr)
        finally:
            world.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
