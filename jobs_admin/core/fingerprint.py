"""What makes two errors the same: the type, the path through the application, the message without what varies.

Neither the task nor the source counts, nor line numbers, nor the frames of libraries: the same break seen from two
queues, or after a deployment that moved a line, is one group. The value names the version of these rules; when they
change, `v2-` values begin and an alias keeps the old links (table GroupAlias).
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import lru_cache

VERSION = "v1"

# What is looked at. A trace is cut from its head: the error's own frames stand at its end.
_MOST_TRACE = 64 * 1024
_MOST_MESSAGE = 4096


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: int
    function: str
    code: str  # the source line; "" where it is not known
    is_application: bool  # False: of the standard library or an installed package


@dataclass(frozen=True, slots=True)
class Fingerprint:
    value: str  # `v1-…`
    title_message: str  # the normalised message, in one line of at most 500 characters
    culprit: str  # the innermost application frame, `shop/tasks.py in charge`; "" where there is none


def fingerprint(error_type: str, message: str, trace: str) -> Fingerprint:
    """The same value for errors that are one problem. Never raises; time is linear in the (bounded) input."""
    # In these, quoted words are names in code (`has no attribute 'total'`), and two names are two problems.
    keep_names = error_type.rpartition(".")[2] in _QUOTES_NAMES
    plain = normalise(message, keep_names=keep_names)
    path = _path(stack(trace, message))
    parts = [error_type, path.causes, path.frames, plain[:1000]]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return Fingerprint(f"{VERSION}-{digest[:24]}", plain[:500], path.culprit)


# -- the message ------------------------------------------------------------------------------------------------

_QUOTES_NAMES = {
    "AttributeError",
    "ImportError",
    "KeyError",
    "ModuleNotFoundError",
    "NameError",
    "TypeError",
    "UnboundLocalError",
}

# The first that matches at a place wins; its name becomes the placeholder: `order 17` -> `order <number>`.
# Each repetition is bounded or begins only where a word begins, so that the whole stays linear.
_PATTERNS = {
    # Numbers that say which error it is stay.
    "kept": r"\[Errno -?\d{1,6}\]|(?i:\b(?:http|status(?:[ _]code)?|sqlstate|exit code|signal)[ :=]{1,2}\d{1,5}\b)",
    "url": r"\b[a-zA-Z][a-zA-Z0-9+.]{1,15}://[^\s'\"<>]{1,2000}",
    "email": r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}",
    "time": (
        r"(?<!\d)\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?: ?Z|[+-]\d\d:?\d\d)?)?(?!\d)"
        r"|(?<!\d)\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?!\d)"
        r"|\b[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d(?: GMT| [+-]\d{4})?"
    ),
    "uuid": r"(?<!\w)[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?!\w)",
    "ip": (
        r"(?<![\w.])\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?::\d{1,5})?(?!\w|\.\d)"
        r"|(?<![\w:])(?:[0-9a-fA-F]{1,4}:){3,7}(?::|[0-9a-fA-F]{1,4})(?![\w:])"
        r"|(?<![\w:])(?:[0-9a-fA-F]{1,4}:){1,6}(?::[0-9a-fA-F]{1,4}){1,6}(?![\w:])"
    ),
    "path": (
        r"(?<![\w/.~])~?(?:/[\w.@+%=-]{1,255}){2,64}/?(?![\w/])"
        r"|(?<!\w)[A-Za-z]:(?:\\[^\\/:*?\"<>|\r\n']{1,255}){1,64}"
    ),
    "quoted": r"(?<!\w)'[^'\n]{0,500}'(?!\w)|\"[^\"\n]{0,500}\"|`[^`\n]{0,500}`",
    "hex": r"\b0[xX][0-9a-fA-F]{1,64}\b|\b(?=[a-fA-F]{0,64}\d)(?=\d{0,64}[a-fA-F])[0-9a-fA-F]{8,128}\b",
    # A token of letters between digits (`cus_9s6XKzkNRiz`); `customer_17` is a word and a number.
    "id": r"(?<!\w)(?=[A-Za-z_]{0,64}\d{1,64}[A-Za-z])\w{8,200}(?!\w)",
    "number": r"(?:(?<![\w)\]>.-])-)?\d{1,400}(?:[.,]\d{1,400}){0,9}(?:[eE][+-]?\d{1,4}\b)?",
}
_VARIABLE = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _PATTERNS.items()))
_REPEATED = re.compile(r"(<[a-z]{2,6}>)(?:,? ?\1)+")
_NAME_IN_QUOTES = re.compile(r"['\"`][A-Za-z_][A-Za-z_.]{0,100}['\"`]\Z")
_SEGMENT_VARIES = re.compile(r"\d|.{25}|%")


def normalise(message: str, *, keep_names: bool = False) -> str:
    """The message in one line, with every variable part as `<number>`, `<uuid>`, `<url>` … in its place.

    `keep_names`: quoted words that could be names in code stay.
    """

    def placeholder(found: re.Match[str]) -> str:
        name = found.lastgroup or ""
        text = found[0]
        if name == "kept" or (keep_names and name == "quoted" and _NAME_IN_QUOTES.match(text)):
            return text
        return _without_ids(text) if name == "url" else f"<{name}>"

    # A list of three ids is the same as a list of two.
    plain = _REPEATED.sub(r"\1", _VARIABLE.sub(placeholder, message[:_MOST_MESSAGE]))
    return " ".join(plain.split())


def _without_ids(url: str) -> str:
    """`https://api.example.com/v1/orders/17?x=1` -> `https://api.example.com/v1/orders/<id>`."""
    scheme, _, rest = url.partition("://")
    where = re.split(r"[?#]", rest, maxsplit=1)[0].rstrip(".,;:)]}")
    host, *segments = where.split("/")
    host = re.sub(r"\d{1,3}(?:\.\d{1,3}){3}|\d+|\[.*\]", "<number>", host.rpartition("@")[2])
    varies = [s if s in _VERSIONS or not _SEGMENT_VARIES.search(s) else "<id>" for s in segments]
    return f"{scheme}://{'/'.join([host, *varies])}"


_VERSIONS = {f"v{n}" for n in range(10)}


# -- the trace --------------------------------------------------------------------------------------------------

_FRAME = re.compile(r'[ |+-]*File "([^"\n]{1,1000})", line (\d{1,9}), in (.{1,300})')
_TYPE = re.compile(r"([A-Za-z_][\w.]{0,200})(?::|\Z)")
_LIBRARY = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages)/|/lib(?:64)?/(?:python|pypy)\d|/python\d*/lib/|^<|jobs_admin/worker/"
)
_BETWEEN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)


def frames(trace: str) -> list[Frame]:
    """The frames of a Python traceback, outermost first, causes before what they led to. Empty for other text."""
    return [frame for _, part in _parts(trace) for frame in part]


def stack(trace: str, message: str) -> str:
    """The trace without the message at its end, where that only repeats `message`.

    Ten thousand jobs that failed at one place then share one stack, although each message has its own id.
    """
    place = trace.rfind('\n  File "')
    if place < 0:
        return trace
    lines = trace[place + 1 :].split("\n")
    inside = 1
    while inside < len(lines) and lines[inside].startswith(" "):
        inside += 1
    last_words = "\n".join(lines[inside:])
    error, _, said = last_words.partition(": ")
    if not said or said.strip() != message.strip():
        return trace
    return f"{trace[: len(trace) - len(last_words)]}{error}\n"


@dataclass(frozen=True, slots=True)
class _Path:
    frames: tuple[str, ...]
    causes: tuple[str, ...]
    culprit: str


@lru_cache(maxsize=512)
def _path(trace: str) -> _Path:
    """What of a trace counts: where the last exception went through the application, and the types that caused it."""
    parts = _parts(trace)
    if not parts:
        return _Path((), (), "")
    own = parts[-1][1]
    application = [_place(f) for f in own if f.is_application]
    # Without a frame of the application, the innermost place in a library is better than none.
    counted = application or [_place(f) for f in own[-1:]]
    causes = tuple(error for error, _ in parts[:-1] if error)
    # In order, each once: the depth of a recursion does not count.
    return _Path(tuple(dict.fromkeys(counted)), causes, (application or [""])[-1][:255])


def _place(frame: Frame) -> str:
    # The last two names of the path: what stands before them differs between machines and releases.
    names = frame.file.replace("\\", "/").split("/")[-2:]
    if len(names) == 2:
        names[0] = re.sub(r"\d+|[0-9a-f]{7,}", "<number>", names[0])
    return f"{'/'.join(names)} in {frame.function}"


def _parts(trace: str) -> list[tuple[str, list[Frame]]]:
    """For each exception of a chain, the first cause first: its type (as printed) and its frames."""
    found: list[tuple[str, list[Frame]]] = []
    error, own = "", list[Frame]()
    lines = trace[-_MOST_TRACE:].split("\n")
    for n, line in enumerate(lines):
        if 'File "' in line and (frame := _FRAME.match(line)):
            file, number, function = frame.groups()
            after = lines[n + 1].lstrip(" |") if n + 1 < len(lines) and lines[n + 1][:1] == " " else ""
            code = "" if after.startswith('File "') else after.strip()
            is_library = _LIBRARY.search(file.replace("\\", "/").lower()) is not None
            own.append(Frame(file, int(number), function.strip(), code, not is_library))
            error = ""
        elif line in _BETWEEN:
            found.append((error, own))
            error, own = "", []
        elif own and not error and line[:1] not in {" ", ""} and (kind := _TYPE.match(line)):
            error = kind[1]
    if own or error:
        found.append((error, own))
    return found
