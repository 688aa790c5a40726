"""Arguments as a tree: short branches are open, long ones load on demand.

A position in the tree is written `kwargs.0.17`: the name of the argument, then entry numbers, so that URLs contain no
text of jobs. Readers see the path by names: `kwargs.order.lines.17`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlencode

from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString, mark_safe

from dashboard.web.text import visible, visible_text
from jobs_admin.core import query as language
from jobs_admin.core.redacted_view import Piece
from jobs_admin.core.text import representable, whole_number

# Lines per response; further ones are loaded from an entry on.
MOST_LINES = 200
LONGEST_TEXT = 600  # characters of a text within the tree
LONGEST_LEAF = 200_000  # characters of a leaf opened on its own
SHORT = 24  # lines: a branch up to this length is shown completely, a longer one closed
OPEN_LEVELS = 2  # the first levels are open, however long
OPEN_ENTRIES = 12  # entries: within those levels, longer branches are folded
LONGEST_LIKE = 100  # characters of a value that can be searched for
LONGEST_NAME = 200  # characters of an entry's name
LONGEST_PATH = 2_000  # characters of a path, which repeats all names above; deeper paths end in CUT
CUT = "…"
MOST_FOUND = 100
MOST_SEARCHED = 500_000  # values visited by a search for a word


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the tree, in display order."""

    what: str  # leaf, long, open, close, folded, more
    key: str = ""
    kind: str = ""
    text: str = ""  # value of a leaf, or content of a branch: "3 entries"
    at: str = ""  # position, if it loads on demand
    path: str = ""  # path by names
    start: int = 0  # for `more`: number of the first entry not shown
    like: str = ""  # search for failures with this value at this path


def lines(piece: Piece, at: str, path: str = "", start: int = 0) -> list[Line]:
    """Return the lines for the entries of `piece` from number `start` (from 0), at most about MOST_LINES."""
    if not piece.is_branch:
        text = piece.text(LONGEST_LEAF)
        return [Line("leaf", kind=piece.kind, text=text if piece.size <= LONGEST_LEAF else f"{text}… (cut)", path=path)]
    return list(_entries(piece, at, path or at, start, 1, _Budget(MOST_LINES)))


def find(piece: Piece, at: str, path: str, words: str) -> tuple[list[Line], bool]:
    """Return the values below `piece` whose path or text contains `words`, at most MOST_FOUND, and if all were read.

    Values are compared as displayed, so a redacted one is found only by its path.
    """
    found: list[Line] = []
    sought = words.lower()
    for checked, (inner, here, name) in enumerate(_all(piece, at, path)):
        if checked >= MOST_SEARCHED or len(found) >= MOST_FOUND:
            return found, False
        if inner.is_branch:
            is_found = inner.size == 0 and sought in name.lower()
        else:
            is_found = sought in name.lower() or inner.holds(sought)
        if is_found:
            found.append(_leaf(inner, name, here, name))
    return found, True


def _all(piece: Piece, at: str, path: str) -> Iterator[tuple[Piece, str, str]]:
    """Yield (piece, position, path) of `piece` and all below it, in display order, with constant memory per level."""
    yield piece, at, path
    levels = [(at, path, enumerate(piece.entries()))]
    while levels:
        at, path, rest = levels[-1]
        entry = next(rest, None)
        if entry is None:
            levels.pop()
            continue
        n, (key, one) = entry
        here, name = f"{at}.{n}", joined(path, key)
        yield one, here, name
        if one.is_branch:
            levels.append((here, name, enumerate(one.entries())))


def opened(piece: Piece, steps: str) -> tuple[Piece, list[str]]:
    """Return the value at `steps` (`0.17`, indexes of entries) below `piece`, and the path's names. Raises KeyError."""
    names = []
    for step in steps.split(".") if steps else []:
        number = whole_number(step, digits=9)
        entry = None if number is None else next(piece.entries(number), None)
        if entry is None:
            raise KeyError(steps)
        names.append(entry[0])
        piece = entry[1]
    return piece, names


_PLAIN_NAME = re.compile(r"[\w-]{1,100}\Z")


def joined(path: str, name: str) -> str:
    """Return a path with a name appended: `kwargs.order.id`, or `kwargs."a.b"` if the name is no identifier.

    Names and paths are truncated: a name of megabytes would be repeated in every line below it.
    """
    if len(path) > LONGEST_PATH:
        return path if path.endswith(CUT) else f"{path}.{CUT}"
    name = short_name(name)
    step = name if _PLAIN_NAME.match(name) else json.dumps(name, ensure_ascii=False)
    return f"{path}.{step}" if path else step


def short_name(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}{CUT}"


class _Budget:
    """Number of lines left for one response."""

    def __init__(self, lines: int) -> None:
        self.left = lines


