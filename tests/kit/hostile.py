"""Jobs whose errors, arguments, headers and names are made to do harm, and the worker that runs them.

    worker = HostileWorker(broker_url, store_url).start()
    worker.send("h.repr_raises")

As a module it is the app of `tests.kit.celery` with these tasks besides: `celery -A tests.kit.hostile worker`.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.exceptions import Reject, Retry

from tests.kit import celery
from tests.kit.celery import RealWorker

MB = 1_000_000
MARKER = "was-executed"  # in the worker's folder, where anything that must not run would leave it
BIDI = "a\u202eb\u2066c\u200f d\ufeff \x1b[31mred\x1b[0m \x07 \x9b2J"
ODD_TEXT = "a\x00b \ud800 " + BIDI + " </script><img src=x onerror=alert(1)>\"' password=hunter2hunter2"
NAME = "<b>w\"'&</b>"  # of the worker


def touch() -> None:
    """The effect that a pickle would have if it were opened."""
    Path(os.environ.get("REAL_MARKS", "/nonexistent"), MARKER).touch()


class ReprRaises(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class StrRaises(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class StrSleeps(Exception):
    seconds = 0.3

    def __str__(self) -> str:
        time.sleep(self.seconds)
        return "slept"

    __repr__ = __str__


class StrHuge(Exception):
    """Celery itself asks for both, in the child."""

    size = 20 * MB

    def __str__(self) -> str:
        return "x" * self.size

    __repr__ = __str__


class StrIsNoText(Exception):
    def __str__(self) -> Any:
        return 5


class ExitsWhenRead(Exception):
    def __str__(self) -> str:
        raise SystemExit(7)


class ArgumentsRaise(Exception):
    @property
    def args(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no arguments")


class ClassRaises(Exception):
    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class ClassIsRetry(Exception):
    """Says that it is Celery's own, and has nothing of what that has."""

    @property
    def __class__(self) -> Any:
        return Retry


class GetattrRaises(Exception):
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class GetattributeRaises(Exception):
    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return super().__getattribute__(name)
        raise RuntimeError(name)


class ReduceRaises(Exception):
    def __reduce__(self) -> Any:
        raise RuntimeError("no pickle")


class ReduceHuge(Exception):
    def __reduce__(self) -> Any:
        return type(self), (), {"state": "s" * 10 * MB}


class TextOfItsOwn(str):
    """A text that does not answer as one."""

    def __len__(self) -> int:
        return -1 if sys.flags.dev_mode else 10**9

    def __getitem__(self, at: Any) -> Any:
        raise RuntimeError("no letters")

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __hash__ = startswith = __str__  # type: ignore[assignment]


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in {"__qualname__", "__module__", "__name__"}:
            raise RuntimeError("no name")
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=Meta):
    pass


class ModuleIsANumber(Exception):
    __module__ = 5  # type: ignore[assignment]


class Chained(Exception):
    pass


class WithRetryAfter(Exception):
    """Carries what it was made with as its wish to be tried later."""

    def __init__(self, wish: Any) -> None:
        super().__init__("too many requests")
        self.retry_after = wish


class RetryAfterRaises(Exception):
    @property
    def retry_after(self) -> Any:
        raise RuntimeError("no wish")


class RetryAfterSleeps(Exception):
    seconds = 5

    @property
    def retry_after(self) -> Any:
        time.sleep(self.seconds)
        return 1


class Endless:
    """Headers that never end."""

    def items(self) -> Any:
        while True:
            yield "X-More", "1"


class Answered(Exception):
    def __init__(self, headers: Any) -> None:
        super().__init__("it answered 429")
        self.response = SimpleNamespace(headers=headers)


def _cyclic() -> Any:
    turning: list[Any] = ["password=hunter2hunter2"]
    turning.append({"again": turning})
    return turning


def _chain(length: int) -> BaseException:
    error: BaseException = Chained("the first")
    for n in range(length):
        after = Chained(f"link {n}")
        after.__cause__ = error
        error = after
    return error


def _group(depth: int) -> BaseException:
    error: Exception = Chained("inmost")
    for n in range(depth):
        error = ExceptionGroup(f"level {n}", [error, Chained("beside")])  # noqa: F821  (Python 3.11)
    return error


def _one(depth: int) -> None:
    if depth == 0:
        raise Chained("at the bottom")
    _other(depth - 1)


def _other(depth: int) -> None:
    _one(depth - 1)  # in turn, or Python would tell of the frames as repeated


