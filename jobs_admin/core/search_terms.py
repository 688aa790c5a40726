"""Text -> the terms of the search index, made here so that both databases index exactly the same.

A text is a sequence of lower-case sub-words: cut at punctuation and, inside an identifier, where camelCase says so
(`ReadTimeoutError` is `read timeout error`, `HTTPServer` is `http server`). An identifier of several parts also gives
its joined runs (`readtimeout`, `timeouterror` …), so that `timeouterror` finds it too. What looks like an id stays one.

A document holds, in this order: the words of the error's type (marked `^`, so that `message:` can leave them out),
those of its message right behind them (so that `"KeyError: 'x'"` is a phrase), then, behind TAIL, what has no place:
joined runs, ids, names (`@queue=emails`), arguments by path (`@kwargs.customer.id=42`). What is no word of a text begins
with a mark, which no word does: `err*` finds words that begin so, and not every `@error=`.

Bounds, the same on both databases: of a message the first 4,096 and the last 1,024 characters; of a stack the first
16,384 and the last 49,152; of a word 100 characters; of one word 255 occurrences; of a job 32 values of its
positional and 32 of its keyword arguments, the outer ones first: `customer.id` before what a long list holds.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TypeAlias

from jobs_admin.core.redaction import PLACEHOLDER
from jobs_admin.core.text import representable

VERSION = 3  # of these rules: an index made by other ones is made anew

SEAM = "|"  # no phrase goes across it
TAIL = "||"  # what follows has no place: it is in no phrase
_TYPE, _NAME = "^", "@"  # begin the terms that are no words of a message
# All that a term is made of beside letters and digits; an index must take these for letters.
MARKS = "-._^~=!@/|"

HEAD_OF_MESSAGE, END_OF_MESSAGE = 4_096, 1_024  # characters
HEAD_OF_STACK, END_OF_STACK = 16_384, 49_152
LONGEST = 100  # characters of a term; a longer word is known by its beginning, a longer name by its hash too
MOST_PLACES = 255  # PostgreSQL keeps no more places of a word in a document …
MOST_IN_PLACE = 16_000  # … and none beyond 16,383
MOST_LEAVES = 32
_MOST_BRANCHES = 256  # of arguments, that are looked into for leaves

# The columns of a failure that are terms too, as names; `stack` is the id of its traceback, in figures.
NAMED = ("source", "queue", "task", "tenant", "release", "host", "worker")

_Scalar: TypeAlias = str | bool | None  # numbers are read as they stand in the text
_Json: TypeAlias = "dict[str, _Json] | list[_Json] | _Scalar"
_Leaves: TypeAlias = Iterator[tuple[str, str, _Scalar]]  # path, path without the places in lists, value

# A run of letters and digits; a minus belongs to a number that begins with it (`[Errno -2]`, but not `web-3`).
_RUN = re.compile(r"(?:(?<![\w-])-(?=\d))?[^\W_]+")
# The same in ASCII, a third as dear: without a look at Unicode's tables, or at what stands before.
_RUN_OF_ASCII = re.compile(r"(?:(?<![\w-])-(?=\d))?[a-zA-Z0-9]+", re.ASCII)
_RUN_WITHOUT_MINUS = re.compile("[a-zA-Z0-9]+")
_PART = re.compile("[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+[0-9]*")
_CAPITAL = re.compile("[A-Z]")
_MOST_PARTS = 12
_LONGEST_JOIN = 4  # parts of a joined run; and all of them


def document(
    *, error_type: str, message: str, job_ids: list[str], names: dict[str, str], args: str, kwargs: str
) -> str:
    """Return what the index holds of a failure: its terms, parted by blanks. Linear in the (bounded) input; never raises.

    `job_ids`: of its first run and of its latest. `names`: NAMED and `stack` -> name, found whole and with regard to
    case; an empty one is none. `args`, `kwargs`: the display copy, JSON or not. Text is `representable`.
    """
    of_type, joined_of_type = _words_of_type(error_type)
    words, joined = _read_ends(message, HEAD_OF_MESSAGE, END_OF_MESSAGE)
    placed = [*of_type, *words]
    tail = [TAIL, *joined_of_type]
    for one in joined:
        tail += (one, SEAM)
    tail += {name("job", job_id) for job_id in job_ids if job_id}
    if error_type:
        tail.append(name("error", error_type))
    tail += [name(field, value) for field, value in names.items() if value]
    if PLACEHOLDER in message:
        tail.append(HIDDEN_TEXT)
    tail += _arguments("args", args)
    tail += _arguments("kwargs", kwargs)
    return " ".join(_within_bounds(placed) + tail)


def stack_document(text: str) -> str:
    """Return what the index holds of a stack."""
    words, joined = _read_ends(text, HEAD_OF_STACK, END_OF_STACK)
    tail = [TAIL]
    for one in joined:
        tail += (one, SEAM)
    return " ".join(_within_bounds(words) + tail)


def places(text: str) -> dict[str, list[int]]:
    """Term -> its places in a document, from 1: none for what stands behind TAIL."""
    found: dict[str, list[int]] = {}
    placed, _, tail = text.partition(TAIL)
    # By blanks alone: a name may hold white space beyond ASCII.
    for place, term in enumerate(filter(None, placed.split(" ")), 1):
        if term != SEAM:
            found.setdefault(term, []).append(place)
    for term in tail.split(" "):
        if term and term != SEAM:
            found.setdefault(term, [])
    return found


# -- what a search asks of it -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Phrase:
    """Terms that follow each other; of the last one only the beginning where `prefix`."""

    terms: tuple[str, ...]
    prefix: bool = False


HIDDEN_TEXT = "@message=!"  # something in the message is hidden


MOST_WORDS = 100  # of a phrase
_LONGEST_TYPE = 24  # words of a type that a phrase may begin with


def phrases(text: str, *, prefix: bool = False) -> tuple[Phrase, ...]:
    """A message, or a stack, has `text` where it has one of these; () for a text without words.

    Only the first MOST_WORDS count.
    """
    words, _ = _read(text)
    if not words:
        return ()
    found = [Phrase(tuple(words[:MOST_WORDS]), prefix)]
    if len(words) > 1 and len(_runs(text)) == 1:
        found.append(Phrase((_cut("".join(words)),), prefix))
    return tuple(found)


def phrases_of_error(text: str, *, prefix: bool = False) -> tuple[Phrase, ...]:
    """The same for type and message, read as one text: a phrase may begin in the type and go on in the message."""
    return tuple(
        Phrase((*(f"{_TYPE}{term}" for term in one.terms[:split]), *one.terms[split:]), prefix)
        for one in phrases(text, prefix=prefix)
        for split in range(min(len(one.terms), _LONGEST_TYPE) + 1)
    )


def has_more_words(text: str, most: int) -> bool:
    return len(_read(text)[0]) > most


def name(field: str, value: str) -> str:
    """The term of a whole name, with regard to case."""
    return f"{_NAME}{field}={_shortened(value)}"


def name_begins(field: str, beginning: str) -> Phrase:
    """Names that begin so: those that do so in the characters which are kept of a long one."""
    return Phrase((f"{_NAME}{field}={_escaped(beginning)[:_LONGEST_NAME]}",), prefix=True)


def is_unabridged(beginning: str) -> bool:
    """Return whether the beginning of a name is short enough to be stored in full."""
    return len(_escaped(beginning)) <= _LONGEST_NAME


def argument(path: str, value: str, *, prefix: bool = False) -> Phrase:
    """An argument at `path` (`args.0.tenant`, `kwargs.email`) that is `value`, or begins with it."""
    if prefix:
        return Phrase((f"{_NAME}{_path(path)}={_escaped(value.casefold())[:_LONGEST_NAME]}",), prefix=True)
    return Phrase((f"{_NAME}{_path(path)}={_shortened(value.casefold())}",))


def hidden_argument(path: str) -> Phrase:
    """An argument at `path` that was hidden before it left the worker."""
    return Phrase((f"{_NAME}{_path(path)}=!",))


def is_word_end(character: str) -> bool:
    """Return whether a word could go on behind it."""
    return bool(re.match(r"[^\W_]", unicodedata.normalize("NFKC", character)[-1:]))


# -- words ------------------------------------------------------------------------------------------------------


def _read(text: str) -> tuple[list[str], list[str]]:
    """The sub-words of a text in order, and the joined runs of its identifiers, each once."""
    words: list[str] = []
    joined: dict[str, None] = {}
    for run in _runs(text):
        if run.islower() or run.isdecimal() or _CAPITAL.search(run) is None:
            words.append(run if len(run) <= LONGEST else run[:LONGEST])
            continue
        parts, runs = _parts(run)
        words += parts
        if runs:
            joined |= dict.fromkeys(runs)
    return words, list(joined)


def _runs(text: str) -> list[str]:
    """The runs of letters and digits, of which only plain English letters still have a case."""
    if text.isascii():
        return (_RUN_OF_ASCII if "-" in text else _RUN_WITHOUT_MINUS).findall(text)
    # Without regard to how a character is composed.
    runs: list[str] = _RUN.findall(unicodedata.normalize("NFKC", text))
    return [run if run.isascii() else run.casefold() for run in runs]


@lru_cache(maxsize=20_000)
def _parts(run: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The parts of an identifier with capitals, and its joined runs."""
    run = run[: 4 * LONGEST]
    sign = "-" if run[0] == "-" else ""
    parts = _PART.findall(run)
    many = len(parts)
    # `9s6XKzkNRiz` is no identifier.
    if many == 1 or many > _MOST_PARTS or (many > 2 and len(run) < 3 * many):
        return (_cut(run.lower()),), ()
    words = [_cut(part.lower()) for part in parts]
    runs = [
        _cut("".join(words[start:end]))
        for start in range(many)
        for end in range(start + 2, many + 1)
        if end - start <= _LONGEST_JOIN or end - start == many
    ]
    words[0] = sign + words[0]
    return tuple(words), tuple(runs)


