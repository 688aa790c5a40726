"""What Redrive's piece in a BullMQ worker (`clients/node`) says of an attempt: a note beside the job, in the job's own hash.

The piece decides before BullMQ moves the job, so whoever reads the job has the note too. It names the execution that it is about by the
moment at which that began, as BullMQ wrote it: a note of an earlier one says nothing of this.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jobs_admin.core.display import shown_message
from jobs_admin.core.envelope import Envelope

NOTE = b"redriveNote"
_MOST_BYTES = 100_000  # a hundred crashes take some 30,000


def noted(report: Envelope, fields: Mapping[bytes, bytes]) -> Envelope:
    """The report with what the worker says of it. Anybody may write into a hash: what is no note is left out, and nothing is raised."""
    said = _note(fields)
    if said is None:
        return report
    found: dict[str, Any] = {name: _text(said, name, most) for name, most in _TEXTS.items()}
    told = replace(report, **{name: value for name, value in found.items() if value})
    if report.kind == "success" or not told.policy or told.observed:
        return told
    most = said.get("max_attempts")
    if isinstance(most, int) and not isinstance(most, bool) and 0 < most <= 1_000:
        told = replace(told, max_attempts=most)
    if report.kind == "retry":
        return told
    told = replace(told, reason=_text(said, "reason", 300), escalate=said.get("escalate") is True)
    crashes = said.get("crashes")
    if isinstance(crashes, list) and crashes and all(isinstance(one, dict) for one in crashes):
        # Its words are an exit code or a signal's; they are hidden like any other.
        shown = [one | {"said": shown_message(str(one.get("said", ""))[:200]).text} for one in crashes[:100]]
        return replace(told, kind="worker_lost", crashes=json.dumps(shown))
    return told


_TEXTS = {"worker": 255, "host": 255, "release": 100, "policy": 80, "observed": 300}


def _note(fields: Mapping[bytes, bytes]) -> dict[str, Any] | None:
    text = fields.get(NOTE)
    if not text or len(text) > _MOST_BYTES:
        return None
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    began = fields.get(b"processedOn", b"")
    if not isinstance(said, dict) or said.get("v") != 1 or str(said.get("of")).encode("utf-8", "replace") != began:
        return None
    return said


def _text(said: dict[str, Any], name: str, most: int) -> str:
    value = said.get(name)
    return value[:most] if isinstance(value, str) else ""
