"""Seconds from a fresh clone to the ready line, and what is left running afterwards.

    python3 bench/setup.py [--no-demo] [--tests] [--only-tests] [--without-ensurepip] [--python /usr/bin/python3]

Clones the last commit into a temporary folder and runs `up` there with an empty home; as root, as an ordinary user.
First run: makes the environment and installs. Second run: reuses both. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEEP = ("PIP_", "UV_", "SSL_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
HIDDEN = "hidden"
MARK = "REDRIVE_BENCH_SETUP"
READY_WITHIN_S = 300


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--no-demo", action="store_true")
    options.add_argument("--tests", action="store_true", help="also run `manage.py test` in the clone")
    options.add_argument(
        "--only-tests", action="store_true", help="`manage.py test` alone: the first command in the clone"
    )
    options.add_argument(
        "--without-ensurepip", action="store_true", help="as on a Debian without python3-venv: it cannot be imported"
    )
    options.add_argument("--python", default="/usr/bin/python3")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="redrive-setup-") as folder:
        place = Path(folder)
        clone, home = place / "redrive", place / "home"
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
        if chosen.without_ensurepip:
            hide_ensurepip(home)
        user = ordinary_user(place)
        command = [*user, chosen.python, "manage.py", "up", "--port", "8700"] + ["--no-demo"] * chosen.no_demo
        figures: dict[str, object] = {
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.platform(terse=True)}",
            "python": platform.python_version()
            if chosen.python == sys.executable
            else subprocess.run(
                [chosen.python, "--version"], capture_output=True, text=True, check=True
            ).stdout.split()[1],
            "commit": git("rev-parse", "--short", "HEAD"),
            "user": "nobody" if user else os.environ.get("USER", str(os.getuid())),
            "demo": not chosen.no_demo,
            "ensurepip": not chosen.without_ensurepip,
            "load_average": round(os.getloadavg()[0], 1),
            "uv_on_path": shutil.which("uv", path="/usr/local/bin:/usr/bin:/bin") is not None,
        }
        runs = [("first_run", signal.SIGINT), ("second_run", signal.SIGTERM), ("third_run", signal.SIGKILL)]
        for name, number in [] if chosen.only_tests else runs:
            figures[name] = measure(command, clone, home, number)
        if chosen.tests or chosen.only_tests:
            figures["tests"] = run_tests([*user, chosen.python, "manage.py", "test"], clone, home)
        figures["venv_mb"] = size_mb(clone / ".venv")
    json.dump(figures, sys.stdout, indent=1)
    print()


def ordinary_user(place: Path) -> list[str]:
    """The start of a command line that runs as an ordinary user, where we are root; the place becomes that user's."""
    if os.getuid() != 0:
        return []
    for path in (place, *place.rglob("*")):
        shutil.chown(path, "nobody", "nogroup")
    return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]


def hide_ensurepip(home: Path) -> None:
    """Hide `ensurepip` from the Python whose PYTHONPATH names this place: the module of that name there raises what its
    absence does.
    """
    hidden = home / HIDDEN / "ensurepip"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'ensurepip'\", name='ensurepip')\n"
    )


def environment(home: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name.startswith(KEEP)}
    if (home / HIDDEN).exists():
        inherited["PYTHONPATH"] = str(home / HIDDEN)
    return {**inherited, "HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", MARK: str(home)}


def measure(command: list[str], clone: Path, home: Path, number: signal.Signals) -> dict[str, object]:
    """One run of `up`: seconds to its ready line, seconds to its end after the signal, processes left."""
    began = time.monotonic()
    process = subprocess.Popen(
        command, cwd=clone, env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    lines = []
    os.set_blocking(process.stdout.fileno(), True)
    for line in process.stdout:
        lines.append(line.rstrip())
        sys.stderr.write(f"{time.monotonic() - began:6.1f}  {line}")
        if line.startswith("Redrive is ready") or time.monotonic() - began > READY_WITHIN_S:
            break
    ready = time.monotonic() - began
    if process.poll() is not None or not lines or not lines[-1].startswith("Redrive is ready"):
        process.kill()
        raise SystemExit("up did not become ready:\n" + "\n".join(lines[-20:]))
    time.sleep(2)
    running = len(marked(home, clone))
    began = time.monotonic()
    process.send_signal(number)
    process.wait(30)
    while marked(home, clone) and time.monotonic() - began < 10:
        time.sleep(0.05)
    return {
        "ready_s": round(ready, 1),
        "processes": running,
        "ended_by": number.name,
        "gone_after_s": round(time.monotonic() - began, 1),
        "processes_left": len(marked(home, clone)),
    }


def marked(home: Path, clone: Path) -> list[str]:
    """Living processes with our mark in their environment, or at home in the clone (the engine hides its own)."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            is_ours = f"{MARK}={home}".encode() in (entry / "environ").read_bytes().split(b"\0")
            is_ours = is_ours or str((entry / "cwd").readlink()).startswith(str(clone))
            if is_ours and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(entry.name)
        except OSError:
            continue
    return found


def run_tests(command: list[str], clone: Path, home: Path) -> dict[str, object]:
    began = time.monotonic()
    done = subprocess.run(command, cwd=clone, env=environment(home), capture_output=True, text=True, check=False)
    sys.stderr.write(done.stdout[-3000:])
    lines = done.stdout.strip().splitlines() or [done.stderr[-300:]]
    return {"exit": done.returncode, "seconds": round(time.monotonic() - began, 1), "last_line": lines[-1]}


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def size_mb(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) // 2**20


if __name__ == "__main__":
    main()
