"""Terms of the search index, computed here so that both databases index exactly the same.

A text is a sequence of lower-case sub-words: split at punctuation and, in identifiers, at camelCase (`ReadTimeoutError`
is `read timeout error`, `HTTPServer` is `http server`). An identifier with several parts also gives its joined runs
(`readtimeout`, `timeouterror` …), so that `timeouterror` finds it too. Text that looks like an id is not split.

A document contains, in this order: the words of the error's type (marked `^`, so that `message:` can exclude them),
then those of its message (so that `"KeyError: 'x'"` is a phrase), then, after TAIL, terms without a position: joined
runs, ids, names (`@queue=emails`), arguments by path (`@kwargs.customer.id=42`). Terms that are not words of a text
start with a mark, which no word does: `err*` finds words with that prefix, and not every `@error=`.

Limits, the same on both databases: the first 4,096 and last 1,024 characters of a message; the first 16,384 and last
49,152 of a stack; 100 characters of a word; 255 occurrences of one word; 32 values each of a job's positional and
keyword arguments, outer ones first: `customer.id` before the contents of a long list.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TypeAlias

from jobs_admin.core.redaction import PLACEHOLDER
from jobs_admin.core.text import representable

VERSION = 4  # of these rules: an index of another version is rebuilt

SEAM = "|"  # phrases do not cross it
TAIL = "||"  # terms after it have no position: they are in no phrase
_TYPE, _NAME = "^", "@"  # start of terms that are not words of a message
# Characters of terms besides letters and digits; an index must treat them as letters.
MARKS = "-._^~=!@/|"

HEAD_OF_MESSAGE, END_OF_MESSAGE = 4_096, 1_024  # characters
HEAD_OF_STACK, END_OF_STACK = 16_384, 49_152
LONGEST = 100  # characters of a term; a longer word is indexed by its start, a longer name also by its hash
MOST_PLACES = 255  # maximum positions of a word in a document in PostgreSQL …
MOST_IN_PLACE = 16_000  # … and maximum position 16,383
MOST_LEAVES = 32
_MOST_BRANCHES = 256  # of arguments, searched for leaves

# Columns of a failure that are indexed as names; `stack` is the id of its traceback, in digits.
NAMED = ("source", "queue", "task", "tenant", "release", "host", "worker")

_Scalar: TypeAlias = str | bool | None  # numbers keep their spelling in the text
_Json: TypeAlias = "dict[str, _Json] | list[_Json] | _Scalar"
_Leaves: TypeAlias = Iterator[tuple[str, str, _Scalar]]  # path, path without list indexes, value

# A run of letters and digits; a minus before a number belongs to it (`[Errno -2]`, but not `web-3`).
_RUN = re.compile(r"(?:(?<![\w-])-(?=\d))?[^\W_]+")
# The same in ASCII, at a third of the cost: without Unicode tables or lookbehind.
_RUN_OF_ASCII = re.compile(r"(?:(?<![\w-])-(?=\d))?[a-zA-Z0-9]+", re.ASCII)
_RUN_WITHOUT_MINUS = re.compile("[a-zA-Z0-9]+")
_PART = re.compile("[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+[0-9]*")
_CAPITAL = re.compile("[A-Z]")
_OTHER_ID = re.compile("(?:[0-9a-f]{2}-)?([0-9a-f]{32})(?:-[0-9a-f]{16}(?:-[0-9a-f]{1,2})?)?", re.I | re.A)
_MOST_PARTS = 12
_LONGEST_JOIN = 4  # maximum parts of a joined run, besides the run of all parts


def document(
    *,
    error_type: str,
    message: str,
    job_ids: list[str],
    names: dict[str, str],
    args: str,
    kwargs: str,
    other_ids: Sequence[str] = (),
) -> str:
    """Return the index document of a failure: its terms, separated by blanks.

    Linear in the (bounded) input; never raises.

    `job_ids`: of its first and latest run. `names`: NAMED and `stack` -> name, matched in full and case-sensitively; an
    empty name is ignored. `args`, `kwargs`: the display copy, JSON or not. `other_ids`: its ids in other tools, 32
    hex digits: its trace, its Sentry event. Text is `representable`.
    """
    of_type, joined_of_type = _words_of_type(error_type)
    words, joined = _read_ends(message, HEAD_OF_MESSAGE, END_OF_MESSAGE)
    placed = [*of_type, *words]
    tail = [TAIL, *joined_of_type]
    for one in joined:
        tail += (one, SEAM)
    tail += {name("job", job_id) for job_id in job_ids if job_id}
    tail += {name("id", one) for one in other_ids if one}
    if error_type:
        tail.append(name("error", error_type))
    tail += [name(field, value) for field, value in names.items() if value]
    if PLACEHOLDER in message:
        tail.append(HIDDEN_TEXT)
    tail += _arguments("args", args)
    tail += _arguments("kwargs", kwargs)
    return " ".join(_within_bounds(placed) + tail)


def stack_document(text: str) -> str:
    """Return the index document of a stack."""
    words, joined = _read_ends(text, HEAD_OF_STACK, END_OF_STACK)
    tail = [TAIL]
    for one in joined:
        tail += (one, SEAM)
    return " ".join(_within_bounds(words) + tail)


def places(text: str) -> dict[str, list[int]]:
    """Return term -> its positions in a document, from 1; none for terms after TAIL."""
    found: dict[str, list[int]] = {}
    placed, _, tail = text.partition(TAIL)
    # Only by blanks: a name may contain white space beyond ASCII.
    for place, term in enumerate(filter(None, placed.split(" ")), 1):
        if term != SEAM:
            found.setdefault(term, []).append(place)
    for term in tail.split(" "):
        if term and term != SEAM:
            found.setdefault(term, [])
    return found


# -- queries -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Phrase:
    """Consecutive terms; with `prefix`, the last one is only a prefix."""

    terms: tuple[str, ...]
    prefix: bool = False


HIDDEN_TEXT = "@message=!"  # part of the message is hidden


MOST_WORDS = 100  # of a phrase
_LONGEST_TYPE = 24  # words of a type that a phrase may start with


def phrases(text: str, *, prefix: bool = False) -> tuple[Phrase, ...]:
    """Return phrases of which a message or stack that contains `text` has one; () for a text without words.

    Only the first MOST_WORDS words are used.
    """
    words, _ = _read(text)
    if not words:
        return ()
    found = [Phrase(tuple(words[:MOST_WORDS]), prefix)]
    if len(words) > 1 and len(_runs(text)) == 1:
        found.append(Phrase((_cut("".join(words)),), prefix))
    return tuple(found)


def phrases_of_error(text: str, *, prefix: bool = False) -> tuple[Phrase, ...]:
    """Return the same for type and message as one text: a phrase may start in the type and continue in the message."""
    return tuple(
        Phrase((*(f"{_TYPE}{term}" for term in one.terms[:split]), *one.terms[split:]), prefix)
        for one in phrases(text, prefix=prefix)
        for split in range(min(len(one.terms), _LONGEST_TYPE) + 1)
    )


def has_more_words(text: str, most: int) -> bool:
    return len(_read(text)[0]) > most


def name(field: str, value: str) -> str:
    """Return the term of a full name, case-sensitive."""
    return f"{_NAME}{field}={_shortened(value)}"


def other_id(text: str) -> tuple[Phrase, ...]:
    """Return the phrase for an id of another tool, alone or in a `traceparent` or `sentry-trace`; () for other text."""
    found = _OTHER_ID.fullmatch(text)
    return (Phrase((name("id", found[1].lower()),)),) if found else ()


def name_begins(field: str, beginning: str) -> Phrase:
    """Return the phrase for names with this start; only the stored characters of a long name are compared."""
    return Phrase((f"{_NAME}{field}={_escaped(beginning)[:_LONGEST_NAME]}",), prefix=True)


def is_unabridged(beginning: str) -> bool:
    """Return whether the start of a name is short enough to be stored in full."""
    return len(_escaped(beginning)) <= _LONGEST_NAME


def argument(path: str, value: str, *, prefix: bool = False) -> Phrase:
    """Return the phrase for an argument at `path` (`args.0.tenant`, `kwargs.email`) that equals `value`, or starts
    with it.
    """
    if prefix:
        return Phrase((f"{_NAME}{_path(path)}={_escaped(value.casefold())[:_LONGEST_NAME]}",), prefix=True)
    return Phrase((f"{_NAME}{_path(path)}={_shortened(value.casefold())}",))


def hidden_argument(path: str) -> Phrase:
    """Return the phrase for an argument at `path` that was hidden before it left the worker."""
    return Phrase((f"{_NAME}{_path(path)}=!",))


def is_word_end(character: str) -> bool:
    """Return whether a word could continue after this character."""
    return bool(re.match(r"[^\W_]", unicodedata.normalize("NFKC", character)[-1:]))


# -- words ------------------------------------------------------------------------------------------------------


def _read(text: str) -> tuple[list[str], list[str]]:
    """Return the sub-words of a text in order, and the joined runs of its identifiers, each once."""
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
    """Return the runs of letters and digits; only ASCII letters keep their case."""
    if text.isascii():
        return (_RUN_OF_ASCII if "-" in text else _RUN_WITHOUT_MINUS).findall(text)
    # Normalised, so that composed and decomposed characters are equal.
    runs: list[str] = _RUN.findall(unicodedata.normalize("NFKC", text))
    return [run if run.isascii() else run.casefold() for run in runs]


@lru_cache(maxsize=20_000)
def _parts(run: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the parts of an identifier with capitals, and its joined runs."""
    run = run[: 4 * LONGEST]
    sign = "-" if run[0] == "-" else ""
    parts = _PART.findall(run)
    many = len(parts)
    # `9s6XKzkNRiz` is not an identifier.
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
    """Return `words` with a seam for each that PostgreSQL's index cannot store."""
    if len(words) <= MOST_PLACES:
        return words
    if len(words) > MOST_IN_PLACE:
        words = [*words[: MOST_IN_PLACE // 4], SEAM, *words[-MOST_IN_PLACE * 3 // 4 + 1 :]]
    if max(Counter(words).values()) <= MOST_PLACES:  # the usual case, counted without a Python loop
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
    """Return `value` in the characters of terms, case-sensitive and one-to-one."""
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
    """Return terms for the first leaves of a display copy, each by its path and by its path without list indexes."""
    found: dict[str, None] = {}
    for path, plain_path, value in _first(root, text):
        # Most values are distinct numbers or ids: cached, they would evict values that repeat.
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
    """Return the start of the terms of a path."""
    return f"{_NAME}{_path(path)}="


@lru_cache(maxsize=20_000)
def _encoded(value: _Scalar) -> str:
    shown = representable(value) if isinstance(value, str) else json.dumps(value)
    return "!" if PLACEHOLDER in shown else _shortened(shown.casefold())


def indexed_paths(root: str, text: str) -> frozenset[str]:
    """Return the paths (`kwargs.order.lines.0.sku`) of a display copy's indexed values."""
    return frozenset(path for path, _, _ in _first(root, text))


def _first(root: str, text: str) -> _Leaves:
    """Return the indexed leaves: outer ones first, in the order of the text."""
    if len(text) <= 2:  # "", [] or {}
        return iter(())
    try:
        leaves = _leaves(root, _AS_TEXT.decode(text))
    except (ValueError, RecursionError):
        readable = islice(_readable_leaves(root, text), MOST_LEAVES * 8)
        leaves = iter(sorted(readable, key=lambda leaf: leaf[0].count(".")))
    return islice(leaves, MOST_LEAVES)


# Numbers keep their spelling in the text.
_AS_TEXT = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)


def _leaves(root: str, value: _Json) -> _Leaves:
    """Yield leaves level by level. If a job consists of branches only, the first ones are read."""
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
    """Yield the leaves of JSON that is cut off or nested too deeply, as far as it can be parsed."""
    # For each open object or list: its path, its path without list indexes, and the next index (None for an object).
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
            elif piece.startswith('"') or at < len(text):  # a truncated number is a different number
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
