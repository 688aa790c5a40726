"""A Celery app whose jobs fail with canaries: `celery -A tests.canaries.jobs worker`.

`canary` fails as entry N of the set in the file CANARIES does; the text is read there, so that it is in nothing else of the job.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from celery.exceptions import Reject

from tests.kit.celery import app

FOLDER = Path(__file__).parent
IN_MESSAGE = ("message", "cause", "note", "source", "retry", "reject")  # the job's own text; the rest is sent with it


class PartnerError(Exception):
    pass


def read_set(name: str) -> list[dict[str, Any]]:
    """The canaries of a set (`first_set`)."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def needles(canary: dict[str, Any]) -> list[str]:
    """The secret and, of a long one, its halves: what must not be read anywhere."""
    secret = canary.get("shown") or canary["secret"]
    middle = len(secret) // 2
    return [secret, *([secret[:middle], secret[middle:]] if len(secret) >= 16 else [])]


def fail_with(task: Any, canary: dict[str, Any]) -> None:
    place, text = canary["place"], canary["text"]
    if place == "cause":
        try:
            raise LookupError(text)
        except LookupError as error:
            raise PartnerError("the partner refused") from error
    if place == "note":
        error = PartnerError("the partner refused")
        error.add_note(text)
        raise error
    if place == "source":
        path = Path(os.environ["REAL_MARKS"]) / f"source_{task.request.id}.py"
        path.write_text(text)
        names = {"connect": lambda *_, **__: "refused", "settings": {}}
        exec(compile(text, str(path), "exec"), names)
    if place == "retry":
        raise task.retry(exc=PartnerError(text), countdown=3600)
    if place == "reject":
        raise Reject(text, requeue=False)
    raise PartnerError(text if place == "message" else "the partner refused")


if app is not None:

    @app.task(name="canary", bind=True, shared=False)
    def canary(self: Any, n: int, *args: Any, **kwargs: Any) -> None:
        fail_with(self, json.loads(Path(os.environ["CANARIES"]).read_text())[n])

    # Celery itself writes the error of each job into the worker's log, as it is.
    logging.getLogger("celery.app.trace").addFilter(lambda record: False)
