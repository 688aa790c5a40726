"""Start, supervision and termination of the processes of `up`, none of which outlives it.

Three mechanisms: `stop` terminates them in order; `reaper.py` terminates their process groups if this process was
killed; on Linux the kernel kills the direct children if reaper and supervisor die together. There is one thread,
because forking with `preexec_fn` is only safe without others, so output is read between the waits (`turn`).
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dashboard.setup.engine import die_with_parent
from dashboard.setup.forks import Fork
from jobs_admin.installation import ROOT

LOG_BYTES = 5 * 1024 * 1024  # size of a log; with the previous one at most twice this per process
TURN_S = 0.1
LONGEST_BACKOFF_S = 30.0
STEADY_AFTER_S = 60.0
_LOUD = re.compile(r"\b(ERROR|CRITICAL)\b|^\w*(Error|Exception): ")


QUIET_S = 60.0
REPORT_S = 15.0  # seconds between two reports of a wait


class StartFailed(Exception):
    """A process did not start. The message contains its name, the reason, and the end of its log."""


class Stopping(BaseException):
    """Request to terminate (Ctrl-C, SIGTERM, SIGHUP)."""


@dataclass
class Child:
    """Child process with its log and restart behaviour."""

    name: str
    command: list[str] | Callable[[], object]  # a function runs in a fork of this process
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    patience_s: float = 4.0
    is_once: bool = False  # runs once; not restarted
    done: Path | None = None  # file created when a child that runs once has succeeded
    pass_fds: tuple[int, ...] = ()  # inherited descriptors, under the same numbers
    speaks: bool = True  # its errors are printed in the terminal (not for a shop that fails on purpose)
    process: subprocess.Popen[bytes] | Fork | None = None
    started_at: float = 0.0
    exit_code: int | None = None  # of its latest run
    failures: int = 0
    due_at: float | None = None  # time of its restart
    unfinished_line: bytes = b""
    reported_at: float = float("-inf")

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def last_words(self, lines: int = 8) -> str:
        try:
            text = self.log.read_text(errors="replace")[-4000:]
        except OSError:
            return ""
        return "\n".join(text.strip().splitlines()[-lines:])


class Supervisor:
    def __init__(self, logs: Path, report: Callable[[str], None], keep_open: Iterable[int] = ()) -> None:
        self.logs = logs
        self.report = report
        self.keep_open = tuple(keep_open)  # descriptors held by the reaper until every process has ended
        self.children: list[Child] = []
        self.selector = selectors.DefaultSelector()
        self.reaper: subprocess.Popen[bytes] | None = None
        self.groups: set[int] = set()
        self.is_wished_to_stop = False
        self.is_stopping = False
        self.restarts = False  # False during the start, when the end of a process is a failed start
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)

    # Starting -----------------------------------------------------------------------------------------------------

    def heed_signals(self) -> None:
        """Make the next `turn` raise Stopping after the first Ctrl-C, SIGTERM or SIGHUP; further signals skip the wait.

        Not raised in the signal handler: within a finalizer Python swallows the exception, and the request is lost.
        """

        def heed(number: int, frame: object) -> None:
            if self.is_wished_to_stop:
                for child in self.children:
                    child.patience_s = 0.0
            self.is_wished_to_stop = True

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, heed)

    def start(self, child: Child) -> Child:
        if child not in self.children:
            self.children.append(child)
        child.due_at = None
        child.started_at = time.monotonic()
        with contextlib.suppress(OSError):  # pages and messages name the log even if it is empty
            os.close(os.open(child.log, os.O_WRONLY | os.O_CREAT, 0o600))
        child.process = self._begin(child)
        self.mind(child.process.pid)
        assert child.process.stdout is not None
        os.set_blocking(child.process.stdout.fileno(), False)
        self.selector.register(child.process.stdout, selectors.EVENT_READ, child)
        return child

    def _begin(self, child: Child) -> subprocess.Popen[bytes] | Fork:
        if callable(child.command):
            return Fork(child.name, child.command, child.environment, child.pass_fds)
        return subprocess.Popen(
            child.command,
            cwd=ROOT,
            env={**_inherited(), **child.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,  # so that its own children can be found, and Ctrl-C only reaches this process
            pass_fds=child.pass_fds,
            preexec_fn=die_with_parent,
        )

    def mind(self, group: int) -> None:
        """Let the reaper terminate this process group if this process is killed."""
        self.groups.add(group)
        if self.reaper is None or self.reaper.poll() is not None:
            self._start_reaper()
        else:
            self._write_to_reaper(f"+{group}\n")

    def forget(self, group: int) -> None:
        self.groups.discard(group)
        self._write_to_reaper(f"-{group}\n")

    def _start_reaper(self) -> None:
        self.reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("reaper.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            process_group=0,
            pass_fds=self.keep_open,
        )
        self._write_to_reaper("".join(f"+{group}\n" for group in sorted(self.groups)))

    def _write_to_reaper(self, text: str) -> None:
        if self.reaper is None or self.reaper.stdin is None:
            return
        with contextlib.suppress(OSError):  # the reaper died: the next turn starts another
            self.reaper.stdin.write(text.encode())
            self.reaper.stdin.flush()

    # Running ------------------------------------------------------------------------------------------------------

    def wait_until(
        self,
        is_true: Callable[[], bool],
        what: str,
        progress: Callable[[], object],
        needs: Iterable[Child] = (),
        every_s: float = TURN_S,
        quiet_s: float = QUIET_S,
    ) -> None:
        """Wait until the condition is true, without a deadline, since the machine may be busy.

        Raises StartFailed if one of the required children ends, or if `progress` returns the same value for `quiet_s`.
        """
        needs = list(needs)
        quiet = Quiet()
        reported = 0
        while not is_true():
            for child in needs:
                if not child.is_running:
                    self.turn(0)
                    raise StartFailed(
                        f"{child.last_words()}\nThe {child.name} process ended while it was starting "
                        f"(exit {child.exit_code}). Its log: {child.log}"
                    )
            if quiet.since(progress, time.monotonic()) > quiet_s:
                logs = "\n".join(child.last_words(4) for child in needs)
                raise StartFailed(
                    f"{logs}\nGave up waiting until {what}: nothing has moved for {quiet_s:.0f} s. Logs: {self.logs}"
                )
            if quiet.waited_s // REPORT_S > reported:
                reported = int(quiet.waited_s // REPORT_S)
                self.report(f"Still waiting after {REPORT_S * reported:.0f} s until {what}. Ctrl-C ends it.")
            self.turn(every_s)

    def processor_s(self, child: Child) -> float:
        """Return the processor time in seconds of the living processes in this child's group; 0 if there are none."""
        return processor_s(child.process.pid) if child.process is not None else 0.0

    def keep_running(self) -> None:
        """Restart every child that ends from now on, including one that ended after its start."""
        self.restarts = True
        for child in self.children:
            if child.process is None and not child.is_once:
                child.due_at = time.monotonic()

    def turn(self, wait_s: float = TURN_S) -> None:
        """Read the output of the children, and restart those that died. Raises Stopping after a signal."""
        for key, _ in self.selector.select(wait_s):
            self._read(key.data, key.fileobj)
        if self.is_wished_to_stop:
            raise Stopping
        now = time.monotonic()
        if self.groups and self.reaper is not None and self.reaper.poll() is not None and not self.is_stopping:
            self._start_reaper()
        for child in self.children:
            if child.process is not None and child.process.poll() is not None:
                self._ended(child, now)
            elif child.process is None and child.due_at is not None and now >= child.due_at and not self.is_stopping:
                self.start(child)

    def _read(self, child: Child, pipe: object) -> None:
        try:
            chunk = os.read(pipe.fileno(), 65536)  # type: ignore[attr-defined]
        except BlockingIOError:
            return
        if not chunk:
            self.selector.unregister(pipe)  # type: ignore[arg-type]
            pipe.close()  # type: ignore[attr-defined]
            return
        self._write_log(child, chunk)
        *lines, child.unfinished_line = (child.unfinished_line + chunk).split(b"\n")
        child.unfinished_line = child.unfinished_line[-2000:]
        if child.speaks:
            for line in lines:
                self._repeat_error(child, line.decode(errors="replace"))

    def _write_log(self, child: Child, chunk: bytes) -> None:
        with contextlib.suppress(OSError):
            if child.log.exists() and child.log.stat().st_size > LOG_BYTES:
                child.log.replace(child.log.with_name(child.log.name + ".1"))
        try:
            with open(os.open(child.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
                file.write(chunk)
        except OSError as error:  # a full disk must not stop the desk
            if time.monotonic() - child.reported_at > 60:
                child.reported_at = time.monotonic()
                self.report(f"{child.name}: its log cannot be written ({error.strerror}).")

    def _repeat_error(self, child: Child, line: str) -> None:
        if not _LOUD.search(line) or time.monotonic() - child.reported_at < 10:
            return
        child.reported_at = time.monotonic()
        self.report(f"{child.name}: {line.strip()[:300]}  (more in {child.log})")

    def _ended(self, child: Child, now: float) -> None:
        assert child.process is not None
        code, group = child.process.returncode, child.process.pid
        self._drain(child)
        _signal_group(group, signal.SIGKILL)  # its remaining children
        self.forget(group)
        child.process, child.exit_code = None, code
        if self.is_stopping:
            return
        if child.is_once:
            if code:
                self.report(f"{child.name} ended with exit {code}. Its log: {child.log}")
            elif child.done is not None:
                child.done.touch(mode=0o600)
            return
        if not self.restarts:
            return
        child.failures = 1 if now - child.started_at > STEADY_AFTER_S else child.failures + 1
        delay = min(2.0 ** (child.failures - 1), LONGEST_BACKOFF_S)
        child.due_at = now + delay
        self.report(f"{child.name} ended (exit {code}); starting it again in {delay:.0f} s. Its log: {child.log}")

    def _drain(self, child: Child) -> None:
        """Read the last output of a child, but not to the end of the pipe, which its own children may hold open."""
        assert child.process is not None
        pipe = child.process.stdout
        if pipe is None or pipe.closed:
            return
        with contextlib.suppress(OSError, ValueError):
            while chunk := os.read(pipe.fileno(), 65536):
                self._write_log(child, chunk)
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(pipe)
        pipe.close()

    # Ending -------------------------------------------------------------------------------------------------------

    def stop(self, child: Child) -> None:
        """Terminate one child and its own children; kill them after its grace period."""
        child.due_at = None
        process = child.process
        if process is None:
            return
        if process.poll() is None:
            _signal_process(process.pid, signal.SIGTERM)
            began = time.monotonic()
            while process.poll() is None and time.monotonic() - began < child.patience_s:
                self._pump()
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()
        self._drain(child)
        self.forget(process.pid)
        child.process = None

    def _pump(self) -> None:
        # Its pipe must still be read, otherwise a child with much output could not end.
        for key, _ in self.selector.select(0.05):
            self._read(key.data, key.fileobj)

    def stop_all(self) -> None:
        """Terminate every child, in reverse order of their start."""
        self.is_stopping = True
        for child in reversed(self.children):
            self.stop(child)

    def release(self) -> None:
        """Stop the reaper, after everything has ended."""
        if self.reaper is not None and self.reaper.stdin is not None:
            with contextlib.suppress(OSError):
                self.reaper.stdin.close()
            self.reaper.wait()
            self.reaper = None


class Quiet:
    """Time without a change of a value, in seconds of observation: a stall of the observer does not count."""

    MOST_PER_CHECK_S = 2.0

    def __init__(self) -> None:
        self.value: object = None
        self.quiet_s = self.waited_s = 0.0
        self.last: float | None = None

    def since(self, value: Callable[[], object], now: float) -> float:
        """Return the seconds without a change until `now` (monotonic). The value is read once per second."""
        if self.last is not None and now - self.last < 1.0:
            return self.quiet_s
        passed_s = now - self.last if self.last is not None else 0.0
        found = value()
        self.quiet_s = 0.0 if found != self.value else self.quiet_s + min(passed_s, self.MOST_PER_CHECK_S)
        self.waited_s += passed_s
        self.value, self.last = found, now
        return self.quiet_s


def processor_s(group: int) -> float:
    """Return the processor time in seconds of the living processes in a process group."""
    if not os.path.exists("/proc/self/stat"):
        return _processor_s_by_ps(group)
    ticks = 0
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
            if int(fields[2]) == group:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _processor_s_by_ps(group: int) -> float:
    """Return it as reported by `ps`, `[[dd-]hh:]mm:ss[.cc]` per process: macOS has no /proc."""
    lines = subprocess.run(["ps", "-A", "-o", "pgid=,time="], capture_output=True, text=True, check=False).stdout
    found = 0.0
    for line in lines.splitlines():
        pgid, _, text = line.strip().partition(" ")
        if pgid == str(group):
            seconds = 0.0
            for part in text.strip().replace("-", ":").split(":"):
                seconds = seconds * 60 + float(part)
            found += seconds
    return found


def _inherited() -> dict[str, str]:
    # Celery loads Django into any worker with this variable; the demo's worker represents a user's, without it.
    return {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}


def _signal_process(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
