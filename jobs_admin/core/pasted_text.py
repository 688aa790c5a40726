"""Jobs and errors in text pasted from a log: job ids, and each error in the form of a message.

Used if a search for the text itself found nothing: a log line has more around its error, a traceback has its error in
the last line, and `repr` or JSON writes a line break as `\\n`. Results are only suggested, never searched instead.
Linear in the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

MOST_READ = 20_000  # characters at the start and at the end
_MOST_IDS, _MOST_ERRORS, _MOST_NAMED = 5, 5, 3
_LONGEST = 400  # characters of an error; the rest adds nothing

_UUID = re.compile(r"(?<![\w-])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?:-\d{1,4})?(?![\w-])")
# `Task shop.hooks.send[id] received`, `Hard time limit (300s) exceeded for shop.send[id]`, `shop.send[id]: text`
_BRACKETED = re.compile(
    r"(?:\b(?:[Tt]ask|for) (?P<task>[^\s\[\]]{1,255})|(?P<name>[\w.-]{1,255}\.\w{1,255}))\[(?P<id>[^\s\[\]]{4,255})\]"
)
# Date, level, logger … before a line's message.
_HEAD = re.compile(
    r"[^\n]{0,200}?\b(?:DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b(?:/[\w-]{1,60})?[\])]?[\s:|-]{0,10}"
)
_JOB = re.compile(r"(?:[Tt]ask )?[^\s\[\]]{1,255}\[[^\s\[\]]{4,255}\]:? ?(?:raised (?:un)?expected: |retry: )?")
_AGAIN = re.compile(r"Retry (?:in|at) [^\n]{1,60}?: (?=\S)")
_FRAME = re.compile(r'File "[^"\n]{1,1000}", line \d{1,9}(?:, in (?:<\w+>|[\w.]+))?')
# A new log line or another traceback: no error continues there.
_STOP = re.compile(
    r"\n\s*\n|\n\[?\d{4}-\d\d-\d\d[ T]|\n?Traceback \(most recent call last\)|\n[A-Z]+[:/]|During handling of the above"
    r"|The above exception was"
)
_NAME = re.compile(r"(?<![\w.])([A-Za-z_][\w.]{1,200})(?=\(|:\s|:?\Z)")
_ERROR_NAME = re.compile(r"(?:.*\.)?[A-Z]\w*[a-z]\w*\Z")
_LOWER_NAME = re.compile(r".*(?:error|timeout|exception)\Z")
_ESCAPE = re.compile(r"\\(?:[nrt]|\\n|[\"'/]|u00[0-7][0-9a-fA-F])")
_END_OF_STRING = re.compile(r'(?<!\\)"\s*(?:\}|,\s*")')


@dataclass(frozen=True, slots=True)
class Pasted:
    job_ids: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()  # most likely first
    tasks: tuple[str, ...] = ()  # next to a job's id


def read(text: str) -> Pasted:
    """Return the ids, errors and tasks in a pasted text. Errors are parts of the text, with escapes resolved."""
    if len(text) > 2 * MOST_READ:
        text = f"{text[:MOST_READ]}\n\n{text[-MOST_READ:]}"
    named = list(_BRACKETED.finditer(text))
    tasks = dict.fromkeys(found["task"] or found["name"] for found in named)
    ids = [found["id"] for found in named] + [found[0] for found in _UUID.finditer(text)]
    errors: dict[str, None] = {}
    for block in _blocks(text):
        for error in islice(_errors(block), _MOST_ERRORS):
            line = " ".join(error.split())[:_LONGEST]
            if line and line != " ".join(text.split()):
                errors[line] = None
    return Pasted(tuple(dict.fromkeys(ids))[:_MOST_IDS], tuple(errors)[:_MOST_ERRORS], tuple(tasks)[:_MOST_NAMED])


def error_name(error: str) -> str:
    """Return the class at the start of an error; "" if there is none."""
    found = _NAME.match(error)
    return found[1] if found and _is_error(found[1], error[found.end() : found.end() + 1]) else ""


# -- parts of a text ------------------------------------------------------------------------------------------------


def _blocks(text: str) -> Iterator[str]:
    """Yield the text with escapes resolved; for JSON lines, their string values, those with a traceback first."""
    values = [value for line in text.strip().splitlines()[:20] for value in _texts_in_json(line)]
    yield from sorted(values, key=lambda value: "Traceback" not in value)[:_MOST_ERRORS]
    if values:
        return
    is_json = text.lstrip().startswith("{")
    yield _unescaped(_END_OF_STRING.split(text[_first_error(text) :], maxsplit=1)[0] if is_json else text)


def _first_error(text: str) -> int:
    """Return where the traceback starts in truncated JSON."""
    return max(text.find("Traceback (most"), 0)


def _texts_in_json(line: str) -> list[str]:
    start = line.find("{")
    if start < 0 or not line.rstrip().endswith("}"):
        return []
    try:
        waiting = [json.loads(line[start:])]
    except (ValueError, RecursionError):
        return []
    texts: list[str] = []
    while waiting and len(texts) < 100:
        value = waiting.pop(0)
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str) and (" " in value.strip() or _ERROR_NAME.match(value)):
            texts.append(_unescaped(value))
    return texts


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text) if "\\" in text else text


def _character(found: re.Match[str]) -> str:
    escape = found[0][-1] if found[0][1] in "\"'/" else " "
    return chr(int(found[0][2:], 16)) if found[0][1] == "u" else "\n" if found[0][-1] in "nr" else escape


def _errors(block: str) -> Iterator[str]:
    """Yield parts of a block that may be its error."""
    frames = list(_FRAME.finditer(block))
    if frames:
        yield from _after(block[frames[-1].end() :])
    line = _STOP.split(block[: frames[0].start()] if frames else block, maxsplit=1)[0]
    head = _HEAD.match(line)
    rest = line[head.end() :] if head else line
    job = _JOB.search(rest[:1_000])
    words = rest[job.end() :] if job else rest
    again = _AGAIN.match(words)
    words = words[again.end() :] if again else words
    for name in islice(_find_error_names(words), _MOST_NAMED):
        yield words[name:]
    yield words
    if head and ": " in words:
        yield words.rpartition(": ")[2]


def _after(last: str) -> Iterator[str]:
    """Yield the error below the last frame: all lines, and the first line alone."""
    lines = last.split("\n")
    # A frame's code follows it, indented; the error is not indented.
    below = [n for n, line in enumerate(lines) if n and line.strip() and not line[0].isspace()]
    if below:
        error = _STOP.split("\n".join(lines[below[0] :]), maxsplit=1)[0]
    else:
        # Line breaks were joined: several blanks separate code, one blank the error.
        error = next((last[at:] for at in _find_error_names(last)), last.split("  ")[-1])
    yield error
    yield error.partition("\n")[0]


def _find_error_names(text: str) -> Iterator[int]:
    """Yield the positions of error names that are followed by a message."""
    for found in _NAME.finditer(text):
        if _is_error(found[1], text[found.end() : found.end() + 1]):
            yield found.start()


def _is_error(name: str, follows: str) -> bool:
    lower = bool(_LOWER_NAME.match(name)) and ("." in name or follows == "(")
    return lower or bool(_ERROR_NAME.match(name))
