"""Text that arrives from outside, made fit to be stored and shown."""

from __future__ import annotations

import re

# What no database column or UTF-8 file takes: NUL (PostgreSQL), and halves of surrogate pairs (both).
_REFUSED = re.compile("[\x00\ud800-\udfff]")

# What would move the cursor, colour the screen, or turn and hide the text around it.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
# The same, but for what ends or indents lines.
_UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def representable(text: str) -> str:
    """`text` with every NUL as ␀ and every lone surrogate as its escape (`\\udcff`), so that nothing is hidden."""
    if text.isascii() and "\x00" not in text:  # the usual case, without a scan by pattern
        return text
    return _REFUSED.sub(_visible, text)


def _visible(found: re.Match[str]) -> str:
    character = found[0]
    return "␀" if character == "\x00" else f"\\u{ord(character):04x}"


def whole_number(text: str | None, digits: int = 18) -> int | None:
    """The number that `text` is, of at most `digits` digits; None where it is none. For ids and cursors from outside.

    Plain digits alone: `int` would read signs, blanks and the digits of other scripts too. 18 of them fit a column.
    """
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= digits else None


def terminal_line(text: str, width: int) -> str:
    """`text` for a terminal: one line of at most `width` characters, with every control character as its escape."""
    text = _CONTROL.sub(_escaped, text.replace("\n", " "))
    return text if len(text) <= width else f"{text[: width - 1]}…"


def marked(text: str) -> str:
    """`text` for a page, HTML included: what would move, hide or turn the text around it as its number (⟨U+202E⟩)."""
    return _UNSEEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)


def _escaped(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def fits(pattern: str, text: str) -> bool:
    """Return whether the whole text fits a pattern whose only wildcard is `*`. Takes time linear in both, however many stars."""
    first, *others = pattern.split("*")
    if not others:
        return text == pattern
    if not text.startswith(first):
        return False
    # Each piece between two stars at its first place after the one before: no choice is ever tried twice.
    at = len(first)
    for piece in others[:-1]:
        found = text.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return len(text) - len(others[-1]) >= at and text.endswith(others[-1])


# Names that many libraries give to a class: alone they do not tell which error it is.
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
    """The class without its module, `smtplib.SMTPServerDisconnected` as `SMTPServerDisconnected`; `_csv.Error` stays.

    A name that many libraries share keeps the module that distinguishes them: `requests.exceptions.HTTPError` is
    `requests.HTTPError`.
    """
    *modules, name = error_type.rstrip(".").split(".")
    if name not in _SHARED_NAMES:
        return name or error_type
    specific = [module for module in modules if module and module.lstrip("_") not in _GENERIC_MODULES]
    return f"{specific[-1]}.{name}" if specific else name
