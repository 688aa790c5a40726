"""Tasks of the project in `django_tasks_host`."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

if find_spec("django.tasks"):
    from django.tasks import task
else:
    from django_tasks import task


class PartnerDown(Exception):
    """Raised while the file `down` is there."""


@task()
def deliver(n: int) -> int:
    """Note that it ran, and fail while the partner is down."""
    folder = Path(os.environ["DELIVERIES"])
    with (folder / "ran").open("a") as ran:
        ran.write(f"{n}\n")
    if (folder / "down").exists():
        raise PartnerDown(f"no answer to delivery {n}\nwithin 5 s")
    return n
