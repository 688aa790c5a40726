"""Differences of two texts or two JSON values, side by side: lines around each change, and "…" for the rest.

JSON is compared by structure, not by line: equal parts are skipped at any size, a moved field is not a change, and only
the inserted entry of a list is new.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from jobs_admin.core.redacted_view import Piece

CONTEXT = 3  # lines shown around a change
MOST_ROWS = 600
MOST_LINES = 4_000  # lines of a text; a longer one is compared by its head and tail
LONGEST_MARKED = 600  # characters of a line in which changed words are marked
LONGEST_VALUE = 2_000  # characters of a value in a row
MOST_ALIGNED = 2_000  # entries of two lists matched by content; beyond, by position
DEEPEST = 80
DEEPEST_INDENT = 8  # classes of the style sheet; deeper rows are not indented further

Words = tuple[tuple[str, bool], ...]  # (text, whether it changed)


@dataclass(frozen=True, slots=True)
class Row:
    """A line on both sides. `left` or `right` is None if that side has no such line."""

    what: str  # same, open, changed, added, removed, gap
    left: Words | None = None
    right: Words | None = None
    level: int = 0
    count: int = 0  # of a gap: number of equal lines

    @property
    def indent(self) -> int:
        return min(self.level, DEEPEST_INDENT)


@dataclass(frozen=True, slots=True)
class Difference:
    rows: list[Row]  # empty if nothing differs
    is_cut: bool = False  # there are more than MOST_ROWS

    @property
    def is_same(self) -> bool:
        return not self.rows


def of_texts(left: str, right: str) -> Difference:
    return Difference([]) if left == right else _cut(_text_rows(_lines(left), _lines(right)))


def of_values(left: Piece, right: Piece) -> Difference:
    return Difference([]) if left.same(right) else _cut(_value_rows("", left, "", right, 0))


def _cut(rows: Iterator[Row]) -> Difference:
    found = list(islice(_with_gaps(rows), MOST_ROWS + 1))
    return Difference(found[:MOST_ROWS], len(found) > MOST_ROWS)


def _with_gaps(rows: Iterator[Row]) -> Iterator[Row]:
    """Replace rows far from every change by gaps with their number. Buffers no more rows than are shown."""
    waiting: deque[Row] = deque()  # equal rows after the context of the last change
    left_out = 0
    after = 0  # rows left in the context after a change
    for row in rows:
        if row.what != "same":
            yield from _gap(left_out, waiting)
            left_out = 0
            # The name of an opened entry has its own context.
            after = after if row.what == "open" else CONTEXT
            yield row
        elif after:
            after -= 1
            yield row
        else:
            waiting.append(row)
            if len(waiting) > CONTEXT + 1:
                waiting.popleft()
                left_out += 1
    # After the last change, no row is context of a next one.
    if left_out + len(waiting) == 1:
        yield from waiting
    elif waiting:
        yield Row("gap", count=left_out + len(waiting))


def _gap(left_out: int, waiting: deque[Row]) -> Iterator[Row]:
    """Yield a gap for the omitted rows, then the remaining rows; a single row is shown instead of a gap."""
    if left_out:
        if len(waiting) > CONTEXT:
            waiting.popleft()
            left_out += 1
        yield Row("gap", count=left_out)
    yield from waiting
    waiting.clear()


# ---------- texts ----------


def _lines(text: str) -> list[str]:
    lines = text.rstrip("\n").split("\n")
    if len(lines) <= MOST_LINES:
        return lines
    half = MOST_LINES // 2
    return [*lines[:half], f"… {len(lines) - MOST_LINES:,} lines are not compared …", *lines[-half:]]


def _text_rows(left: Sequence[str], right: Sequence[str]) -> Iterator[Row]:
    for what, i1, i2, j1, j2 in _opcodes(left, right):
        if what == "equal":
            for line in left[i1:i2]:
                yield Row("same", _plain(line), _plain(line))
            continue
        for one, other in _pairs(left[i1:i2], right[j1:j2]):
            yield _pair(one, other)


def _opcodes(left: Sequence[str], right: Sequence[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """Return difflib's opcodes after removing the common prefix and suffix, since matching takes quadratic time."""
    begin = 0
    while begin < min(len(left), len(right)) and left[begin] == right[begin]:
        begin += 1
    end = 0
    while end < min(len(left), len(right)) - begin and left[-1 - end] == right[-1 - end]:
        end += 1
    if begin:
        yield "equal", 0, begin, 0, begin
    inner_left, inner_right = left[begin : len(left) - end], right[begin : len(right) - end]
    if inner_left or inner_right:
        for what, i1, i2, j1, j2 in difflib.SequenceMatcher(None, inner_left, inner_right).get_opcodes():
            yield what, begin + i1, begin + i2, begin + j1, begin + j2
    if end:
        yield "equal", len(left) - end, len(left), len(right) - end, len(right)


def _pairs(left: Sequence[str], right: Sequence[str]) -> Iterator[tuple[str | None, str | None]]:
    for n in range(max(len(left), len(right))):
        yield (left[n] if n < len(left) else None), (right[n] if n < len(right) else None)


