"""Readable tracebacks: the error that ended the job first, its causes below, library frames folded.

Thousands of failures share a stack, so its HTML is rendered once and cached, within a memory limit.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from threading import Lock
from typing import TYPE_CHECKING

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from dashboard.web.htmx import render_to_string
from dashboard.web.text import visible
from jobs_admin.core.traces import frames

if TYPE_CHECKING:
    from pygments.lexers.python import PythonLexer
    from pygments.token import _TokenType

MOST_SHOWN = 64 * 1024  # characters from the end, where the frames of the error itself are
LONGEST_LINE = 1_000  # characters of a line that is highlighted
MOST_CACHED = 4 * 1024 * 1024  # characters of HTML in the cache, for all stacks


@dataclass(frozen=True, slots=True)
class ShownFrame:
    file: str
    place: str  # end of the path, for display
    line: int
    function: str
    code: SafeString | str


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive frames of one kind, or the text between and after frames."""

    is_application: bool = False
    frames: tuple[ShownFrame, ...] = ()
    words: str = ""
    is_open: bool = False  # library frames are open only if there are no others

    @property
    def last(self) -> ShownFrame:
        return self.frames[-1]


@dataclass(frozen=True, slots=True)
class Section:
    """One exception of a chain, in the order of its own lines."""

    n: int  # from 1, the error that ended the job
    how: str  # relation to the one above: "caused by"; "" for the first
    error: str  # its type, or the first words of its text
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Shown:
    sections: tuple[Section, ...]  # the error that ended the job, then its causes
    text: str
    is_cut: bool

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return tuple(piece for section in self.sections for piece in section.pieces)


_FRAME = re.compile(r'[ |+-]*File "')
_AT = "    at "  # a frame of JavaScript
_OPENING = re.compile(r"\s*(?:\+ )?(?:Exception Group )?Traceback \(most recent call last\):\s*\Z")
_BETWEEN = re.compile(
    r"^(During handling of the above exception, another exception occurred:"
    r"|The above exception was the direct cause of the following exception:)\s*$",
    re.MULTILINE,
)


def parse(trace: str) -> Shown:
    """Parse `trace` into sections, the last exception first. Any other text becomes one section of text."""
    text = trace[-MOST_SHOWN:]
    parts = _BETWEEN.split(text)  # first cause, relation to the next, the next …
    found = []
    for n, place in enumerate(range(len(parts) - 1, -1, -2), 1):
        pieces = _pieces(parts[place])
        # The text between two exceptions describes how the second followed from the first.
        between = parts[place + 1] if place + 1 < len(parts) else ""
        how = "" if n == 1 else "while handling" if between.startswith("During") else "caused by"
        found.append(Section(n, how, _error(pieces), tuple(pieces)))
    if not any(piece.is_application for section in found for piece in section.pieces):
        found = [Section(s.n, s.how, s.error, tuple(_opened(p) for p in s.pieces)) for s in found]
    return Shown(tuple(found), trace, len(trace) > MOST_SHOWN)


def _opened(piece: Piece) -> Piece:
    return Piece(piece.is_application, piece.frames, piece.words, is_open=bool(piece.frames))


def _error(pieces: list[Piece]) -> str:
    message = (pieces[-1].words or pieces[0].words) if pieces else ""
    return message.split("\n", 1)[0].partition(": ")[0][:120]


def _pieces(text: str) -> list[Piece]:
    if _FRAME.search(text) is None and (own := _of_javascript(text)):
        return own
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
        message = "\n".join(words).strip("\n")
        if message:
            pieces.append(Piece(words=message))
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
                _place(upcoming.file),
                upcoming.line,
                upcoming.function,
                highlighted(_code(body) or upcoming.code),
            )
        )
        upcoming = next(known, None)
    close_frames()
    close_words()
    return pieces


