"""A stock Celery worker, without the guard: its process, and the lines that its jobs write."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from celery import Celery

from tests.kit import forked
from tests.kit.celery import ROOT
from tests.kit.waiting import wait_until


class StockWorker:
    def __init__(
        self,
        broker: str,
        folder: Path,
        *,
        events: bool = True,
        results: str = "",
        extended: bool = False,
        name: str = "stock",
        queues: str = "",
    ) -> None:
        self._broker, self._queues = broker, queues
        self.name = f"{name}@{uuid.uuid4().hex[:8]}"
        self.lines_at = folder / f"{name}-lines"
        self.lines_at.touch()
        self._log = folder / f"{self.name}.log"
        self._environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "",
            "STOCK_BROKER": broker,
            "STOCK_RESULTS": results,
            "STOCK_LINES": str(self.lines_at),
            "STOCK_EVENTS": "1" if events else "",
            "STOCK_EXTENDED": "1" if extended else "",
        }
        self.app = Celery("sender", broker=broker, backend=results or None, set_as_current=False)
        self.process: forked.Forked | None = None

    def start(self) -> StockWorker:
        command = ["-m", "celery", "-A", "tests.workers.stock_app:app", "worker", "-c", "2"]
        command += ["-Q", self._queues] if self._queues else []
        self._log.touch()
        self.process = forked.start([*command, "-n", self.name, "-l", "INFO"], ROOT, self._environment, self._log)
        wait_until(
            lambda: " ready." in self._log.read_text(),
            "the worker",
            process=self.process,
            text=self._log.read_text,
            progress=lambda: self._log.stat().st_size,
        )
        return self

    def send(self, task: str, *args: Any, **kwargs: Any) -> str:
        return str(self.app.send_task(f"shop.{task}", args, kwargs).id)

    def lines(self) -> list[tuple[str, str, int, str]]:
        """(id, task, attempt, end) of each attempt."""
        parts = (line.split() for line in self.lines_at.read_text().splitlines())
        return [(job, task, int(attempt), end) for job, task, attempt, end in parts]

    def ends(self) -> Counter[str]:
        return Counter(end for *_, end in self.lines())

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        # A warm shutdown takes as long as a start; RabbitMQ's queues get back what a worker had first.
        self._end(signal.SIGTERM if self._broker.startswith("amqp") else signal.SIGKILL)
        self.app.close()

    def _end(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0 if number == signal.SIGKILL else 20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process = None