@lru_cache(maxsize=2_000)
def _words_of_type(error_type: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    words, joined = _read(error_type)
    return (
        tuple(f"{_TYPE}{word}" for word in words),
        tuple(part for one in joined for part in (f"{_TYPE}{one}", SEAM)),
    )


def _cut(term: str) -> str:
    return term[:LONGEST]


def _read_ends(text: str, head: int, end: int) -> tuple[list[str], list[str]]:
    if len(text) <= head + end:
        return _read(text)
    (first, joined), (last, more) = _read(text[:head]), _read(text[-end:])
    return [*first, SEAM, *last], list(dict.fromkeys(joined + more))


def _within_bounds(words: list[str]) -> list[str]:
    """`words` with a seam for each that has no place in PostgreSQL's index."""
    if len(words) <= MOST_PLACES:
        return words
    if len(words) > MOST_IN_PLACE:
        words = [*words[: MOST_IN_PLACE // 4], SEAM, *words[-MOST_IN_PLACE * 3 // 4 + 1 :]]
    if max(Counter(words).values()) <= MOST_PLACES:  # the usual case, counted without a loop of ours
        return words
    seen: Counter[str] = Counter()
    bounded = []
    for word in words:
        seen[word] += 1
        bounded.append(SEAM if seen[word] > MOST_PLACES else word)
    return bounded


# -- names and arguments ----------------------------------------------------------------------------------------

_LONGEST_NAME = 60  # characters of a long name, before its hash
_TO_ESCAPE = re.compile(r"[^a-z0-9.@/\-\u0080-\U0010ffff]")


def _escaped(value: str) -> str:
    """`value` in the characters that terms are made of, with regard to case; another value, another term."""
    return _TO_ESCAPE.sub(_escape, value)


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    return f"^{character.lower()}" if "A" <= character <= "Z" else f"_{ord(character):02x}"


@lru_cache(maxsize=20_000)
def _shortened(value: str) -> str:
    escaped = _escaped(value)
    if len(escaped) <= LONGEST:
        return escaped
    return f"{escaped[:_LONGEST_NAME]}~{hashlib.sha256(value.encode('utf-8', 'replace')).hexdigest()[:20]}"


@lru_cache(maxsize=20_000)
def _path(path: str) -> str:
    return _shortened(representable(path).casefold())


def _arguments(root: str, text: str) -> list[str]:
    """Terms for the first leaves of a display copy, each by its path, and by that without the places in lists."""
    found: dict[str, None] = {}
    for path, plain_path, value in _first(root, text):
        # Most values are a number or an id, each another one: cached they would only push out those that come again.
        if isinstance(value, str) and len(value) <= LONGEST and value.isascii() and value.isalnum():
            encoded = value.lower()
        else:
            encoded = _encoded(value)
        found[f"{_head(path)}{encoded}"] = None
        if plain_path is not path:
            found[f"{_head(plain_path)}{encoded}"] = None
    return list(found)


@lru_cache(maxsize=20_000)
def _head(path: str) -> str:
    """The beginning of the terms of a path."""
    return f"{_NAME}{_path(path)}="


@lru_cache(maxsize=20_000)
def _encoded(value: _Scalar) -> str:
    shown = representable(value) if isinstance(value, str) else json.dumps(value)
    return "!" if PLACEHOLDER in shown else _shortened(shown.casefold())


def indexed_paths(root: str, text: str) -> frozenset[str]:
    """The paths (`kwargs.order.lines.0.sku`) of those values of a display copy that the index has."""
    return frozenset(path for path, _, _ in _first(root, text))


def _first(root: str, text: str) -> _Leaves:
    """The leaves that the index takes: the outer ones first, and in the order of the text."""
    if len(text) <= 2:  # nothing, [] or {}
        return iter(())
    try:
        leaves = _leaves(root, _AS_TEXT.decode(text))
    except (ValueError, RecursionError):
        readable = islice(_readable_leaves(root, text), MOST_LEAVES * 8)
        leaves = iter(sorted(readable, key=lambda leaf: leaf[0].count(".")))
    return islice(leaves, MOST_LEAVES)


# Numbers as they stand in the text.
_AS_TEXT = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)


def _leaves(root: str, value: _Json) -> _Leaves:
    """Level by level. Of a job that is all branches, the first are read."""
    if not isinstance(value, (dict, list)):
        yield root, root, value
        return
    branches: deque[tuple[str, str, dict[str, _Json] | list[_Json]]] = deque([(root, root, value)])
    for _ in range(_MOST_BRANCHES):
        if not branches:
            return
        path, plain, branch = branches.popleft()
        keyed = branch.items() if isinstance(branch, dict) else None
        for key, inner in islice(enumerate(branch) if keyed is None else keyed, MOST_LEAVES * 2):
            longer = f"{path}.{key}"
            longer_plain = plain if keyed is None else longer if plain is path else f"{plain}.{key}"
            if isinstance(inner, (dict, list)):
                branches.append((longer, longer_plain, inner))
            else:
                yield longer, longer_plain, inner


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s"{}\[\]:,]+', re.S)


def _readable_leaves(root: str, text: str) -> _Leaves:
    """The leaves of JSON that was cut off, or that is nested too deep, up to where it can be read."""
    # Of each open object or list: its path, that without places in lists, and the next place (None in an object).
    open_: list[tuple[str, str, int | None]] = []
    key: str | None = None
    at = 0
    for found in _TOKEN.finditer(text):
        if text[at : found.start()].strip() or len(open_) > MOST_LEAVES * 4:
            return
        piece, at = found[0], found.end()
        if piece in "}]":
            if not open_:
                return
            open_.pop()
        elif piece == ",":
            key = None
            path, plain, place = open_[-1] if open_ else (root, root, None)
            if place is not None:
                open_[-1] = path, plain, place + 1
        elif piece == ":":
            continue
        elif piece not in "{[" and open_ and open_[-1][2] is None and key is None:
            key = _scalar(piece)
        else:
            path, plain = _place(open_[-1], key) if open_ else (root, root)
            key = None
            if piece in "{[":
                open_.append((path, plain, None if piece == "{" else 0))
            elif piece.startswith('"') or at < len(text):  # a number that was cut is another number
                yield path, plain, _scalar(piece)


def _place(inside: tuple[str, str, int | None], key: str | None) -> tuple[str, str]:
    path, plain, place = inside
    return (f"{path}.{key}", f"{plain}.{key}") if place is None else (f"{path}.{place}", plain)


def _scalar(token: str) -> str:
    if not token.startswith('"'):
        return token
    try:
        return str(json.loads(token, strict=False))
    except ValueError:
        return token[1:-1]
