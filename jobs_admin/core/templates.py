"""The message as the code writes it: the line that raises tells which words of the message are values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

_RAISES = re.compile(r"(?:raise\b|assert\b)")
_LITERAL = re.compile(
    r"(?P<kind>[fF][rR]?|[rR][fF]?|)(?P<quote>[\"'])(?P<text>(?:(?!(?P=quote)).){1,500})(?P=quote)(?P<after> ?%|\.format\(|, ?(?=[a-z_]))?"
)
_FIELD = re.compile(r"\{([^{}]{0,200})\}")
_FIELD_UNNAMED = re.compile(r"\{[^{}]{0,200}\}")
_PERCENT = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?[sdrifgxX]")
_LAST_NAME = re.compile(r"([A-Za-z_]\w*)\W*\Z")
# Values with such names say which error it is.
_TELLS = re.compile(
    r"(?i)reason|code|status|state|err|exc|kind|type|why|cause|messag|msg|detail|action|method|field|column|attr|param|option|resp|body|content|\A(?:e|ex|op)\Z"
)

# Values with such names are the code of the error itself, also where they are numbers. A `zip_code` is not.
_IS_CODE = re.compile(
    r"(?i)(?:\A|(?:error|err|status|http|exit|return|response|reply|fault|result|reason|failure|smtp|sql|api|grpc|os|sys)_?)"
    r"(?:code|status|errno|reason|sqlstate|returncode|state)\Z"
)
_SHORT = re.compile(r"[\w.:/-]{1,40}\Z")
# A word with digits that the code writes out whole.
_WRITTEN = re.compile(r"(?<![^\s\[(:,])[\w.-]{0,20}\d[\w-]{0,20}(?=[\s\]):,.;]|\Z)")

_DIGIT = re.compile(r"\d")

# Values with such names may be of several words.
_THING = re.compile(
    r"(?i)name|user|tenant|customer|patient|client|account|person|carrier|partner|provider|vendor|supplier|company|bank|merchant|shop|store|product|article|country|region|address|city|file|path|folder|date|time|value|input|title|label|key"
)


@dataclass(frozen=True, slots=True)
class Template:
    """`raise Refused(f"order {order} of {tenant} refused")`: which parts of its message are values."""

    texts: tuple[str, ...]  # around the values: one more than there are
    varies: tuple[bool, ...]
    things: tuple[bool, ...]  # values that may be of several words
    codes: tuple[bool, ...]  # values that are the code of the error
    is_foreign: bool = False  # of a library: there a word may be a name of the schema

    def pieces(self, message: str) -> list[Piece] | None:
        """The message cut into what the code writes and what it puts in; None where it was not written by it."""
        if not message.startswith(self.texts[0]) or (not self.varies and message != self.texts[0]):
            return None
        found, at = [Piece(self.texts[0], is_written=True)], len(self.texts[0])
        for n, text in enumerate(self.texts[1:]):
            is_last = n == len(self.varies) - 1
            ends = len(message) - len(text) if is_last and message.endswith(text) else message.find(text or "\n", at)
            if ends < at:
                return None
            value = message[at:ends]
            is_code = self.codes[n] and _SHORT.match(value) is not None
            found += [Piece(value, self.varies[n], self.things[n], is_code), Piece(text, is_written=True)]
            at = ends + len(text)
        return [*found, Piece(message[at:])]


class Piece(NamedTuple):
    """A part of a message: written by the code, or a value that it put in."""

    text: str
    varies: bool = False
    is_thing: bool = False
    is_code: bool = False
    is_written: bool = False

    def constants(self) -> list[tuple[int, int]]:
        """Where, in a text that the code writes, words with digits stand: from, to. They are the same each time."""
        if not self.is_written or not _DIGIT.search(self.text):
            return []
        return [found.span() for found in _WRITTEN.finditer(self.text)]


def template_of(code: str, *, is_foreign: bool = False) -> Template | None:
    """Of the line that raised; None where it says nothing of its message."""
    if not _RAISES.match(code):
        return None
    for found in _LITERAL.finditer(code[:1000]):
        after = found["after"] or ""
        if "f" in found["kind"].lower():
            parts = _FIELD.split(found["text"])
            texts, names = parts[::2], [_without_format(name) for name in parts[1::2]]
        elif after:
            texts = (_FIELD_UNNAMED if "format" in after else _PERCENT).split(found["text"])
            names = [part.strip(" ()") for part in code[found.end() : 1000].split(",")]
        elif len(code) <= 1000 and code.endswith((found[0] + ")", found[0])):
            return Template((found["text"],), (), (), (), is_foreign)  # no value at all
        else:
            continue
        # Values side by side cannot be told apart.
        if len(texts) >= 2 and all(texts[1:-1]):
            names += [""] * len(texts)
            names = names[: len(texts) - 1]
            varies = tuple(not _tells(name) for name in names)
            things = tuple(_is_thing(name) and free for name, free in zip(names, varies, strict=True))
            codes = tuple(_is_code(name) for name in names)
            return Template(tuple(texts), varies, things, codes, is_foreign)
    return None


def _without_format(name: str) -> str:
    return re.split(r"![rsa]|:[^\]]*\Z", name)[0]


def _is_thing(expression: str) -> bool:
    last = _LAST_NAME.search(expression)
    return last is not None and _THING.search(last[1]) is not None


def _is_code(expression: str) -> bool:
    last = _LAST_NAME.search(expression)
    return last is not None and _IS_CODE.match(last[1]) is not None


def _tells(expression: str) -> bool:
    last = _LAST_NAME.search(expression)
    return last is not None and _TELLS.search(last[1]) is not None
