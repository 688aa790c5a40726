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
