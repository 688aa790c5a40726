"""Lines of exported files: JSON lines, and CSV by RFC 4180."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping

FORMS = {"jsonl": "application/x-ndjson; charset=utf-8", "csv": "text/csv; charset=utf-8; header=present"}
# Spreadsheets treat a cell with one of these prefixes as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def json_line(value: Mapping[str, object]) -> bytes:
    return f"{json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n".encode("utf-8", "backslashreplace")


def csv_lines(rows: Iterable[Iterable[object]]) -> bytes:
    # Without a UTF-8 byte order mark: programs would include it in the first column's name.
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\r\n").writerows(rows)
    return buffer.getvalue().encode("utf-8", "backslashreplace")


def csv_cell(value: object) -> object:
    """Return text that a spreadsheet would evaluate with a leading quote. Numbers come from the engine and are safe."""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return "" if value is None else value
