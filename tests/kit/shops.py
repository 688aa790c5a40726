"""Own producers and workers of RQ, Dramatiq and Sidekiq (`tests/foreign/…_shop.*`), each in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOREIGN = Path(__file__).parents[1] / "foreign"
RUBY, _SIDEKIQ = shutil.which("ruby"), "/usr/bin/sidekiq"  # of Debian's packages


def python(library: str) -> str | None:
    """An interpreter with a library: that of RQ_PYTHON or DRAMATIQ_PYTHON, for another version than the locked one; None where there is none."""
    if library == "sidekiq":
        return RUBY if RUBY and Path(_SIDEKIQ).exists() else None
    named = os.environ.get(f"{library.upper()}_PYTHON")
    return named or (sys.executable if importlib.util.find_spec(library) else None)


def need(library: str) -> None:
    if python(library) is None:
        if library == "sidekiq":
            pytest.skip("no Sidekiq (apt-get install ruby-sidekiq)")
        pytest.skip(f"no {library} (pip install --require-hashes -r requirements-strict.txt)")


class Shop:
    """A producer and worker on the Redis at `url`, or on another broker whose URL comes after it."""

    def __init__(self, library: str, url: str, *broker: str) -> None:
        interpreter = python(library)
        assert interpreter, f"no {library}"
        self.url = url
        self._process = subprocess.Popen(
            [interpreter, str(next(FOREIGN.glob(f"{library}_shop.*"))), url, *broker],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def start(self, *acts: list[Any]) -> None:
        """Begin acts without waiting for their end."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(acts) + "\n")
        self._process.stdin.flush()

    def do(self, *acts: list[Any]) -> list[Any]:
        self.start(*acts)
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"its process ended with {self._process.wait(5)}"
        answers: list[Any] = json.loads(line)
        return answers

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


def need_pika() -> None:
    """Dramatiq's client of RabbitMQ."""
    if importlib.util.find_spec("pika") is None:
        pytest.skip("no pika (pip install --require-hashes -r requirements-strict.txt)")
