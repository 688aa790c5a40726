"""Text from outside, made safe to store and show."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Rejected by database columns and UTF-8 files: NUL (PostgreSQL) and lone surrogates (both).
_REFUSED = re.compile("[\x00\ud800-\udfff]")

# Characters that move the cursor, colour the screen, or reverse or hide the text around them.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
# The same without line ends and tabs, and with fillers, variation selectors and tags: names that look alike differ.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def representable(text: str) -> str:
    """Return `text` with each NUL as ␀ and each lone surrogate as its escape (`\\udcff`), so that nothing is hidden."""
    if text.isascii() and "\x00" not in text:  # the usual case, without a regular expression
        return text
    return _REFUSED.sub(_visible, text)


def _visible(found: re.Match[str]) -> str:
    character = found[0]
    return "␀" if character == "\x00" else f"\\u{ord(character):04x}"


def whole_number(text: str | None, digits: int = 18) -> int | None:
    """Return the number in `text`, of at most `digits` digits; None if it is not one. For ids and cursors from outside.

    Only ASCII digits: `int` would also accept signs, blanks and digits of other scripts. 18 digits fit a column.
    """
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= digits else None


def list_some(names: Sequence[str], most: int) -> str:
    """Return the first `most` names and the number of the others: `a, b and 3 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def terminal_line(text: str, width: int) -> str:
    """Return `text` for a terminal: one line of at most `width` characters, with control characters escaped."""
    text = _CONTROL.sub(_escaped, text.replace("\n", " "))
    return text if len(text) <= width else f"{text[: width - 1]}…"


def marked(text: str) -> str:
    """Return `text` for a page, HTML included: characters that move, hide or reverse text are shown as numbers
    (⟨U+202E⟩).
    """
    return _UNSEEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)


def _escaped(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def fits(pattern: str, text: str) -> bool:
    """Return whether the complete text matches a pattern whose only wildcard is `*`.

    Linear in both, with any number of stars.
    """
    first, *others = pattern.split("*")
    if not others:
        return text == pattern
    if not text.startswith(first):
        return False
    # Each piece between two stars at its first position after the previous one: no backtracking.
    at = len(first)
    for piece in others[:-1]:
        found = text.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return len(text) - len(others[-1]) >= at and text.endswith(others[-1])


# Class names that many libraries use: alone they do not identify an error.
_SHARED_NAMES = frozenset(
    "Error Exception Failure Failed Fault Timeout NotFound Forbidden Unauthorized BadRequest Conflict HTTPError "  # noqa: SIM905
    "HTTPException ConnectionError TimeoutError ValidationError IntegrityError OperationalError DatabaseError DataError "
    "ProgrammingError InternalError InterfaceError NotSupportedError APIError ClientError RequestError ResponseError "
    "ServerError AuthenticationError error timeout".split()
)
_GENERIC_MODULES = frozenset(
    "exceptions exception errors error exc utils base core common db client_exceptions exceptions_ models".split()  # noqa: SIM905
)


def class_name(error_type: str) -> str:
    """Return the class without its module, `smtplib.SMTPServerDisconnected` as `SMTPServerDisconnected`; `_csv.Error`
    stays.

    A name that many libraries use keeps the module that distinguishes it: `requests.exceptions.HTTPError` is
    `requests.HTTPError`.
    """
    *modules, name = error_type.rstrip(".").split(".")
    if name not in _SHARED_NAMES:
        return name or error_type
    specific = [module for module in modules if module and module.lstrip("_") not in _GENERIC_MODULES]
    return f"{specific[-1]}.{name}" if specific else name
