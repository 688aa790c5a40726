"""Rows of text as lines whose columns align, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row. All rows have the same number of cells."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def moment(at: datetime | None) -> str:
    """Return a time as a cell shows it, to the minute; "-" for None."""
    return f"{at:%Y-%m-%d %H:%M}" if at else "-"