def _deep_stack() -> None:
    sys.setrecursionlimit(12_000)
    try:
        _one(5_000)
    finally:
        sys.setrecursionlimit(1_000)


def _error_with_notes() -> BaseException:
    error = Chained("with notes")
    error.add_note("n" * MB)
    error.__notes__.append(StrRaises())  # type: ignore[arg-type]
    return error


def _long_source() -> None:
    """A line of source of a megabyte, as generated code has it."""
    name = f"<made {'m' * 100}>"
    text = f"raise ValueError('{'v' * MB}')"
    import linecache

    linecache.cache[name] = (len(text), None, [text], name)
    exec(compile(text, name, "exec"), {})


def _raising(error: Any) -> Any:
    def act() -> None:
        raise error() if callable(error) else error

    return act


# What a job does, by name. Of those in IN_CHILDREN_ALONE a pool of threads is not asked.
ACTS: dict[str, Any] = {
    "cyclic": _raising(lambda: ValueError(_cyclic())),
    "cyclic_itself": _raising(lambda: _holding_itself()),
    "repr_raises": _raising(ReprRaises),
    "str_raises": _raising(StrRaises),
    "str_sleeps": _raising(StrSleeps),
    "str_huge": _raising(StrHuge),
    "str_is_no_text": _raising(StrIsNoText),
    "arguments_raise": _raising(ArgumentsRaise),
    "arguments_repr_raises": _raising(lambda: ValueError(ReprRaises())),
    "class_lies": _raising(ClassRaises),
    "class_is_retry": _raising(ClassIsRetry),
    "getattr_raises": _raising(GetattrRaises),
    "getattribute_raises": _raising(GetattributeRaises),
    "reduce_raises": _raising(ReduceRaises),
    "reduce_huge": _raising(ReduceHuge),
    "text_of_its_own": _raising(lambda: ValueError(TextOfItsOwn("x"))),
    "nameless": _raising(Nameless),
    "module_is_a_number": _raising(ModuleIsANumber),
    "newline_in_name": _raising(lambda: type("A\nB: x<b>\u202e", (Exception,), {})("made by hand")),
    "long_name": _raising(lambda: type("N" * 100_000, (Exception,), {})("made by hand")),
    "chained": _raising(lambda: _chain(10_000)),
    "chained_to_unprintable": _raising(lambda: _from(StrRaises())),
    "grouped": _raising(lambda: _group(500)),
    "deep_stack": _deep_stack,
    "noted": _raising(_error_with_notes),
    "long_source": _long_source,
    "long_message": _raising(lambda: ValueError("m" * 20 * MB)),
    "many_lines": _raising(lambda: ValueError("\n".join(["Traceback (most recent call last):"] * 100_000))),
    "odd_text": _raising(lambda: ValueError(ODD_TEXT)),
    "like_a_trace": _raising(lambda: ValueError('\n  File "x", line 1, in y\nceleryRetry: \n' * 1000)),
    "long_number": _raising(lambda: ValueError(10**5_000)),
    "undecodable": _raising(lambda: UnicodeDecodeError("utf-8", b"\xff" * 10 * MB, 0, 1, "password=hunter2hunter2")),
    "syntax": _raising(lambda: SyntaxError("bad", ("f\x00\n", 10**9, -5, "t" * MB))),
    "missing": _raising(lambda: KeyError(_cyclic()[1].keys())),
    "retry_nan": _raising(lambda: Retry("by hand", when=math.nan)),
    "retry_infinite": _raising(lambda: Retry("by hand", when=math.inf)),
    "retry_far": _raising(lambda: Retry("by hand", when=datetime.max)),
    "retry_huge": _raising(lambda: Retry("by hand", when=10**400)),
    "reject_huge": _raising(lambda: Reject("r" * MB)),
    "limit_by_hand": _raising(lambda: TimeLimitExceeded("l" * MB, _cyclic())),
    "lost_by_hand": _raising(lambda: WorkerLostError("w" * MB)),
    "out_by_hand": _raising(lambda: SystemExit("e" * MB)),
    "exits_when_read": _raising(ExitsWhenRead),
    # Under a policy, which asks the error when it would like to be tried again
    "asks_raises": _raising(RetryAfterRaises),
    "asks_sleeps": _raising(RetryAfterSleeps),
    "asks_nan": _raising(lambda: WithRetryAfter(math.nan)),
    "asks_infinite": _raising(lambda: WithRetryAfter(-math.inf)),
    "asks_huge": _raising(lambda: WithRetryAfter(10**5_000)),
    "asks_long": _raising(lambda: WithRetryAfter("9" * 10 * MB)),
    "asks_odd": _raising(lambda: WithRetryAfter(ODD_TEXT)),
    "asks_itself": _raising(lambda: WithRetryAfter(StrRaises())),
    "asks_text_of_its_own": _raising(lambda: WithRetryAfter(TextOfItsOwn("5"))),
    "headers_endless": _raising(lambda: Answered(Endless())),
    "headers_odd": _raising(lambda: Answered({b"Retry-After": b"1", 5: 6, "Retry-After": _cyclic()})),
    "headers_are_a_number": _raising(lambda: Answered(5)),
    "headers_raise": _raising(lambda: Answered(GetattributeRaises())),
}
IN_CHILDREN_ALONE = frozenset({"out_by_hand", "exits_when_read"})


