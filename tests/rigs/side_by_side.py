"""Four real queue systems and a desk that watches all of them, in processes of their own: each can be killed, stopped and slowed."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis
from kombu import Connection, Exchange, Queue

from dashboard.setup.engine import Engine, die_with_parent
from jobs_admin.core import keys
from jobs_admin.core.envelope import Envelope, encode
from tests.kit import desks as replays_desk
from tests.kit.network import Road
from tests.kit.node import Bullmq
from tests.kit.rabbitmq import Node
from tests.kit.waiting import wait_until

_STEPS = "ingest,pull,sample,lay,send,settle"
_numbers = itertools.count(1)


class System:
    """A source: its lines of sources.toml, and `dies`, which makes a job fail there for good and returns its id."""

    name: str
    queue: str
    toml: str

    def dies(self) -> str:
        raise NotImplementedError

    def stop(self) -> None: ...


class Shop(System):
    """Celery on the engine's database 1; its dead jobs are reported as a guarded worker reports them."""

    name, queue = "shop", "emails"

    def __init__(self, engine: Engine) -> None:
        self.broker = engine.url.removesuffix("/0") + "/1"
        self.toml = f'backend = "celery"\nurl = "{self.broker}"\n'
        self._store = redis.Redis.from_url(engine.url)

    def dies(self) -> str:
        n = next(_numbers)
        made: dict[str, Any] = {}
        exec(replays_desk.BURY, {"json": json, "base64": __import__("base64")}, made)  # noqa: S102  (the message of a Celery)
        raw = made["message"](n)
        report = Envelope(
            self.name, self.queue, "ok", f"j{n}", "exception", 1, time.time(), "TimeoutError", "no answer",
            args=f"[{n}]", kwargs="{}", raw=raw, raw_size=len(raw),
        )  # fmt: skip
        self._store.xadd(keys.failures(self.name), encode(report))
        return report.job_id

    def stop(self) -> None:
        self._store.close()


class Bull(System):
    """BullMQ 5 on a Valkey of its own, behind a road; a real Node worker fails each job once."""

    name, queue = "bull", "webhooks"

    def __init__(self, folder: Path) -> None:
        self.engine = Engine(folder).start()
        self.road = Road(self.engine.url)
        self.toml = f'backend = "bullmq"\nurl = "{self.road.url}"\n'
        self.start_workers()
        self.dies()  # a queue tells its version from its first job on

    def dies(self) -> str:
        # An id of its own: after its data were lost a BullMQ counts from 1 again, and what has an id again shares a row.
        job_id = f"job-{next(_numbers)}"
        self.node.add(self.queue, "deliver", {"fails": 1}, attempts=1, jobId=job_id)
        self.node.wait_for_event("failed", queue=self.queue, id=job_id)
        return job_id

    def start_workers(self) -> None:
        self.node = Bullmq(5, self.engine.url, work=[self.queue]).start()

    def restart_workers(self) -> None:
        self.node.stop()
        self.start_workers()

    @property
    def valkey(self) -> redis.Redis:
        return redis.Redis.from_url(self.engine.url)

    def stop(self) -> None:
        self.node.stop()
        self.road.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.engine.process.pid, signal.SIGCONT)
        self.engine.stop()


