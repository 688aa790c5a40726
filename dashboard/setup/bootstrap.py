"""Bootstrap from any Python to a running command: find Python 3.11, create `.venv`, install the locked requirements.

Standard library only, in syntax that Python 3.7 can parse, so that an old Python gets a readable error. In an active
virtual environment that satisfies the requirements nothing is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
OLDEST = (3, 11)
NEWER = ("python3.14", "python3.13", "python3.12", "python3.11")

# Set for child processes, whose environment has already been checked.
CHECKED = "REDRIVE_BOOTSTRAPPED"

NEED_NOTHING = (
    "worker-wheel",
    "node-package",
    "--version",
    "--help",
    "-h",
    "help",
    "",
)  # run without any installed package


class CannotStart(SystemExit):
    """A prerequisite that only the user can provide is missing. Nothing was started."""


def main(argv: list[str]) -> int:
    """Run the command of `argv` (including the program's name) in a suitable environment; return its exit code."""
    need_python(argv)
    command = argv[1] if argv[1:] else ""
    if command == "test":
        names = ["requirements", "requirements-test"] + ["requirements-strict"] * ("--strict" in argv)
        enter_environment(argv, [ROOT / f"{name}.txt" for name in names])
        return run_tests(argv[2:])
    if command not in NEED_NOTHING or (command == "help" and argv[2:]):
        enter_environment(argv, [ROOT / "requirements.txt"])
    from dashboard.setup import command_line

    return command_line.main(argv)


def need_python(argv: list[str]) -> None:
    """Require Python 3.11 or newer: an older one re-executes the command with a newer one on PATH."""
    if sys.version_info >= OLDEST:
        return
    for name in NEWER:
        found = shutil.which(name)
        # A version manager's shim may be on PATH without its Python, so it is tried first.
        if found and subprocess.run([found, "-c", ""], check=False, stderr=subprocess.DEVNULL).returncode == 0:
            os.execv(found, [found, *argv])
    raise CannotStart(
        f"Redrive needs Python 3.11 or newer and this is {sys.version_info[0]}.{sys.version_info[1]}; no newer one is "
        "on PATH. Install one, then run the same command with it."
    )


def enter_environment(argv: list[str], locks: list[Path]) -> None:
    """Return inside a virtual environment that satisfies the locks, possibly after an installation and an exec."""
    here = Path(sys.prefix)
    if os.environ.get(CHECKED) == _checked(here, locks):
        return
    if sys.prefix != sys.base_prefix:
        ours = here == VENV.resolve() or here == VENV
        if (ours and _is_stamped(locks)) or _satisfies(locks if ours else [_ranges_of(lock) for lock in locks]):
            os.environ[CHECKED] = _checked(here, locks)
            return
    if not _is_stamped(locks):
        _install(locks)
    python = _python()
    if here != VENV:
        os.environ[CHECKED] = _checked(VENV, locks)
        os.execv(str(python), [str(python), *argv])


def _python() -> Path:
    return VENV / "bin" / "python"


def _ranges_of(lock: Path) -> Path:
    """Return the version ranges behind a lock, which an environment created by others must satisfy."""
    return lock.with_suffix(".in")


def _digest(lock: Path) -> str:
    version = "{}.{}".format(*_venv_version())
    return hashlib.sha256(lock.read_bytes() + version.encode()).hexdigest()


def _checked(prefix: Path, locks: list[Path]) -> str:
    return ":".join([str(prefix), *(hashlib.sha256(lock.read_bytes()).hexdigest()[:16] for lock in locks)])


def _stamp(lock: Path) -> Path:
    return VENV / (lock.stem + ".stamp")


def _is_stamped(locks: list[Path]) -> bool:
    """Return whether this script installed `.venv` from exactly these locks."""
    if not _python().exists():
        return False
    try:
        return all(_stamp(lock).read_text() == _digest(lock) for lock in locks)
    except OSError:
        return False


def _venv_version() -> tuple[int, int]:
    """Return the Python version of `.venv`; (0, 0) if it does not exist."""
    try:
        for line in (VENV / "pyvenv.cfg").read_text().splitlines():
            name, _, value = line.partition("=")
            if name.strip() in {"version", "version_info"}:
                major, minor = value.strip().split(".")[:2]
                return int(major), int(minor)
    except (OSError, ValueError):
        pass
    return (0, 0)


def _satisfies(files: list[Path]) -> bool:
    """Return whether the running interpreter has every requirement of these files, in an allowed version."""
    from importlib import metadata

    try:
        from packaging.requirements import Requirement
    except ImportError:  # part of celery[redis]: if missing, something is missing for sure
        return False
    for file in files:
        for line in file.read_text().splitlines():
            text = line.partition("#")[0].strip().rstrip("\\").strip()
            if not text or text.startswith("-"):
                continue
            wanted = Requirement(text)
            if wanted.marker is not None and not wanted.marker.evaluate():
                continue
            try:
                if not wanted.specifier.contains(metadata.version(wanted.name), prereleases=True):
                    return False
            except metadata.PackageNotFoundError:
                return False
    return True


def _install(locks: list[Path]) -> None:
    """Create `.venv` and install the locks. Concurrent installations take turns; an interrupted one starts afresh."""
    try:
        VENV.mkdir(exist_ok=True)
        lock_file = (VENV / ".lock").open("w")
    except OSError as error:
        raise CannotStart(
            f"Redrive installs what it needs into {VENV}, which cannot be written: {error.strerror}. Clone it into a "
            "folder of yours, or activate a virtual environment that has requirements.txt."
        ) from error
    with lock_file, _turn(lock_file):
        if _is_stamped(locks):  # done by the process whose lock this one waited for
            return
        unfinished = VENV / ".unfinished"
        if unfinished.exists() or not _works():
            _clear()
            unfinished.touch()
            _print_line(f"Making {VENV.name} with Python {sys.version_info[0]}.{sys.version_info[1]} …")
            _run(
                [sys.executable, "-m", "venv", "--without-pip", str(VENV)],
                "The virtual environment could not be made",
            )
        unfinished.touch()
        installer = _installer()
        started = time.monotonic()
        for lock in locks:
            if _is_stamped([lock]):
                continue
            count = sum("==" in line for line in lock.read_text().splitlines())
            _print_line(f"Installing {count} locked packages from {lock.name} …")
            _run(
                [*installer, "--require-hashes", "--only-binary", ":all:", "-r", str(lock)],
                f"{lock.name} could not be installed",
            )
            _stamp(lock).write_text(_digest(lock))
        unfinished.unlink()
        _print_line(f"Installed in {time.monotonic() - started:.0f} s.")


@contextlib.contextmanager
def _turn(lock_file):
    import fcntl

    try:
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _print_line("Another command is installing into .venv: waiting for it …")
        fcntl.flock(lock_file, fcntl.LOCK_EX)
    yield


def _works() -> bool:
    """Return whether `.venv` has an interpreter that runs and is new enough."""
    if _venv_version() < OLDEST or not _python().exists():
        return False
    return subprocess.run([str(_python()), "-c", ""], check=False, stderr=subprocess.DEVNULL).returncode == 0


def _clear() -> None:
    """Empty `.venv`, except for the lock in use."""
    for entry in VENV.iterdir():
        if entry.name == ".lock":
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _installer() -> list[str]:
    """Return the start of a command line that installs into `.venv`: uv if it is on PATH, otherwise a pip."""
    uv = shutil.which("uv")
    if uv:
        return [uv, "pip", "install", "--quiet", "--python", str(_python())]
    options = ["install", "--quiet", "--disable-pip-version-check", "--no-input"]
    if _quietly([str(_python()), "-m", "pip", "--version"]):
        return [str(_python()), "-m", "pip", *options]
    # pip 22.3 and newer can install into another environment, which saves the seconds of installing pip in `.venv`.
    if _quietly([sys.executable, "-m", "pip", "--python", str(_python()), "--version"]):
        return [sys.executable, "-m", "pip", "--python", str(_python()), *options]
    if _quietly([str(_python()), "-m", "ensurepip", "--default-pip"]):
        return [str(_python()), "-m", "pip", *options]
    raise CannotStart(
        "This Python has neither pip nor ensurepip, and uv is not on PATH: nothing could be installed. Install one "
        "(Debian and Ubuntu: apt install python3-venv), then run the same command again."
    )


def _quietly(command: list[str]) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _run(command: list[str], what_failed: str) -> None:
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        tail = "\n".join(done.stdout.strip().splitlines()[-15:])
        raise CannotStart(
            f"{tail}\n{what_failed} (exit {done.returncode}). Nothing was started; run it again to go on."
        )


def _print_line(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def run_tests(arguments: list[str]) -> int:
    """Run the tests with pytest: the complete suite, or the selected ones. Return pytest's exit code.

    Several processes share the work unless the arguments name a file or folder of tests, or a number of processes.
    Three options are Redrive's own: `--strict` fails tests that would be skipped, `--endurance` adds the long tests,
    and `--database postgresql` runs the engine's tests on a PostgreSQL that the suite starts.
    """
    options = argparse.ArgumentParser(prog="manage.py test", add_help=False, allow_abbrev=False)
    options.add_argument("--strict", action="store_true")
    options.add_argument("--endurance", action="store_true")
    options.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    given, arguments = options.parse_known_args(arguments)
    for name, value in (
        ("REDRIVE_STRICT", given.strict and "1"),
        ("REDRIVE_ENDURANCE", given.endurance and "1"),
        ("REDRIVE_TEST_DATABASE", given.database != "sqlite" and given.database),
    ):
        if value:
            os.environ[name] = value
    names_tests = any((ROOT / argument.partition("::")[0]).exists() for argument in arguments)
    if not names_tests and not any(argument.startswith("-n") for argument in arguments):
        # One process runs complete files, because servers that tests start (a desk, a worker) are shared within a file;
        # in the order set by tests/conftest.py.
        processes = _count_test_processes(arguments, given.database)
        arguments = ["-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder", *arguments]
    # Hundreds of processes are started, and each would compile the same modules again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.chdir(ROOT)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *arguments])


def _count_test_processes(arguments: list[str], database: str) -> int:
    """Return the number of test processes, at most five.

    One more than cores; with tests of servers, which wait for three quarters of their time, one more than twice the cores.
    """
    waits_for_servers = database == "sqlite" and not any("not server" in argument for argument in arguments)
    cores = os.cpu_count() or 1
    return min(5, (2 if waits_for_servers else 1) * cores + 1)
