"""Environments of workers as users have them: a Celery of their own, the wheel that is built here, and no Django.

    made = Environments(folder, ["celery-5.3"])          # locked in tests/workers/celery-5.3.txt
    RealWorker(broker_url, store_url, home=made["celery-5.3"])

Each is made from its lock, all of them side by side, and takes as long as the package index does: some ten seconds.
They are kept in pytest's cache folder for whoever asks next, until the lock, the wheel or an app changes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from jobs_admin.management import wheel
from tests.kit.celery import ROOT, Home

LOCKS = ROOT / "tests/workers"
_FOLDER = ROOT / ".pytest_cache" / "environments"
_FORGOTTEN_AFTER_S = 86_400
# What pip says where nobody answers, as opposed to where what it was given is not what was locked.
_OUT_OF_REACH = re.compile(
    r"connection error|NewConnectionError|ConnectTimeout|ReadTimeout|Temporary failure|Max retries exceeded"
    r"|Could not find a version|ProxyError|SSLError",
    re.IGNORECASE,
)


class OutOfReach(Exception):
    """The package index did not answer: which environment could not be made, and how to get it."""


class Environments(dict[str, Home]):
    """Name of a lock -> where a worker of that environment runs. Raises OutOfReach."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        packed = wheel.build(folder).path
        with ThreadPoolExecutor(len(names)) as side_by_side:
            made = side_by_side.map(lambda name: _make(LOCKS / f"{name}.txt", packed), names)
            super().__init__(zip(names, made, strict=True))


def _make(lock: Path, packed: Path) -> Home:
    apps = ["tests/kit/celery.py", *(path.relative_to(ROOT) for path in sorted(LOCKS.glob("*_app.py")))]
    folder = _cached_folder(lock, [packed, *(ROOT / app for app in apps)], lambda at: _fill(at, lock, packed, apps))
    return Home(folder / "env/bin/python", folder / "home")


def locked(lock: Path, python: str) -> Path:
    """Return the Python of an environment of the lock alone, made by `python`. Raises OutOfReach."""
    return _cached_folder(lock, [], lambda at: _install_lock(at, lock, python), python) / "env/bin/python"


def _cached_folder(lock: Path, files: list[Path], fill: Callable[[Path], None], python: str = sys.executable) -> Path:
    """Return the folder that `fill` filled from the lock and the files, now or earlier."""
    version = subprocess.run([python, "-VV"], capture_output=True, text=True, check=True).stdout
    seen = hashlib.sha256(f"{python} {version}".encode())
    for file in (Path(__file__), lock, *files):
        seen.update(file.read_bytes())
    folder = _FOLDER / f"{lock.stem}-{seen.hexdigest()[:16]}"
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / f"{lock.stem}.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # of several test processes one makes it, and the others wait
        done = folder / "done"
        if not done.exists():
            _forget_old(lock.stem)
            shutil.rmtree(folder, ignore_errors=True)
            fill(folder)
            done.touch()
        os.utime(folder)
    return folder


def _forget_old(name: str) -> None:
    for folder in _FOLDER.glob(f"{name}-*"):
        if folder.stat().st_mtime < time.time() - _FORGOTTEN_AFTER_S:
            shutil.rmtree(folder, ignore_errors=True)


def _fill(folder: Path, lock: Path, packed: Path, apps: list[str | Path]) -> None:
    python = _install_lock(folder, lock, sys.executable)
    install(python, packed.name, "--no-deps", "--no-index", packed)
    # The app alone, and nothing of the checkout: the guard that it finds is the wheel's.
    for app in apps:
        copy = folder / "home" / app
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / app, copy)


def _install_lock(folder: Path, lock: Path, base: str) -> Path:
    subprocess.run([base, "-m", "venv", "--without-pip", folder / "env"], check=True)
    python = folder / "env/bin/python"
    install(python, lock.name, "--require-hashes", "--only-binary", ":all:", "-r", lock)
    return python


def pip(python: Path) -> list[str | Path]:
    """The start of a command line: a pip that works on that environment, which has none of its own. Nor may `.venv`."""
    if own := _with_pip():
        return [own, "-m", "pip", "--python", python]
    subprocess.run([python, "-m", "ensurepip", "--default-pip"], check=True, capture_output=True)
    return [python, "-m", "pip"]


@cache
def _with_pip() -> str | None:
    """Return which Python of this process has a pip: it works on any environment."""
    for own in dict.fromkeys((sys.executable, getattr(sys, "_base_executable", sys.executable))):
        there = subprocess.run([own, "-m", "pip", "--python", own, "--version"], capture_output=True, check=False)
        if there.returncode == 0:
            return own
    return None


def install(python: Path, what: str, *arguments: str | Path) -> None:
    # Not compiled: of what is installed a test imports the smaller part, and Python compiles that itself.
    command = [*pip(python), "install", "--quiet", "--no-input", "--no-compile", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    output = (done.stdout + done.stderr).strip()
    if _OUT_OF_REACH.search(output):
        raise OutOfReach(
            f"{what} could not be installed, because the package index was not reached. Run the tests where pip reaches one "
            f"(`pip download --no-deps celery==5.3.0` shows whether it does). It said: {output.splitlines()[-1][:200]}"
        )
    raise AssertionError(f"{what} could not be installed:\n{output[-2000:]}")
