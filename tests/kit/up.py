"""`manage.py up` as a person runs it: a process of its own, on a data folder of its own."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from dashboard.setup.engine import die_with_parent, free_port
from tests.kit.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
MARK = "REDRIVE_TEST_DESK"
# What a developer's shell may say must not reach the desk under test.
_numbers = itertools.count(1)
SILENT = (
    "SECRET_KEY",
    "REDRIVE_",
    "CELERY_BROKER_URL",
    "REDIS_URL",
    "DATABASE_URL",
    "PYTEST_",
    "DJANGO_SETTINGS_MODULE",
)


def environment_of_a_user() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(SILENT)}


class Desk:
    """A running `up`. `lines` is what it said; `url` where its pages are, once it is ready.

    `redrive` is the command of an installed Redrive: it runs beside `data`, its default.
    """

    def __init__(self, data: Path, *arguments: str, redrive: Path | None = None, **environment: str) -> None:
        self.data = data
        self.began = time.monotonic()
        ours = [sys.executable, str(ROOT / "manage.py"), "up", "--data", str(data)]
        command = [str(redrive), "up"] if redrive else ours
        self.output = data.with_name(f"{data.name}.{next(_numbers)}.out")
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [*command, *_port(arguments), *arguments],
                cwd=data.parent,
                env={**environment_of_a_user(), MARK: str(data), **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
            )

    @property
    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()

    @property
    def text(self) -> str:
        return self.output.read_text()

    @property
    def url(self) -> str:
        return re.search(r"^Redrive is ready: (\S+)$", self.text, re.M)[1]

    def is_ready(self, within_s: float = 120) -> Desk:
        self.wait_until(lambda: "Redrive is ready: " in self.text, within_s)
        return self

    def ends(self, within_s: float = 90) -> int:
        return self.process.wait(within_s)

    def send(self, number: int) -> Desk:
        self.process.send_signal(number)
        return self

    def wait_until(self, is_true: Callable[[], bool], within_s: float) -> None:
        """`within_s` counts from the latest line that it said."""
        wait_until(
            is_true,
            progress=lambda: self.text,
            within_s=within_s,
            every_s=0.05,
            process=self.process,
            text=lambda: self.text,
        )

    def status(self, path: str = "/") -> int:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return answer.status

    def processes(self) -> list[int]:
        """Living processes of this desk: by their environment, or their folder (the engine overwrites the former)."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and self._is_ours(entry):
                found.append(int(entry.name))
        return found

    def _is_ours(self, entry: Path) -> bool:
        try:
            is_ours = f"{MARK}={self.data}".encode() in (entry / "environ").read_bytes().split(b"\0")
            is_ours = is_ours or (entry / "cwd").readlink().is_relative_to(self.data)
            return is_ours and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    def is_gone(self, within_s: float = 90) -> bool:
        """Return whether no process of it is left, at the latest after that many seconds."""
        ends = time.monotonic() + within_s
        while self.processes() and time.monotonic() < ends:
            time.sleep(0.05)
        return self.processes() == []


def _port(arguments: tuple[str, ...]) -> list[str]:
    return [] if "--port" in arguments else ["--port", str(free_port())]


def terminal(data, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `manage.py` in a shell that has only the data folder in its environment."""
    stored = {name: value for name, value in os.environ.items() if not name.startswith(SILENT)}
    return subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), *arguments],
        env={**stored, "REDRIVE_DATA": str(data), **variables},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=False,
    )