def _pair(left: str | None, right: str | None) -> Row:
    if left is None or right is None:
        what = "added" if left is None else "removed"
        return Row(what, None if left is None else _plain(left), None if right is None else _plain(right))
    return Row("changed", *_marked(left, right))


def _plain(line: str) -> Words:
    return ((line, False),)


_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")


def _marked(left: str, right: str) -> tuple[Words, Words]:
    """Return both lines with differing words marked; unmarked if they have little in common."""
    if len(left) > LONGEST_MARKED or len(right) > LONGEST_MARKED:
        return _plain(left), _plain(right)
    one, other = _TOKEN.findall(left), _TOKEN.findall(right)
    matcher = difflib.SequenceMatcher(None, one, other, autojunk=False)
    if matcher.ratio() < 0.3:
        return _plain(left), _plain(right)
    marked: tuple[list[tuple[str, bool]], list[tuple[str, bool]]] = ([], [])
    for what, i1, i2, j1, j2 in matcher.get_opcodes():
        for side, words in ((marked[0], one[i1:i2]), (marked[1], other[j1:j2])):
            if words:
                side.append(("".join(words), what != "equal"))
    return tuple(marked[0]), tuple(marked[1])


# ---------- values ----------


def _value_rows(name: str, left: Piece, other_name: str, right: Piece, level: int) -> Iterator[Row]:
    """Yield the rows of an entry that is on both sides, under its name on each."""
    if left.same(right):
        line = _line(name, left)
        yield Row("same", _plain(line), _plain(_line(other_name, right)), level)
    elif left.kind == right.kind and left.kind in {"list", "object"} and level < DEEPEST:
        if name or other_name:
            yield Row("open", _plain(f"{name}:"), _plain(f"{other_name}:"), level)
        inner = level + bool(name or other_name)
        yield from (_field_rows if left.kind == "object" else _element_rows)(left, right, inner)
    elif left.kind == right.kind == "hidden":
        # Both are redacted and differ: only that is shown.
        yield Row(
            "changed", _plain(_line(name, left)), ((_line(other_name, right), False), (" (another value)", True)), level
        )
    elif "list" in (left.kind, right.kind) or "object" in (left.kind, right.kind):
        yield from _branch(name, left, "removed", level)
        yield from _branch(other_name, right, "added", level)
    else:
        words = _marked(_piece_text(left), _piece_text(right))
        named = (
            ((f"{one}: ", False), *side) if one else side for one, side in zip((name, other_name), words, strict=True)
        )
        yield Row("changed", *named, level)


def _field_rows(left: Piece, right: Piece, level: int) -> Iterator[Row]:
    fields, others = dict(left.entries()), dict(right.entries())
    for name, one in fields.items():
        if name in others:
            yield from _value_rows(name, one, name, others[name], level)
        else:
            yield from _branch(name, one, "removed", level)
    for name, other in others.items():
        if name not in fields:
            yield from _branch(name, other, "added", level)


def _element_rows(left: Piece, right: Piece, level: int) -> Iterator[Row]:
    one, other = [inner for _, inner in left.entries()], [inner for _, inner in right.entries()]
    for what, i1, i2, j1, j2 in _alignment(one, other):
        both = min(i2 - i1, j2 - j1)
        for n in range(both):
            yield from _value_rows(str(i1 + n), one[i1 + n], str(j1 + n), other[j1 + n], level)
        if what == "equal":
            continue
        for n in range(i1 + both, i2):
            yield from _branch(str(n), one[n], "removed", level)
        for n in range(j1 + both, j2):
            yield from _branch(str(n), other[n], "added", level)


def _alignment(left: list[Piece], right: list[Piece]) -> list[tuple[str, int, int, int, int]]:
    if len(left) == len(right) or max(len(left), len(right)) > MOST_ALIGNED:
        return [("replace", 0, len(left), 0, len(right))]
    return list(_opcodes([one.digest() for one in left], [one.digest() for one in right]))


def _branch(name: str, piece: Piece, what: str, level: int) -> Iterator[Row]:
    """Yield the rows of an entry that only one side has, including everything below it."""

    def row(text: str, at: int) -> Row:
        return Row(what, _plain(text), None, at) if what == "removed" else Row(what, None, _plain(text), at)

    if piece.kind in {"list", "object"} and piece.size and level < DEEPEST:
        yield row(f"{name}:", level)
        for inner_name, inner in piece.entries():
            yield from _branch(inner_name, inner, what, level + 1)
    else:
        yield row(_line(name, piece), level)


def _line(name: str, piece: Piece) -> str:
    return f"{name}: {_piece_text(piece)}" if name else _piece_text(piece)


def _piece_text(piece: Piece) -> str:
    if piece.kind in {"list", "object"}:
        opening, closing = "[]" if piece.kind == "list" else "{}"
        holds = "1 entry" if piece.size == 1 else f"{piece.size:,} entries"
        return f"{opening}… {holds}{closing}" if piece.size else f"{opening}{closing}"
    text = piece.text(LONGEST_VALUE)
    if piece.kind == "hidden":
        return text
    if piece.kind != "text":
        return text
    words = json.dumps(text, ensure_ascii=False)
    return f"{words[:-1]}… {piece.size:,} characters" if piece.size > LONGEST_VALUE else words
