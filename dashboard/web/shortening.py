"""Our styles and scripts without what only people read: their comments and indentation are a quarter of what travels.

Lines stay lines, so that an error names one that can be found. Only whole lines of a script's comments go; no script of ours
has a string over several lines (`tests/dashboard/test_first_view.py` holds that).
"""

from __future__ import annotations

import re

OURS = ("redrive/css/", "redrive/js/")
_COMMENT_OF_STYLE = re.compile(r"/\*.*?\*/", re.S)
_COMMENT_OF_SCRIPT = re.compile(r"^\s*//.*$", re.M)
_AROUND_RULES = re.compile(r" *([{};]) *")
_VALUE = re.compile(r"(?<=[{;])([a-z-]+): ")
_AROUND_LINES = re.compile(r"\s*\n\s*")


def shortened(name: str, text: str) -> str:
    """The file as browsers get it."""
    if name.startswith(OURS):
        if name.endswith(".css"):
            lines = _AROUND_LINES.sub("\n", _COMMENT_OF_STYLE.sub("", text)).strip()
            return _VALUE.sub(r"\1:", _AROUND_RULES.sub(r"\1", lines))
        if name.endswith(".js"):
            return _AROUND_LINES.sub("\n", _COMMENT_OF_SCRIPT.sub("", text)).strip()
    return text
