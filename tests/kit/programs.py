"""Programs that check or run the files under deploy/."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.up import ROOT

DEPLOY = ROOT / "deploy"
OLDEST = (3, 12)  # Python, for the latest Django


def program(name: str, package: str) -> str:
    """The program's path; skips by name where this machine lacks it."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin")
    if found is None:
        pytest.skip(f"no {name} on this machine (Debian and Ubuntu: apt install {package})")
    return found


def check(*command: str, **options) -> str:
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    assert done.returncode == 0, done.stdout
    return done.stdout


def latest_python() -> str:
    """The latest Python that the latest Django runs on; skips by name where this machine has none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    named = [shutil.which(f"python3.{minor}") for minor in range(30, OLDEST[1] - 1, -1)]
    found: dict[tuple[int, ...], str] = {}
    for path in [one for one in named if one] + [str(one) for one in pyenv.glob("versions/3.*/bin/python3")]:
        # A shim of pyenv fails where its version is not chosen. A pre-release has no wheels.
        code = "import sys, venv; v = sys.version_info; print(*v[:3] if v[3] == 'final' else (0,))"
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found.setdefault(tuple(map(int, done.stdout.split())), path)
    if not found or max(found) < OLDEST:
        pytest.skip("no Python 3.12 or newer on this machine, which the latest Django needs (pyenv install 3.13)")
    return found[max(found)]
