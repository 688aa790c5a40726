"""Child processes that `up` forks instead of starting commands, so that they share its loaded modules.

This saves each of them the imports, which take a second and 50 MB. `up` has one thread, so forking is always safe.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import NoReturn

from django.conf import settings
from django.core.management.base import CommandError
from django.db import connections

from jobs_admin import config
from jobs_admin.core.child_process import die_with_parent
from jobs_admin.installation import ROOT

_MOST_FILES = 65_536
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # constants of malloc.h
# Loaded before any fork, as in `child_process`.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class Fork:
    """Child process that runs a function, with the interface of `subprocess.Popen`. Its output goes to a pipe."""

    def __init__(
        self, name: str, run: Callable[[], object], environment: Mapping[str, str], keep: tuple[int, ...]
    ) -> None:
        connections.close_all()  # a shared connection would mix the answers of two processes
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        reading, writing = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _run(name, run, environment, keep, writing, parent)
        with contextlib.suppress(OSError):  # it did so itself, or has ended
            os.setpgid(self.pid, self.pid)
        os.close(writing)
        self.stdout = open(reading, "rb", buffering=0)  # noqa: SIM115  # closed by the supervisor

    def poll(self) -> int | None:
        if self.returncode is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        ends = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if ends is not None and time.monotonic() > ends:
                raise subprocess.TimeoutExpired("fork", timeout or 0.0)
            time.sleep(0.01)
        return code


def freeze() -> None:
    """Exclude loaded objects from garbage collection, which would write to and so copy their pages in each fork."""
    gc.collect()
    gc.freeze()


def _run(
    name: str,
    run: Callable[[], object],
    environment: Mapping[str, str],
    keep: tuple[int, ...],
    output: int,
    parent: int,
) -> NoReturn:
    """Run the child. The frames of `up` below this one stay, so that nothing closes its files by their old numbers."""
    code = 1
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        die_with_parent()
        if os.getppid() != parent:  # the parent died before the death signal was set
            os._exit(1)
        # Unreachable objects of the parent close their files by number: now, and not once others have these numbers.
        gc.collect()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for there, here in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(there, here)
        _close_all_but(keep)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:  # name in `ps` and `top`
            file.write(name)
        os.environ.update(environment)
        os.chdir(ROOT)
        use_one_heap()
        read_settings()
        run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1 if end.code else 0
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except CommandError as error:
        sys.stderr.write(f"{error}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _close_all_but(keep: tuple[int, ...]) -> None:
    before = 3
    for number in sorted(keep):
        os.closerange(before, number)
        before = number + 1
    os.closerange(before, _MOST_FILES)


def use_one_heap() -> None:
    """Use one heap for all threads, which returns the memory of large pages: otherwise each thread would keep its own.

    It retains the memory of an ordinary page: requesting that from the system took a fifth of each page's time.
    """
    if _libc is not None and hasattr(_libc, "mallopt"):
        for name, value in ((_M_ARENA_MAX, 1), (_M_TRIM_THRESHOLD, 1 << 20), (_M_MMAP_THRESHOLD, 1 << 20)):
            _libc.mallopt(name, value)


def read_settings() -> None:
    """Read the settings again after a change of the environment. No connection may be open."""
    module = importlib.reload(importlib.import_module(settings.SETTINGS_MODULE))
    for name in dir(module):
        if name.isupper():
            setattr(settings, name, getattr(module, name))
    connections.close_all()
    for alias in connections.settings:
        with contextlib.suppress(AttributeError):  # not used yet
            del connections[alias]
    connections._settings = None  # otherwise Django uses the former databases
    del connections.settings
    for cached in (config.sources, config.store, config.adapter, config.payload_keys):
        cached.cache_clear()
