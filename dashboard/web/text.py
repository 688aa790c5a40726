"""Display of untrusted text, and formatting of Redrive's own messages."""

from __future__ import annotations

import re
import unicodedata

from django.utils.html import format_html, format_html_join

from jobs_admin.core.fingerprint import SPLITS

# Characters that would move, hide or reorder the text around them. Tabs and line ends are handled by `pre`.
_INVISIBLE = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character) in _INVISIBLE and character not in "\n\t"


def _is_all_visible(text: str) -> bool:
    # Printable text contains nothing invisible, which Python determines quickly: checking each character was a fifth of
    # a list's cost.
    return text.replace("\n", " ").replace("\t", " ").isprintable() or not any(map(_is_invisible, text))


def visible(value):
    """Return untrusted text with control, direction and invisible characters displayed as their numbers."""
    text = str(value if value is not None else "")
    if _is_all_visible(text):
        return text
    pieces, plain = [], []
    for character in text:
        if _is_invisible(character):
            pieces.append(("", "".join(plain)))
            pieces.append((f"U+{ord(character):04X}", ""))
            plain = []
        else:
            plain.append(character)
    pieces.append(("", "".join(plain)))
    return format_html_join(
        "",
        "{}{}",
        (
            (format_html('<span class="unseen" title="invisible character">{}</span>', code) if code else "", words)
            for code, words in pieces
        ),
    )


def visible_text(value) -> str:
    """Return the same for an attribute, without markup."""
    text = str(value if value is not None else "")
    if _is_all_visible(text):
        return text
    return "".join(f"⟨U+{ord(c):04X}⟩" if _is_invisible(c) else c for c in text)


# The value of a part of a split group, at the end of its message (core/fingerprint.py: `apart`).
_PART = re.compile(rf"(.*) \(((?:{'|'.join(SPLITS)}): .+)\)", re.DOTALL)


def parted(message: str) -> tuple[str, str]:
    """Return (message, `tenant: cobalt`): the message, and the value of the part, whose siblings share the message."""
    found = _PART.fullmatch(message) if message.endswith(")") else None
    return (found[1], found[2]) if found else (message, "")


def part_first(message: str) -> str:
    """Return the same as one text that can be truncated at its end."""
    rest, part = parted(message)
    return f"({part}) {rest}" if part else message


def dotted(value):
    """Return a dotted name for headings: it may break after a dot, not within a word."""
    return format_html_join("", "{}<wbr>", ((visible(part),) for part in re.findall(r"[^.]+\.?|\.", str(value))))


def with_code(value):
    """Return a message in which text between backticks is code, with names in it made `visible`."""
    pieces = str(value).split("`")
    return format_html_join(
        "",
        "{}",
        (
            (format_html("<code>{}</code>", visible(words)) if n % 2 else visible(words),)
            for n, words in enumerate(pieces)
        ),
    )
