"""Text that strangers chose, made visible, and sentences of ours."""

from __future__ import annotations

import re
import unicodedata

from django.utils.html import format_html, format_html_join

from jobs_admin.core.fingerprint import SPLITS

# What would move, hide or reorder the text around it. Tabs and line ends are left to `pre`.
_INVISIBLE = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character) in _INVISIBLE and character not in "\n\t"


def _is_all_visible(text: str) -> bool:
    # What is printable has nothing invisible, and Python knows that at once: character by character it was a fifth
    # of a list's cost.
    return text.replace("\n", " ").replace("\t", " ").isprintable() or not any(map(_is_invisible, text))


def visible(value):
    """Text from strangers: control, direction and invisible characters are shown as their number, not obeyed."""
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
    """The same for an attribute, where there is no markup."""
    text = str(value if value is not None else "")
    if _is_all_visible(text):
        return text
    return "".join(f"⟨U+{ord(c):04X}⟩" if _is_invisible(c) else c for c in text)


# As a part of a group that was split says what it is, at the end of its message (core/fingerprint.py: `apart`).
_PART = re.compile(rf"(.*) \(((?:{'|'.join(SPLITS)}): .+)\)", re.DOTALL)


def parted(message: str) -> tuple[str, str]:
    """Return (message, `tenant: cobalt`): the message, and the part of a split, whose parts share the message."""
    found = _PART.fullmatch(message) if message.endswith(")") else None
    return (found[1], found[2]) if found else (message, "")


def part_first(message: str) -> str:
    """The same as one text, to be cut at its end."""
    rest, part = parted(message)
    return f"({part}) {rest}" if part else message


def dotted(value):
    """A dotted name in large letters: it may break after a dot, not within a word."""
    return format_html_join("", "{}<wbr>", ((visible(part),) for part in re.findall(r"[^.]+\.?|\.", str(value))))


def with_code(value):
    """Sentences: what stands between backticks is code. Names in them are shown as `visible` does."""
    pieces = str(value).split("`")
    return format_html_join(
        "",
        "{}",
        (
            (format_html("<code>{}</code>", visible(words)) if n % 2 else visible(words),)
            for n, words in enumerate(pieces)
        ),
    )
