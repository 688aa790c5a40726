"""Secrets named at a distance in a text: by the columns of a statement, or by the field that a message is about.

`Key (api_token)=(…)`, `INSERT INTO t (login, password) VALUES (…)` with its parameters, `password … input_value='…'`. Everything
is read once: no find looks back beyond the one before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from jobs_admin.core.secret_looks import PLACEHOLDER
from jobs_admin.core.secret_names import is_secret_name

_COLUMNS = re.compile(
    r"""(?i)\(([^()]{0,4000}(?:\([^()]{0,200}\)[^()]{0,400}){0,10})\)\s{0,5}(?:=\s{0,5}|(?:[\w ]{0,60}\s)?values?\s{0,5})(?=\()"""
)
# MySQL names the index behind the value.
_DUPLICATE = re.compile(r"""Duplicate entry '([^'\n]{3,500})' for key '([\w.`-]{1,200})'""")
_NEXT_ROW = re.compile(r"\s{0,5},\s{0,5}(?=\()")
_MARKS = re.compile(r"""\\.|'(?:[^'\\]|\\.|'')*(?:'|\Z)|"(?:[^"\\]|\\.|"")*(?:"|\Z)|[\[({\])},]""", re.DOTALL)
_STATEMENT = re.compile(
    r"(?i)\[SQL:|\b(?:insert into|replace into|merge into|delete from|(?<!key )(?<!do )(?<!for )update)\s"
)
_SLOT = re.compile(r"%s|\?(?![\w&])|[$:](\d{1,5})\b")
_PARAMETERS = re.compile(
    r"""(?i)\b(?:params?|parameters|args|arguments|bind(?:s|ings)?)["']?\s{0,2}[:=]\s{0,2}(?=[\[($])"""
)
_COMPARED = re.compile(r"""(?i)([\w.]{1,100})["`\]]?\s{0,3}(?:=|<>|!=|\blike\b|\bilike\b)\s{0,3}\Z""")
_NUMBERED = re.compile(r"""\$(\d{1,5})\s{0,2}=\s{0,2}('(?:[^']|'')*'|[^\s,]+)""")
_NOTHING = re.compile(r"(?i)\s*(?:null|default|now\(\)|\?|%s|%\(\w+\)s|[$:@]\w+)?(?:::\w+)?\s*\Z")

_LABEL = re.compile(
    r"""(?ix) (?<![\w-]) (?: input_value | value | val | default | content | input | received | actual | given | got )
        (?: ["']? \s{0,3} [=:] \s{0,3} | > | [ ] (?= ["'\[] ) ) (?= [^\s{(] )
    | (?<= ["'] ) > (?= [^\s<] )"""
)
# Where a message says of which field it speaks.
_FIELD = re.compile(
    r"""(?mix) ^ [ \t-]{0,40} ([\w.-]{2,200}) [ \t]* \r?$
    | (?<![\w-]) (?: loc | name | key | field | path | param | parameter | property | attribute | column | variable | header )
      \\{0,3} ["']? \s{0,3} [:=]? \s{0,3} (?= [\[(\\"':=\s\w] ) [\[(]?
      ( (?<= [\[(] ) [^\])\n={}<>]{1,200} | \\{0,3} ["'] [^\])\n={}<>]{1,200}? (?= ["'] \\{0,3} [\s\])},:;/>] | ["'] \Z )
      | (?<= [:=] ) [\w.-]{2,100} | (?<= [:=] [ ] ) [\w.-]{2,100} )"""
)
_VALUE = re.compile(r"""\[?[bru]{0,2}(?:'((?:[^'\\\n]|\\.)*)'?|"((?:[^"\\\n]|\\.)*)"?|([^\s,;"'<>\]})]+))""")
# A Secret of Kubernetes: all that is under its data.
_MANIFEST = re.compile(r"""(?<!\w)kind\\{0,7}["']?:\s{0,3}\\{0,7}["']?Secret(?!\w)""")
_DATA = re.compile(r"""(?<!\w)(?:stringData|data)\\{0,7}["']?:""")
_ENTRY = re.compile(
    r"""(?:\s{0,3}[,{]\s{0,40}|[ \t]{0,3}(?:\n|\\n)[ \t]{1,40})\\{0,7}["']?[\w.-]{1,253}\\{0,7}["']?:[ \t]{1,3}"""
    r"""(\\{0,7}["'][^"'\n]*["']|[^\s,}"'\\]+)"""
)
_NEAR = 250  # characters between a field and its value
_NAME = re.compile(r"[\w-]+")


def without_columns(text: str) -> tuple[str, int]:
    """`text` without the values of secret columns and fields, and how many were hidden."""
    lower = text.lower()
    spans: list[tuple[int, int]] = []
    if ")=(" in text or "value" in lower or ") = (" in text:
        for start, end, hides in _rows(text):
            if hides and not _NOTHING.match(text[start:end]):
                spans.append((start, end))
    if ("param" in lower or "arg" in lower or "bind" in lower) and _SLOT.search(text):
        spans += _parameters(text)
    if "Duplicate entry '" in text:
        spans += [
            found.span(1) for found in _DUPLICATE.finditer(text) if any(map(is_secret_name, _NAME.findall(found[2])))
        ]
    if "Secret" in text and _MANIFEST.search(text):
        spans += _data(text)
    spans += _labelled(text)
    if not spans:
        return text, 0
    parts, at, hidden = [], 0, 0
    for start, end in sorted(spans):
        if start < at or text[start:end] == PLACEHOLDER:
            continue
        parts += [text[at:start], PLACEHOLDER]
        at, hidden = end, hidden + 1
    return "".join([*parts, text[at:]]), hidden


