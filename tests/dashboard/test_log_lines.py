"""The desk's logs: what a worker wrote cannot make a line of its own, nor move a terminal's cursor."""

from __future__ import annotations

import logging
import logging.config
from io import StringIO

import pytest
from django.conf import settings

FORGED = "x\n2026-11-23 18:00:00,000 INFO jobs_admin.db.audit_anchor: Audit head: entry 1\r\n\x1b[2J\u202e\x85"


@pytest.fixture
def logger_and_lines():
    """A logger of the desk, with its handler as the settings configure it, and what it writes."""
    text = StringIO()
    configured = settings.LOGGING["formatters"]["plain"]
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.config.DictConfigurator({"version": 1}).configure_formatter(dict(configured)))
    logger = logging.getLogger("jobs_admin.tests_of_log_lines")
    logger.addHandler(handler)
    logger.propagate = False
    yield logger, text
    logger.removeHandler(handler)


def unseen(text: str) -> set[str]:
    return set(text) & set("\r\x1b\u202e\x85")


def test_a_message_is_one_line_without_control_characters(logger_and_lines):
    logger, text = logger_and_lines
    logger.warning("A report for key %s cannot be opened.", FORGED)
    line = text.getvalue()
    assert line.count("\n") == 1 and line.endswith(" cannot be opened.\n") and not unseen(line)
    assert " WARNING jobs_admin.tests_of_log_lines: A report for key x 2026-11-23 18:00:00" in line
    assert "\\x1b[2J\\u202e" in line, "what was there is still readable"


def test_a_traceback_keeps_its_lines_and_none_of_them_resembles_a_message(logger_and_lines):
    logger, text = logger_and_lines
    try:
        raise ValueError(FORGED)
    except ValueError:
        logger.exception("Filing failed.")
    first, *others = text.getvalue().rstrip("\n").split("\n")
    assert first.endswith("Filing failed.") and others[0] == "  Traceback (most recent call last):"
    assert len(others) > 4 and all(line.startswith("  ") for line in others) and not unseen(text.getvalue())
