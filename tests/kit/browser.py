"""Complaints of the journeys' browser, and its waiting time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Within that a page or an answer has come, however busy the machine is: nobody waits longer than it takes.
WITHIN_S = 60
NEEDS_PLAYWRIGHT = "needs playwright: `python3 manage.py test --strict` installs it"


def is_complaint(message: Any) -> bool:
    """An error on the console. A refusal (409, 422) is an answer that the page shows, and a request that it gave up for a
    newer one is none; both are noted there all the same.
    """
    return message.type == "error" and not re.search(
        r"status of (409|422) |^htmx:(afterRequest|sendAbort),", message.text
    )


def is_mistake(error: Any) -> bool:
    """htmx rejects the promise of a request that was given up with nothing at all: that is none."""
    return str(error) != "undefined"


def complaints_of(page: Any) -> list[str]:
    """Collect the browser's complaints about the page from this call on: a script, the CSP, a part."""
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)) if is_mistake(error) else None)
    page.on(
        "console",
        lambda message: (
            complaints.append(f"{message.text} {message.location['url']}") if is_complaint(message) else None
        ),
    )
    return complaints