class Table(System):
    """The tutorial's jobs table, in SQLite, with the rollback journal that SQLite has automatically: who locks it locks readers out, too."""

    name, queue = "table", "send_email"

    def __init__(self, file: Path) -> None:
        self.file = file
        self.toml = f'backend = "jobs_table"\nurl = "sqlite:///{file}"\n'
        self.make()

    def make(self) -> None:
        from tests.kit.jobs_tables import SQLITE

        self._do(SQLITE)

    def dies(self) -> str:
        job_id = f"row-{next(_numbers)}"
        self._do(
            "INSERT INTO jobs (id, type, payload, status, attempts, max_attempts, last_error) "
            "VALUES (?, 'send_email', '{\"to\": \"ann@example.com\"}', 'failed', 3, 3, 'TimeoutError: too slow')",
            job_id,
        )
        return job_id

    def drop(self) -> None:
        self._do("DROP TABLE jobs")

    def work(self) -> None:
        """A worker runs what waits, and all of it well."""
        self._do(
            "UPDATE jobs SET status = 'completed', attempts = attempts + 1, last_error = NULL, updated_at = datetime('now') "
            "WHERE status = 'pending'"
        )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """A person holds the whole file, and does not come to an end."""
        with contextlib.closing(sqlite3.connect(self.file, timeout=30, isolation_level=None)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            try:
                yield
            finally:
                connection.execute("ROLLBACK")

    def status(self, job_id: str) -> str:
        return self._do("SELECT status FROM jobs WHERE id = ?", job_id)[0][0]

    def _do(self, statement: str, *values: object) -> list[tuple]:
        with contextlib.closing(sqlite3.connect(self.file, timeout=30, isolation_level=None)) as connection:
            return connection.execute(statement, values).fetchall()


class Rabbit(System):
    """A queue of RabbitMQ with a dead-letter exchange; a consumer rejects each message."""

    name, queue = "rabbit", "orders"

    def __init__(self, folder: Path) -> None:
        self.node = Node(folder).start()
        self.toml = f'backend = "rabbitmq"\nurl = "{self.node.url}"\ndead_letter_queues = [{{name = "orders.dlq", of = "orders"}}]\n'
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.dlq"}
        with Connection(self.node.url) as connection:
            channel = connection.channel()
            Queue("orders.dlq", channel=channel).declare()
            Queue("orders", channel=channel, queue_arguments=arguments).declare()

    def dies(self) -> str:
        job_id = f"order-{next(_numbers)}"
        with Connection(self.node.url) as connection:
            channel = connection.channel()
            connection.Producer().publish(
                {"order": job_id}, exchange=Exchange(""), routing_key="orders", message_id=job_id, serializer="json"
            )
            while True:
                message = Queue("orders", channel=channel).get()
                if message is None:
                    time.sleep(0.05)
                elif message.properties.get("message_id") == job_id:
                    message.reject()
                    break
                else:  # what was replayed runs well
                    message.ack()
        return job_id

    def kill(self) -> None:
        for process in self.node._processes:
            process.kill()
            process.wait()
        self.node._processes.clear()

    def stop(self) -> None:
        self.node.stop()


_SHELL = """
import traceback
scope = globals()
for line in sys.stdin:
    try:
        exec(json.loads(line), scope)
    except BaseException:
        say({"raised": traceback.format_exc()})
"""


class Desk(replays_desk.Desk):
    """Tables in a file, a `watch`, and a process with Django that runs queries."""

    def __init__(self, folder: Path, engine: Engine, systems: list[System]) -> None:
        super().__init__(folder, engine.url)
        sources = folder / "sources.toml"
        sources.write_text("\n".join(f"[sources.{one.name}]\n{one.toml}" for one in systems))
        self.environment |= {"REDRIVE_SOURCES": str(sources), "REDRIVE_DEMO_BROKER_URL": ""}
        self.output = folder / "watch.out"
        self._looks = 0
        with self.output.open("wb") as output:
            self.watch = self._begin(
                [sys.executable, "manage.py", "watch", "--only", _STEPS], stdout=output, stderr=subprocess.STDOUT
            )
        self.shell = self._begin(
            [sys.executable, "-c", replays_desk.BEGIN + _SHELL],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _begin(self, command: list[str], **how: Any) -> subprocess.Popen:
        return subprocess.Popen(command, cwd=replays_desk.ROOT, env=self.environment, preexec_fn=die_with_parent, **how)

    def evaluate(self, code: str) -> Any:
        """The output of the code in that process."""
        self.shell.stdin.write(json.dumps(code) + "\n")
        self.shell.stdin.flush()
        answer = json.loads(self.shell.stdout.readline())
        assert not (isinstance(answer, dict) and "raised" in answer), answer["raised"]
        return answer

    def states(self, system: System) -> dict[str, str]:
        return dict(
            self.evaluate(
                f"say([list(r) for r in Failure.objects.filter(source={system.name!r}).values_list('job_id', 'state')])"
            )
        )

    def source(self, system: System) -> dict[str, Any]:
        """The source's state: reachable, why, since, why_not_pulled, not_pulled_since, read_only."""
        return self.evaluate(
            "from jobs_admin.desk import overview\n"
            f"row = overview.source(ANN, {system.name!r})\n"
            "say(None if row is None else {'reachable': row.reachable, 'why': row.why, 'since': str(row.changed_at),\n"
            " 'why_not_pulled': row.why_not_pulled, 'not_pulled_since': str(row.not_pulled_since),\n"
            " 'read_only': (row.read_only or {}).get('text', '')})"
        )

    def page(self, address: str = "/queues/") -> str:
        """A page, as an admin sees it, without its tags."""
        return self.evaluate(
            "import re, html\nfrom django.test import Client\nfrom django.conf import settings\n"
            "from django.contrib.auth import get_user_model\nfrom jobs_admin.desk import overview; overview.forget()\n"
            "settings.ALLOWED_HOSTS = ['*']\n"
            "settings.STORAGES = {**settings.STORAGES, 'staticfiles': {'BACKEND': 'django.contrib.staticfiles.storage.StaticFilesStorage'}}\n"
            "user, made = get_user_model().objects.get_or_create(username='ann')\n"
            "made and Role.objects.create(user=user, source='*', role='admin')\n"
            f"client = Client(); client.force_login(user); answer = client.get({address!r}, secure=True)\n"
            "say(re.sub(r'\\s+', ' ', html.unescape(re.sub(r'<[^>]+>', ' ', answer.content.decode()))))"
        )

    def replay(self, system: System, job_id: str) -> int:
        """A replay of this job that was started; its id."""
        return self.replay_of({system: job_id})

    def replay_of(self, jobs: dict[System, str]) -> int:
        """One replay of a job of each of these systems that was started; its id."""
        named = [(system.name, job_id) for system, job_id in jobs.items()]
        return self.evaluate(
            f"found = [Failure.objects.get(source=source, job_id=job_id).pk for source, job_id in {named!r}]\n"
            "begun = replays.start(ANN, replays.draft(ANN, selection=found, pace={'style': 'at_once'}, reason='mended'))\n"
            "say(begun.pk)"
        )

    def items(self, replay: int) -> list[str]:
        return self.evaluate(f"say(list(ReplayItem.objects.filter(replay={replay}).values_list('state', flat=True)))")

    def sample_closely(self) -> None:
        """As `watch` does once a minute: at versions, rights and settings."""
        self._looks += 1
        self.evaluate(
            f"from datetime import timedelta\nfrom jobs_admin.queues import sampling\n"
            f"sampling.sample(timezone.now() + timedelta(seconds={61 * self._looks})); say(1)"
        )

    def wait(self, is_true: Callable[[], Any], what: str, within_s: float = 90) -> Any:
        text = self.output.read_text
        return wait_until(is_true, what, within_s=within_s, every_s=0.2, process=self.watch, text=text)

    def stop(self) -> None:
        self.shell.stdin.close()
        self.watch.terminate()
        for process in (self.shell, self.watch):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
