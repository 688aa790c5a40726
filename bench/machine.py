"""The machine of a bench, reported beside its figures."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return {
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
        "load_average": round(os.getloadavg()[0], 1),
    }


def versions() -> dict[str, str]:
    """The versions of what a worker is made of."""
    return {name: version(name) for name in ("celery", "kombu", "redis")}
