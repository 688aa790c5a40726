"""Log lines of the desk: one per message, whatever text of a worker's report it contains."""

from __future__ import annotations

import logging
from types import TracebackType

from jobs_admin.core.text import terminal_line

_WIDTH = 20_000  # maximum characters of a line
_INDENT = "  "  # of traceback lines, so that none looks like a message

_Raised = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class Formatter(logging.Formatter):
    """Formatter of a message as one line without control characters, followed by an indented traceback."""

    def format(self, record: logging.LogRecord) -> str:
        record.exc_text = None  # traceback cached by another formatter
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        return terminal_line(super().formatMessage(record), _WIDTH)

    def formatException(self, ei: _Raised) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    return "\n".join(_INDENT + terminal_line(line, _WIDTH) for line in text.split("\n"))
