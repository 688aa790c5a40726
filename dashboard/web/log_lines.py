"""Lines of the desk's logs: one for each message, whatever a worker wrote into its reports."""

from __future__ import annotations

import logging
from types import TracebackType

from jobs_admin.core.text import terminal_line

_WIDTH = 20_000  # characters of a line
_INDENT = "  "  # of a traceback's lines, so that none begins as a message does

_Raised = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class Formatter(logging.Formatter):
    """Format a message as one line without control characters, and a traceback below it as indented lines."""

    def format(self, record: logging.LogRecord) -> str:
        record.exc_text = None  # the traceback as another formatter wrote it
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        return terminal_line(super().formatMessage(record), _WIDTH)

    def formatException(self, ei: _Raised) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    return "\n".join(_INDENT + terminal_line(line, _WIDTH) for line in text.split("\n"))
