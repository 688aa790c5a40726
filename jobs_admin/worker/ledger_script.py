"""The part of the ledger of running jobs that the desk needs too: its storage time, and the script that files its reports."""

from __future__ import annotations

from pathlib import Path

from jobs_admin.core.stream import BESIDE, with_counted

STORED_DAYS = 8


def with_report(text: str) -> str:
    """A script that may put a report on the stream: `report(stream, bytes, fields)`."""
    part = (Path(__file__).parent / "ledger_report.lua").read_text()
    return with_counted(f"local BESIDE = {BESIDE}\n{part}{text}")
