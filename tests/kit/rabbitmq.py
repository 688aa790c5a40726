"""A RabbitMQ of our own: one node on free loopback ports, with its folder, cookie and port mapper, gone when it is stopped.

    node = Node(folder).start()
    node.url            # amqp://…

Neither a RabbitMQ nor an `epmd` that runs on this machine is touched: the node asks a port mapper of its own.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from pathlib import Path

from kombu import Connection

from dashboard.setup.engine import die_with_parent, free_port
from tests.kit.waiting import wait_until

HOW_TO_GET_IT = "no RabbitMQ server on this machine: install one (Debian and Ubuntu: apt install rabbitmq-server)"
_STOP_S = 15.0
# Packages put a script for root in front of the server's own, which anybody may run.
_PLACES = (
    "usr/lib/rabbitmq/bin",
    "usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin",
    "opt/homebrew/opt/rabbitmq/sbin",
    "usr/local/opt/rabbitmq/sbin",
)
# One thread of processor, which does not spin when idle; what it speaks with others of its kind stays on loopback.
_ERLANG = "-start_epmd false +S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"


def server() -> Path | None:
    """The script that starts a server; None where it, or Erlang, is not installed."""
    if shutil.which("erl") is None or _port_mapper() is None:
        return None
    found = [path / "rabbitmq-server" for place in _PLACES for path in sorted(Path("/").glob(place), reverse=True)]
    return next((path for path in found if path.exists()), None)


def _port_mapper() -> str | None:
    return shutil.which("epmd")


class Node:
    """`start` raises AssertionError, with the server's words, where it does not come up."""

    def __init__(self, folder: Path, *, management: bool = False, settings: str = "") -> None:
        """`management`: with the plugin that reports about queues over HTTP, at `management_url`. `settings`: more lines of
        its configuration."""
        self._settings = settings
        self._folder = folder
        self._port = free_port()
        self._password = secrets.token_urlsafe(16)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = f"amqp://redrive:{self._password}@127.0.0.1:{self._port}//"
        self._management_port = free_port() if management else None
        self.management_url = f"http://127.0.0.1:{self._management_port}" if management else ""

    def start(self) -> Node:
        program, mapper = server(), _port_mapper()
        assert program is not None and mapper is not None, HOW_TO_GET_IT
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        environment = self._environment(mapper_port := free_port())
        try:
            # In the foreground, and ours: one that a node starts by itself stays behind as a daemon.
            self._run([mapper, "-port", str(mapper_port), "-address", "127.0.0.1"], environment)
            self._run([str(program)], environment)
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def _environment(self, mapper_port: int) -> dict[str, str]:
        settings = self._folder / "rabbitmq.conf"
        web = f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {self._management_port}\n"
        settings.write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self._port}\n"
            f"default_user = redrive\ndefault_pass = {self._password}\n"
            "loopback_users = none\nlog.console = true\nlog.file = false\n"
            + (web if self._management_port else "")
            + self._settings
        )
        plugins = "[rabbitmq_management]." if self._management_port else "[]."
        (self._folder / "plugins").write_text(f"{plugins}\n")
        names = {
            "RABBITMQ_NODENAME": f"redrive{self._port}@localhost",
            "RABBITMQ_CONFIG_FILE": settings,
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_ENABLED_PLUGINS_FILE": self._folder / "plugins",
            "RABBITMQ_MNESIA_BASE": self._folder / "mnesia",
            "RABBITMQ_LOG_BASE": self._folder,
            "RABBITMQ_PID_FILE": self._folder / "pid",
            "RABBITMQ_DIST_PORT": free_port(),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _ERLANG,
            # The script then becomes the server, instead of standing in front of it: it can be ended by its number.
            "RUNNING_UNDER_SYSTEMD": "true",
            "ERL_EPMD_PORT": mapper_port,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "HOME": self._folder,  # its cookie's
        }
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))}
        return ours | {name: str(value) for name, value in names.items()}

    def _run(self, command: list[str], environment: dict[str, str]) -> None:
        with self._log.open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    process_group=0,  # Ctrl-C is for the tests, which then stop it
                    preexec_fn=die_with_parent,
                )
            )

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _wait(self) -> None:
        wait_until(
            self._answers,
            "RabbitMQ",
            progress=lambda: self._log.stat().st_size,
            process=self._processes[-1],
            text=self._log.read_text,
        )

    def _answers(self) -> bool:
        try:
            with Connection(self.url, connect_timeout=2) as connection:
                connection.connect()
        except OSError:
            return False
        return True