def _rows(text: str) -> Iterator[tuple[int, int, bool]]:
    """Where each value of a list of columns begins and ends, and whether its column is secret. Each list is read once."""
    at = 0
    for found in _COLUMNS.finditer(text):
        secret = [any(map(is_secret_name, _NAME.findall(column))) for column in found[1].split(",")]
        if found.start() < at or True not in secret:
            continue
        at, more = found.end(), True
        while more:
            items, at = _items(text, at)
            if len(items) == len(secret):
                for (start, end), hides in zip(items, secret, strict=True):
                    yield start, end, hides
            elif items:  # a value with a comma of its own, or a list that was cut
                yield items[0][0], items[-1][1], True
            further = _NEXT_ROW.match(text, at)
            more = further is not None
            at = further.end() if further else at


def _parameters(text: str) -> Iterator[tuple[int, int]]:
    """The values that a statement before them binds to secret columns by their places."""
    at = 0
    for found in _PARAMETERS.finditer(text):
        if found.start() < at:
            continue  # within the list before it
        secret = _secret_slots(text[max(at, found.start() - 20_000) : found.start()])
        at = found.end()
        if not secret:
            continue
        if text[at] == "$":
            for bound in _NUMBERED.finditer(text, at, at + 20_000):
                if int(bound[1]) - 1 in secret:
                    yield bound.span(2)
            continue
        items, at = _items(text, at)
        rows = [_items(text, start)[0] for start, _ in items if text[start] in "[("]
        for row in rows or [items]:
            yield from _shown(text, (item for n, item in enumerate(row) if n in secret))


def _secret_slots(statement: str) -> set[int]:
    """The places (from 0) of the parameters that belong to secret columns, in the last statement of a text."""
    start = 0
    for begins in _STATEMENT.finditer(statement):
        start = begins.start()
    statement = statement[start:]
    columns = iter([span for span in _rows(statement) if span[2]])
    secret = set()
    start, end, hides = next(columns, (-1, -1, False))
    for n, slot in enumerate(_SLOT.finditer(statement)):
        while 0 <= end <= slot.start():
            start, end, hides = next(columns, (-1, -1, False))
        compared = _COMPARED.search(statement, max(0, slot.start() - 120), slot.start())
        if (hides and start <= slot.start()) or (compared and is_secret_name(compared[1].rpartition(".")[2])):
            secret.add(int(slot[1]) - 1 if slot[1] else n)
    return secret


def _items(text: str, at: int) -> tuple[list[tuple[int, int]], int]:
    """Where each item of the list that opens at `at` begins and ends, and where the list ends: with the text if it was cut."""
    items, depth, start = [], 0, at + 1
    for mark in _MARKS.finditer(text, at):
        if mark[0] in "[({" and len(mark[0]) == 1:
            depth += 1
        elif (mark[0] == "," and depth == 1) or (mark[0] in "])}" and depth == 1):
            items.append((start, mark.start()))
            start = mark.end()
            if mark[0] != ",":
                return _trimmed(text, items), mark.end()
        elif mark[0] in "])}":
            depth -= 1
    items.append((start, len(text)))
    return _trimmed(text, items), len(text)


def _trimmed(text: str, items: list[tuple[int, int]]) -> list[tuple[int, int]]:
    trimmed = []
    for start, end in items:
        inner = text[start:end]
        start += len(inner) - len(inner.lstrip())
        if inner.strip():
            trimmed.append((start, start + len(inner.strip())))
    return trimmed


def _shown(text: str, items: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Those that tell something."""
    return ((start, end) for start, end in items if not _NOTHING.match(text[start:end]))


def _data(text: str) -> Iterator[tuple[int, int]]:
    at = 0
    for found in _DATA.finditer(text):
        if found.start() < at:
            continue
        at = found.end()
        while entry := _ENTRY.match(text, at):
            yield entry.span(1)
            at = entry.end()


def _labelled(text: str) -> Iterator[tuple[int, int]]:
    """Values behind a label, of a field that is named before it: `password\\n  … [input_value='…'`, `<add key="pw" value="…">`."""
    before = 0
    for label in _LABEL.finditer(text):
        start = max(before, label.start() - _NEAR)
        before = label.end()
        record = max(text.rfind("}", start, label.start()), text.rfind("{", start, label.start()), start - 1) + 1
        named = ""
        for found in _FIELD.finditer(text, record, label.start()):
            if found[2] or label[0].startswith("input_value"):
                named = found[1] or found[2]
        if not any(is_secret_name(part) for part in _NAME.findall(named)):
            continue
        value = _VALUE.match(text, label.end())
        if value and value.lastindex and value.end(value.lastindex) - value.start(value.lastindex) >= 3:
            yield value.span(value.lastindex)