def _entries(piece: Piece, at: str, path: str, start: int, level: int, budget: _Budget) -> Iterator[Line]:
    for n, (key, one) in enumerate(piece.entries(start), start):
        if budget.left <= 0:
            yield Line("more", text=f"{piece.size - n:,} more", at=at, path=path, start=n)
            return
        budget.left -= 1
        here, name = f"{at}.{n}", joined(path, key)
        if not one.is_branch or not one.size:
            yield _leaf(one, key, here, name)
        elif _is_short(one, min(SHORT, budget.left)) or (level < OPEN_LEVELS and one.size <= OPEN_ENTRIES):
            yield Line("open", key, one.kind, _holds(one), here, name)
            yield from _entries(one, here, name, 0, level + 1, budget)
            yield Line("close")
        else:
            yield Line("folded", key, one.kind, _holds(one), here, name)


def _leaf(piece: Piece, key: str, at: str, path: str) -> Line:
    if piece.is_branch:
        return Line("leaf", key, "null", "[]" if piece.kind == "list" else "{}", at, path)
    text = piece.text(LONGEST_TEXT)
    if piece.kind == "hidden":
        return Line("leaf", key, "hidden", text, at, path)
    if piece.kind != "text":
        return Line("leaf", key, piece.kind, text, at, path, like=_like(path, text))
    shown = json.dumps(text, ensure_ascii=False)
    if piece.size > LONGEST_TEXT:
        return Line("long", key, "text", f"{shown[:-1]}… {piece.size:,} characters", at, path)
    return Line("leaf", key, "text", shown, at, path, like=_like(path, text))


def _like(path: str, text: str) -> str:
    """Return the search for the same value at the same path; "" if it cannot be expressed."""
    if not text or len(text) > LONGEST_LIKE or '"' in path or CUT in path or not path.startswith(("args.", "kwargs.")):
        return ""
    return language.qualifier(path, text)


def _holds(piece: Piece) -> str:
    return "1 entry" if piece.size == 1 else f"{piece.size:,} entries"


def _is_short(piece: Piece, limit: int) -> bool:
    """Return whether a branch has at most `limit` values, visiting no more than that."""
    seen, waiting = 0, [piece]
    while waiting:
        one = waiting.pop()
        if one.is_branch:
            seen += one.size
            if seen > limit:
                return False
            waiting.extend(inner for _, inner in one.entries())
    return True


# --- HTML -----------------------------------------------------------------------------------------------------------
# Not a template: a page has up to two hundred lines, and each would cost as much as ten of these.

_LEAF = '<li><span class="key"{}>{}</span> <span class="value is-{}">{}</span>{}</li>'
_OPEN = '<li><details open><summary><span class="key"{}>{}</span> <span class="holds">{}</span></summary><ul>'
_LINK = '<a class="holds" href="{0}" hx-get="{0}" hx-target="this" hx-swap="outerHTML">{1}</a>'
_MORE = '<li class="more"><a href="{0}" hx-get="{0}" hx-target="closest li" hx-swap="outerHTML">{1}</a></li>'
_LIKE = '<a class="like" href="{}" title="Find failures with this value">like this</a>'


@dataclass(frozen=True, slots=True)
class Addresses:
    """URLs of the lines of one tree."""

    opened: str  # the part that opens a position
    search: str  # the list of failures
    query: str = ""  # added to every URL of this tree: `whole=1`
    indexed: frozenset[str] = frozenset()  # paths of values that can be searched for


def as_html(shown: list[Line], to: Addresses, *, is_part: bool = False) -> SafeString:
    """Return the lines as a list; `is_part`: lines that continue a displayed list."""
    parts = [_html(line, to) for line in shown]
    inside = mark_safe("".join(parts))  # noqa: S308  (each part escapes what it holds)
    return inside if is_part else format_html('<ul class="tree">{}</ul>', inside)


def _html(line: Line, to: Addresses) -> str:
    if line.what == "close":
        return "</ul></details></li>"
    if line.what == "more":
        return format_html(_MORE, _opens(line, to), line.text)
    title = format_html(' data-path="{}"', visible_text(line.path)) if line.path else ""
    key = conditional_escape(visible(line.key if line.key == line.path else short_name(line.key)))
    if line.what == "open":
        return format_html(_OPEN, title, key, line.text)
    if line.what == "folded":
        return format_html(
            '<li><span class="key"{}>{}</span> {}</li>', title, key, format_html(_LINK, _opens(line, to), line.text)
        )
    if line.what == "long":
        more = format_html(" " + _LINK, _opens(line, to), "Show all")
    elif line.like and line.path in to.indexed:
        more = format_html(_LIKE, f"{to.search}?{urlencode({'q': representable(line.like)})}")
    else:
        more = ""
    return format_html(_LEAF, title, key, line.kind, visible(line.text), more)


def _opens(line: Line, to: Addresses) -> str:
    pairs = {"at": line.at, **({"from": str(line.start)} if line.start else {})}
    return f"{to.opened}?{urlencode(pairs)}{to.query}"