def _of_javascript(text: str) -> list[Piece]:
    """Return a stack as written by V8: the error, then its frames, innermost first. Empty for other text."""
    known = frames(text)[::-1]
    lines = text.split("\n")
    end = next((n for n in range(len(lines), 0, -1) if lines[n - 1].startswith(_AT)), 0)
    begin = end
    while begin and lines[begin - 1].startswith(_AT):
        begin -= 1
    if not known or end - begin != len(known):  # more frames than can be parsed
        return []
    pieces = [Piece(words=message)] if (message := "\n".join(lines[:begin]).strip("\n")) else []
    for is_application, row in groupby(known, key=lambda frame: frame.is_application):
        pieces.append(
            Piece(is_application, tuple(ShownFrame(f.file, _place(f.file), f.line, f.function, "") for f in row))
        )
    rest = "\n".join(lines[end:]).strip("\n")
    return [*pieces, Piece(words=rest)] if rest else pieces


def _place(file: str) -> str:
    return "/".join(file.replace("\\", "/").split("/")[-3:])


def _code(body: list[str]) -> str:
    """Return the source line, without lines that only underline it."""
    lines = [line for line in body if line.strip(" ~^|")]
    indent = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    return "\n".join(line[indent:] for line in lines)


# Token types that have a colour (parts.css), as named by pygments; others have the text colour.
_CSS_CLASSES = (
    ("Comment", "c"),
    ("Keyword", "k"),
    ("Operator.Word", "k"),
    ("Literal.String", "s"),
    ("Literal.Number", "n"),
    ("Name.Function", "f"),
    ("Name.Class", "f"),
    ("Name.Builtin", "f"),
    ("Name.Exception", "f"),
)


@lru_cache(maxsize=1)
def _lexer() -> PythonLexer:
    from pygments.lexers.python import PythonLexer  # imported with the first traceback, not in every web process

    return PythonLexer(stripnl=False, ensurenl=False)


@lru_cache(maxsize=1024)  # different stacks share lines of libraries
def _highlighted(code: str) -> SafeString:
    # Tokens without a colour need no element.
    pieces = (
        format_html('<span class="{}">{}</span>', css_class, visible(text))
        if (css_class := _css_class(kind))
        else visible(text)
        for kind, text in _lexer().get_tokens(code)
    )
    return format_html_join("", "{}", ((piece,) for piece in pieces))


def highlighted(code: str) -> SafeString | str:
    """Return Python source as HTML with escaped tokens and a class per colour; overlong lines without colours."""
    return _highlighted(code) if len(code) <= LONGEST_LINE else visible(code)


def _css_class(kind: _TokenType) -> str:
    name = f"{'.'.join(kind)}."
    return next((css_class for known, css_class in _CSS_CLASSES if name.startswith(f"{known}.")), "")


class _Cache:
    """HTML by hash of the stack; the least recently used entry is evicted first."""

    def __init__(self, most: int) -> None:
        self.most, self.characters = most, 0
        self.entries: OrderedDict[str, SafeString] = OrderedDict()
        self.lock = Lock()

    def get(self, key: str) -> SafeString | None:
        with self.lock:
            found = self.entries.get(key)
            if found is not None:
                self.entries.move_to_end(key)
            return found

    def keep(self, key: str, html: SafeString) -> None:
        with self.lock:
            if key in self.entries or len(html) > self.most // 8:
                return
            self.entries[key] = html
            self.characters += len(html)
            while self.characters > self.most:
                _, gone = self.entries.popitem(last=False)
                self.characters -= len(gone)


cache = _Cache(MOST_CACHED)


_LAST_LINE = re.compile(r'<pre class="words">((?:[\w.]+\.)?(\w+))</pre>(?=\s*</div>\s*$)')


def with_message(html: SafeString | str, error_type: str, message: str) -> SafeString | str:
    """Return a stack with the message on its last line; stored stacks have none, so that equal ones are stored once."""
    found = _LAST_LINE.search(html) if message else None
    if found is None or found[2] != error_type.rpartition(".")[2]:
        return html
    line = format_html('<pre class="words">{}: {}</pre>', found[1], visible(message))
    return SafeString(f"{html[: found.start()]}{line}{html[found.end() :]}")


def as_html(sha256: str, text: Callable[[], str]) -> SafeString:
    """Return the HTML of the stack with this hash; `text` is called only if the cache does not have it."""
    found = cache.get(sha256)
    if found is None:
        found = mark_safe(render_to_string("redrive/parts/traceback.html", {"trace": parse(text())}).strip())  # noqa: S308
        cache.keep(sha256, found)
    return found