def deep(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def build_messages() -> dict[str, dict[str, Any]]:
    """Return the jobs whose message is what does the harm, as a producer would send them: arguments, and what else the message says."""
    return {
        "10 MB of text": {"args": ["a" * 10 * MB]},
        "10 MB of numbers": {"args": [list(range(1_400_000))]},
        "a million names": {"kwargs": {"many": {str(n): n for n in range(300_000)}}},
        "deep": {"args": [deep(400)]},
        "numbers without a value": {"args": [float("nan"), float("inf"), -float("inf"), 1e308, 10**4_000]},
        "odd text": {"args": [ODD_TEXT], "kwargs": {"note": ODD_TEXT, ODD_TEXT: 1, "": "", "__proto__": {"a": 1}}},
        "secret that is cut": {"kwargs": {"note": "x" * 7_990 + " password=hunter2hunter2"}},
        "headers of a megabyte": {"headers": {"x-large": "h" * MB}},
        "many headers": {"headers": {f"x-{n}": n for n in range(20_000)}},
        "odd headers": {"headers": {"x-list": [1, {"a": None}], "x-none": None, "": 0, ODD_TEXT: ODD_TEXT, "x-deep": deep(200)}},
        "our own header": {"headers": {"redrive": {"queue": 5, "job_id": {}, "run": float("inf"), "item": "x"}}},
        "a header of ours that is a text": {"headers": {"redrive": "x" * MB}},
        "a wait without end": {"headers": {"redrive_waited": float("nan")}},
        "retries without number": {"headers": {"retries": float("inf")}, "is_refused": True},
        "a long shadow": {"shadow": "s" * 100_000},
        "a long priority": {"priority": 10**30, "is_refused": True},
    }  # fmt: skip


def _holding_itself() -> BaseException:
    error = Chained("holds itself")
    error.args = (error, [error])
    return error


def _from(cause: BaseException) -> BaseException:
    error = ValueError("because")
    error.__cause__, error.__context__ = cause, error
    return error


def define(app: Any) -> None:
    for name, act in ACTS.items():

        def run(*args: Any, _act: Any = act, **kwargs: Any) -> None:
            _act()

        app.task(name=f"h.{name}", shared=False)(run)
    task = partial(app.task, shared=False)

    @task(name="h.plain")
    def plain(*args: Any, **kwargs: Any) -> None:
        raise ValueError("plain")

    @task(name="h." + "n" * 65_536)
    def long_name() -> None:
        raise ValueError("by a long name")

    @task(name="h.<b>\n\x00\u202e</b>")
    def odd_name() -> None:
        raise ValueError("by an odd name")

    @task(name="tells")
    def raise_chained(*args: Any, text: str = "", because: str = "", **kwargs: Any) -> None:
        try:
            raise LookupError(because)
        except LookupError as error:
            raise ValueError(text) from error

    @task(name="tells_source")
    def run_source(path: str) -> None:
        exec(compile(Path(path).read_text(), path, "exec"), {})


class HostileWorker(RealWorker):
    def __init__(self, broker_url: str, store_url: str | None, *, name: str = NAME, **options: Any) -> None:
        super().__init__(broker_url, store_url, **options)
        self._command[self._command.index("tests.kit.celery:app")] = "tests.kit.hostile:app"
        self._command[self._command.index("-n") + 1] = f"{name}@%h"
        self.environment["PYTHONWARNINGS"] = "ignore"


app = celery.app
if app is not None:
    define(app)
    if os.environ.get(
        "HOSTILE_QUIET"
    ):  # Celery writes each error into the worker's log, as it is: what is left is others'
        logging.getLogger("celery.app.trace").addFilter(lambda record: False)
