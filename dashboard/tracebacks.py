"""A traceback for reading: the application's frames open and highlighted, runs of library frames folded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from pygments.lexers import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, String, _TokenType

from dashboard.templatetags.redrive import visible
from jobs_admin.core.fingerprint import frames

MOST_SHOWN = 64 * 1024  # characters, from the end: the error's own frames stand there


@dataclass(frozen=True, slots=True)
class ShownFrame:
    file: str
    place: str  # the end of the path, what one reads
    line: int
    function: str
    code: SafeString


@dataclass(frozen=True, slots=True)
class Piece:
    """Some frames of one kind in a row, or the words between and after them."""

    is_application: bool = False
    frames: tuple[ShownFrame, ...] = ()
    words: str = ""
    is_open: bool = False  # library frames: only where there is nothing else to read

    @property
    def last(self) -> ShownFrame:
        return self.frames[-1]


@dataclass(frozen=True, slots=True)
class Shown:
    pieces: tuple[Piece, ...]
    text: str
    is_cut: bool


_FRAME = re.compile(r'[ |+-]*File "')
_OPENING = re.compile(r"\s*(?:\+ )?(?:Exception Group )?Traceback \(most recent call last\):\s*\Z")


@lru_cache(maxsize=256)
def shown(trace: str) -> Shown:
    """`trace` in pieces, in its own order. Text that is no Python traceback comes back as one piece of words."""
    is_cut = len(trace) > MOST_SHOWN
    text = trace[-MOST_SHOWN:]
    known = iter(frames(text))
    upcoming = next(known, None)
    pieces: list[Piece] = []
    own: list[ShownFrame] = []
    own_is_application = False
    words: list[str] = []

    def close_frames() -> None:
        if own:
            pieces.append(Piece(own_is_application, tuple(own)))
            own.clear()

    def close_words() -> None:
        said = "\n".join(words).strip("\n")
        if said:
            pieces.append(Piece(words=said))
        words.clear()

    lines = text.split("\n")
    n = 0
    while n < len(lines):
        line = lines[n]
        n += 1
        if upcoming is None or not _FRAME.match(line) or upcoming.file not in line:
            if not _OPENING.match(line):
                if line.strip():
                    close_frames()
                words.append(line)
            continue
        close_words()
        if upcoming.is_application != own_is_application:
            close_frames()
            own_is_application = upcoming.is_application
        body = []
        while n < len(lines) and lines[n].startswith(("    ", "  |")) and not _FRAME.match(lines[n]):
            body.append(lines[n])
            n += 1
        own.append(
            ShownFrame(
                upcoming.file,
                "/".join(upcoming.file.replace("\\", "/").split("/")[-3:]),
                upcoming.line,
                upcoming.function,
                highlighted(_code(body) or upcoming.code),
            )
        )
        upcoming = next(known, None)
    close_frames()
    close_words()
    if not any(piece.is_application for piece in pieces):
        pieces = [Piece(p.is_application, p.frames, p.words, is_open=bool(p.frames)) for p in pieces]
    return Shown(tuple(pieces), trace, is_cut)


def _code(body: list[str]) -> str:
    """The source without what only underlines it."""
    lines = [line for line in body if line.strip(" ~^|")]
    indent = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    return "\n".join(line[indent:] for line in lines)


# The kinds of token that have a colour (parts.css); the rest is ink.
_LOOKS: tuple[tuple[_TokenType, str], ...] = (
    (Comment, "c"),
    (Keyword, "k"),
    (Operator.Word, "k"),
    (String, "s"),
    (Number, "n"),
    (Name.Function, "f"),
    (Name.Class, "f"),
    (Name.Builtin, "f"),
    (Name.Exception, "f"),
)


def highlighted(code: str) -> SafeString:
    """Python as HTML: each token escaped, coloured by class."""
    tokens = PythonLexer(stripnl=False, ensurenl=False).get_tokens(code)
    return format_html_join("", '<span class="{}">{}</span>', ((_look(kind), visible(text)) for kind, text in tokens))


def _look(kind: _TokenType) -> str:
    return next((look for known, look in _LOOKS if kind in known), "t")
