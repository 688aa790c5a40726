"""Notes of the Node agent in a BullMQ worker (`clients/node`) about an attempt: beside the job, in the job's own hash.

The agent decides before BullMQ moves the job, so every reader of the job has the note too. It names its execution by
the moment at which that began, as BullMQ wrote it: a note of an earlier one does not apply.
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


def add_note(report: Envelope, fields: Mapping[bytes, bytes]) -> Envelope:
    """Return the report with the worker's note.

    Anyone may write into a hash: what is no note is ignored, and nothing is raised.
    """
    note = _note(fields)
    if note is None:
        return report
    found: dict[str, Any] = {name: _text(note, name, most) for name, most in _TEXTS.items()}
    extended = replace(report, **{name: value for name, value in found.items() if value})
    if report.kind == "success" or not extended.policy or extended.observed:
        return extended
    most = note.get("max_attempts")
    if isinstance(most, int) and not isinstance(most, bool) and 0 < most <= 1_000:
        extended = replace(extended, max_attempts=most)
    if report.kind == "retry":
        return extended
    extended = replace(extended, reason=_text(note, "reason", 300), escalate=note.get("escalate") is True)
    crashes = note.get("crashes")
    if isinstance(crashes, list) and crashes and all(isinstance(one, dict) for one in crashes):
        # Its text is an exit code or a signal's; secrets in it are hidden as anywhere.
        shown = [one | {"said": shown_message(str(one.get("said", ""))[:200]).text} for one in crashes[:100]]
        return replace(extended, kind="worker_lost", crashes=json.dumps(shown))
    return extended


_TEXTS = {"worker": 255, "host": 255, "release": 100, "policy": 80, "observed": 300}


def _note(fields: Mapping[bytes, bytes]) -> dict[str, Any] | None:
    text = fields.get(NOTE)
    if not text or len(text) > _MOST_BYTES:
        return None
    try:
        note = json.loads(text)
    except (ValueError, RecursionError):
        return None
    began = fields.get(b"processedOn", b"")
    if not isinstance(note, dict) or note.get("v") != 1 or str(note.get("of")).encode("utf-8", "replace") != began:
        return None
    return note


def _text(note: dict[str, Any], name: str, most: int) -> str:
    value = note.get(name)
    return value[:most] if isinstance(value, str) else ""
