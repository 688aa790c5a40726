"""A replay whose sender, web and Redis are killed again and again: `python -m bench.replay_kills [--jobs N] [--kills K] [--rabbitmq]`.

Real processes on a desk of their own: Valkey with an append-only file, `watch`, the web server, a guarded Celery worker. Each is killed by
SIGKILL and started again at random moments while jobs are sent. What ran is read from lines that the tasks themselves write to a file: each
job ran exactly once, or is said to be uncertain. With `--rabbitmq` that is the broker, and Redis holds the store alone. Prints JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("SECRET_KEY", "bench-only-" + "x" * 40)

from tests.kit.rabbitmq import Node  # noqa: E402
from tests.rigs.replay_kills import Havoc  # noqa: E402


def main() -> None:
    from bench.machine import machine

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=45_000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--rate", type=float, default=300, help="Jobs per second: about what one worker runs.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rabbitmq", action="store_true", help="The broker is RabbitMQ.")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is stopped then, too
    for name in ("CELERY_BROKER_URL", "REDRIVE_REDIS_URL", "REDRIVE_SOURCES"):
        os.environ.pop(name, None)  # the worker would take its broker from there
    os.environ["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
    with tempfile.TemporaryDirectory(prefix="redrive-kills-") as folder:
        os.environ["REDRIVE_DATA"] = folder
        import django

        django.setup()
        with contextlib.ExitStack() as stack:
            broker = ""
            if arguments.rabbitmq:
                node = Node(Path(folder) / "node").start()
                stack.callback(node.stop)
                broker = node.url
            havoc = Havoc(Path(folder), arguments.jobs, arguments.rate, 30, arguments.seed, broker)
            found = stack.enter_context(havoc).run(arguments.kills)
    print(json.dumps({"machine": machine(), "load": os.getloadavg()[0], **found}, indent=1))


if __name__ == "__main__":
    main()
