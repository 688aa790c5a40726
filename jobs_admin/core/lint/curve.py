"""Curve: one way in which failed jobs are retried, by a policy, `autoretry_for`, `self.retry` or a queued job's
options.

All rules about delays and attempts examine curves, so that policies, live tasks and jobs are treated the same. The
delay of `countdown=…` is computed from its expression; no code is run.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, takewhile

from jobs_admin.core import backoff
from jobs_admin.core.backoff import Range
from jobs_admin.core.lint import options as lying
from jobs_admin.core.lint.configuration import Configuration, RetryCall, Task, Where
from jobs_admin.core.lint.options import FoundOptions, Options
from jobs_admin.core.policy import Policy, document


@dataclass(frozen=True, slots=True)
class Between:
    """Range of a delay, in seconds."""

    shortest: float
    longest: float


class Undecidable(Exception):
    """The expression depends on values known only to the running job."""


def number(text: str) -> float | None:
    """Return the value of a constant expression; None for any other."""
    found = waits(text, 0)
    return found.shortest if found is not None and found.shortest == found.longest else None


def waits(text: str, retries: int) -> Between | None:
    """Return the delay after this number of retries (0 at the first failure); None if it cannot be computed."""
    tree = _tree(text)
    if tree is None:
        return None
    try:
        found = _Reader(retries).read(tree)
    except (Undecidable, ValueError, ArithmeticError, RecursionError, LookupError, TypeError):
        return None
    # Celery immediately runs jobs due in the past.
    return Between(max(0.0, found.shortest), max(0.0, found.longest)) if not math.isnan(found.longest) else None


@lru_cache(maxsize=4096)  # called for one retry after another
def _tree(text: str) -> ast.expr | None:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def follows_server(text: str) -> bool:
    """Return whether the delay is requested by a server: `error.retry_after`, a header `Retry-After`."""
    return "retry_after" in text.lower().replace("-", "_")


class _Reader:
    def __init__(self, retries: int) -> None:
        self.retries = retries

    def read(self, node: ast.expr) -> Between:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return Between(float(node.value), float(node.value))
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self.read(node.operand)
            return Between(-inner.longest, -inner.shortest)
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.IfExp):
            either, other = self.read(node.body), self.read(node.orelse)
            return Between(min(either.shortest, other.shortest), max(either.longest, other.longest))
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.List | ast.Tuple):
            at = self.read(node.slice)
            if at.shortest == at.longest:
                return self.read(node.value.elts[int(at.shortest)])
        raise Undecidable

    def _attribute(self, node: ast.Attribute) -> Between:
        owner = node.value
        if node.attr == "retries" and isinstance(owner, ast.Attribute) and owner.attr == "request":
            return Between(self.retries, self.retries)
        raise Undecidable

    def _binary(self, node: ast.BinOp) -> Between:
        apply = _OPERATORS.get(type(node.op))
        if apply is None:
            raise Undecidable
        left, right = self.read(node.left), self.read(node.right)
        if isinstance(node.op, ast.Mod) and (left.shortest != left.longest or right.shortest != right.longest):
            raise Undecidable  # not monotonic: the extremes are not at the ends
        ends = [apply(a, b) for a in (left.shortest, left.longest) for b in (right.shortest, right.longest)]
        return Between(min(ends), max(ends))

    def _call(self, node: ast.Call) -> Between:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "get_exponential_backoff_interval":
            return self._celery(node)
        if node.keywords or name not in _CALLS:
            raise Undecidable
        return _CALLS[name]([self.read(argument) for argument in node.args])

    def _celery(self, node: ast.Call) -> Between:
        """`get_exponential_backoff_interval(factor, retries, maximum, full_jitter=False)`."""
        given = dict(zip(("factor", "retries", "maximum", "full_jitter"), node.args, strict=False))
        given |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        factor, retries, maximum = (self.read(given[name]) for name in ("factor", "retries", "maximum"))
        longest = min(maximum.longest, factor.longest * _power(2.0, retries.longest))
        has_jitter = "full_jitter" in given and self.read(given["full_jitter"]).longest > 0
        return Between(0.0 if has_jitter else longest, longest)


def _power(base: float, exponent: float) -> float:
    try:
        return float(base**exponent)
    except OverflowError:
        return math.inf


_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: _power,
}


def _each(apply: Callable[[float], float]) -> Callable[[list[Between]], Between]:
    return lambda given: Between(apply(given[0].shortest), apply(given[0].longest))


_CALLS: dict[str, Callable[[list[Between]], Between]] = {
    "min": lambda given: Between(min(g.shortest for g in given), min(g.longest for g in given)),
    "max": lambda given: Between(max(g.shortest for g in given), max(g.longest for g in given)),
    "int": _each(math.trunc),
    "float": _each(float),
    "round": _each(round),
    "ceil": _each(math.ceil),
    "floor": _each(math.floor),
    "pow": lambda given: Between(
        _power(given[0].shortest, given[1].shortest), _power(given[0].longest, given[1].longest)
    ),
    "random": lambda given: Between(0.0, 1.0),
    "uniform": lambda given: Between(
        min(given[0].shortest, given[1].shortest), max(given[0].longest, given[1].longest)
    ),
    "randint": lambda given: Between(given[0].shortest, given[1].longest),
    "randrange": lambda given: Between(
        given[0].shortest if len(given) > 1 else 0.0, given[min(1, len(given) - 1)].longest - 1
    ),
}  # fmt: skip


POLICY, AUTORETRY, CALL, OPTIONS = "policy", "autoretry_for", "self.retry", "job options"
EXPONENTIAL, LINEAR, FIXED, IMMEDIATE, TABLE = "exponential", "linear", "fixed", "immediate", "table"
BY_SERVER, OTHER, UNKNOWN, NONE = "as asked", "other", "unknown", "none"
KINDS = (
    EXPONENTIAL, LINEAR, FIXED, IMMEDIATE, TABLE, "polynomial", "decorrelated", OTHER, BY_SERVER, UNKNOWN, NONE,
)  # fmt: skip
_FEWEST_WAITS = 12  # minimum number of delays computed, enough to show how they grow …
_FAR = (62, 63)  # … and whether there is a cap
_ENDLESS = 64  # number of delays computed for unlimited retries
_CLOSE = 1e-9


@dataclass(frozen=True, slots=True)
class Curve:
    """One way to retry. `waits`: delays after attempts 1, 2 …, one per retry; unlimited and very long ones are
    truncated.
    """

    where: Where
    by: str
    quoted: str  # source text of the configuration
    kind: str
    attempts: int | None  # total, including the first; None: unlimited
    cap_s: float | None = None  # None: no cap set
    envelope: tuple[float, ...] = ()  # growth with cap, before jitter; () if unknown
    waits: tuple[Range, ...] = ()
    policy: Policy | None = None
    task: Task | None = None
    found: Configuration | None = None
    call: RetryCall | None = None
    options: Options | None = None
    seen: str = ""  # for options: number of jobs with them, and an example

    @property
    def retries(self) -> int | None:
        return None if self.attempts is None else self.attempts - 1

    @property
    def is_known(self) -> bool:
        """Return whether the delays are known."""
        return bool(self.waits)

    @property
    def is_jittered(self) -> bool:
        return any(wait.longest_s - wait.shortest_s > _CLOSE for wait in self.waits)

    @property
    def waits_in_worker(self) -> bool:
        """Return whether a worker holds a delayed job unacknowledged, as Celery does with a countdown."""
        if self.found is None:
            return False
        queue = self.found.queue(self.where.queue)
        return queue is None or not queue.delays_at_broker

    @property
    def longest_wait_s(self) -> float:
        """Longest single delay in seconds; 0 if none is known."""
        return max((wait.longest_s for wait in self.waits), default=0.0)

    def total(self) -> Range | None:
        """Return the time from the first failure to the last attempt; None if unlimited or unknown."""
        if self.retries is None or not self.waits:
            return None
        beyond = self.retries - len(self.waits)  # truncated delays repeat the last one
        last = self.waits[-1]
        sums = [
            sum(getattr(wait, end) for wait in self.waits) + beyond * getattr(last, end)
            for end in ("shortest_s", "longest_s", "mean_s")
        ]
        return Range(*sums)


def of_policy(policy: Policy) -> Curve:
    kind = policy.backoff.kind
    envelope = tuple(
        min(policy.longest_s, backoff.envelope(policy.backoff, n)) for n in range(1, max(policy.max_attempts, 3))
    )
    cap = policy.cap_s
    if kind in (FIXED, TABLE) and cap is None:
        cap = max(envelope)  # the longest delay is a cap in effect
    if not max(envelope):
        kind = IMMEDIATE
    return Curve(
        Where(policy.match.source, policy.match.queue, policy.match.task, policy.name),
        POLICY,
        quoted_policy(policy),
        kind if policy.max_attempts > 1 else NONE,
        policy.max_attempts,
        cap,
        envelope,
        tuple(Range(step.shortest_s, step.longest_s, step.mean_s) for step in backoff.schedule(policy)),
        policy=policy,
    )


def quoted_policy(policy: Policy) -> str:
    """Return the part of a policy's document about delays."""
    written = document(policy)
    named = {name: written[name] for name in ("max_attempts", "backoff", "cap_s", "jitter") if name in written}
    return ", ".join(f"{name}: {_plain(value)}" for name, value in named.items())


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_plain(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_plain, value)) + "]"
    return str(value)


def of_task(task: Task, found: Configuration) -> list[Curve]:
    """Return Celery's own ways to retry this task."""
    curves = [_of_autoretry(task, found)] if task.autoretry_for else []
    curves += [_of_call(call, task, found) for call in task.calls]
    if task.is_unread:
        where = _where(task, found)
        curves.append(
            Curve(where, CALL, "self.retry(…) in code that cannot be read", UNKNOWN, _runs(task.max_retries), task=task, found=found)
        )  # fmt: skip
    return curves


def of_options(options: Options, found: FoundOptions) -> Curve:
    """Return the curve of a job's options.

    BullMQ has no cap: `delay * 2 ** (n - 1)` after attempt n, which jitter only reduces (5.81, `backoffs.js`).
    """
    curve = Curve(
        Where(found.source, options.queue, options.task), OPTIONS, options.quoted, UNKNOWN, max(options.attempts, 1),
        options=options, seen=_describe_jobs(options),
    )  # fmt: skip
    kind, grown = _GROWN.get(options.backoff, (UNKNOWN, _GROWN[lying.FIXED][1]))
    if kind == UNKNOWN or not options.is_named:
        return curve
    first = options.first_delay_s
    envelope = _worked_out(lambda n: first * grown(n), curve.retries)
    shortest = 1 - min(1.0, options.jitter)
    return replace(
        curve,
        kind=kind if first else IMMEDIATE,
        cap_s=first if kind == FIXED else None,
        envelope=envelope,
        waits=tuple(Range(e * shortest, e, e * (1 + shortest) / 2) for e in envelope[: _cut(curve.retries)]),
    )


_GROWN: dict[str, tuple[str, Callable[[int], float]]] = {
    lying.EXPONENTIAL: (EXPONENTIAL, lambda n: 2.0**n),
    lying.EXPONENTIAL_OF_BULL: (EXPONENTIAL, lambda n: 2.0 ** (n + 1) - 1),
    lying.LINEAR: (LINEAR, lambda n: n + 1.0),
    lying.FIXED: (FIXED, lambda n: 1.0),
    lying.NONE: (FIXED, lambda n: 0.0),
}


def _describe_jobs(options: Options) -> str:
    """Return the number of jobs with these options, and an example."""
    jobs = f"{options.jobs:,} of {options.sample_size:,} jobs checked in {options.queue}"
    return f"{jobs}, latest {options.example}" if options.example else jobs


def _where(task: Task, found: Configuration) -> Where:
    return Where(found.source, task.queue, task.name)


def _runs(retries: int | None) -> int | None:
    return None if retries is None else retries + 1


def _of_autoretry(task: Task, found: Configuration) -> Curve:
    """Return the curve of `celery/app/autoretry.py`, Celery 5.7: min(maximum, factor * 2 ** retries), then a random
    whole number up to it.
    """
    retries = task.max_retries if task.autoretry_max_retries is None else task.autoretry_max_retries
    if task.retry_backoff:
        factor, cap = float(int(max(1.0, task.retry_backoff))), task.retry_backoff_max
        envelope = _worked_out(lambda n: min(cap, factor * 2.0**n), retries)
        # A factor above the cap never grows.
        kind = EXPONENTIAL if factor < cap or cap == 0 else FIXED
        shortest = 0.0 if task.retry_jitter else 1.0
    else:
        wait = task.default_retry_delay if task.autoretry_countdown is None else task.autoretry_countdown
        envelope, cap, shortest = _worked_out(lambda n: wait, retries), wait, 1.0
        kind = FIXED if wait else IMMEDIATE
    waits = tuple(Range(e * shortest, e, e * (1 + shortest) / 2) for e in envelope[: _cut(retries)])
    return Curve(
        _where(task, found), AUTORETRY, quoted_autoretry(task), kind, _runs(retries), cap, envelope, waits, task=task, found=found
    )  # fmt: skip


def quoted_autoretry(task: Task) -> str:
    """Return the decorator with its effective values, including defaults."""
    parts = [f"autoretry_for={_tuple(task.autoretry_for)}"]
    if task.dont_autoretry_for:
        parts.append(f"dont_autoretry_for={_tuple(task.dont_autoretry_for)}")
    given = {"max_retries": task.autoretry_max_retries, "countdown": task.autoretry_countdown}
    given = {name: value for name, value in given.items() if value is not None}
    if "max_retries" not in given:
        parts.append(f"max_retries={task.max_retries}")
    if given:
        parts.append("retry_kwargs={" + ", ".join(f"{name!r}: {value:g}" for name, value in given.items()) + "}")
    if task.retry_backoff:
        parts.append(f"retry_backoff={task.retry_backoff:g}, retry_backoff_max={task.retry_backoff_max:g}")
        parts.append(f"retry_jitter={task.retry_jitter}")
    elif "countdown" not in given:
        parts.append(f"default_retry_delay={task.default_retry_delay:g}")
    return ", ".join(parts)


def _tuple(names: Sequence[str]) -> str:
    listed = ", ".join(name.removeprefix("builtins.") for name in names)
    return f"({listed},)" if len(names) == 1 else f"({listed})"


def _of_call(call: RetryCall, task: Task, found: Configuration) -> Curve:
    retries = task.max_retries
    if call.max_retries is not None and call.max_retries != "None":  # None: the task's own value
        limit = number(call.max_retries)
        retries = int(limit) if limit is not None else retries
    quoted = call.quoted
    if call.countdown is None and not call.is_eta:
        quoted += f", default_retry_delay={task.default_retry_delay:g}"
    if call.countdown and call.countdown not in call.quoted:
        quoted += f", where countdown is {call.countdown}"  # with constants substituted
    if call.max_retries is None:
        quoted += f", max_retries={task.max_retries}"
    curve = Curve(_where(task, found), CALL, quoted, UNKNOWN, _runs(retries), task=task, found=found, call=call)
    if call.is_eta:
        return curve
    if call.countdown is None:
        return _with_waits(curve, lambda n: Between(task.default_retry_delay, task.default_retry_delay))
    text = call.countdown
    if waits(text, 0) is None:
        return replace(curve, kind=BY_SERVER) if follows_server(text) else curve
    return _with_waits(curve, lambda n: waits(text, n))


def _with_waits(curve: Curve, wait: Callable[[int], Between | None]) -> Curve:
    near = list(takewhile(_is_finite, map(wait, range(max(_FEWEST_WAITS, _cut(curve.retries))))))
    known = [one for one in near if one is not None]
    far = [wait(n) for n in _FAR]
    longest, shortest = tuple(one.longest for one in known), tuple(one.shortest for one in known)
    kind, cap = growth(longest, [one.longest if one else None for one in far])
    envelope = longest
    if kind == OTHER:
        # A delay drawn from a growing value plus a little: its minimum shows the growth.
        of_shortest, its_cap = growth(shortest, [one.shortest if one else None for one in far])
        if of_shortest == EXPONENTIAL:
            kind, cap, envelope = of_shortest, its_cap, shortest
    waits = [Range(one.shortest, one.longest, (one.shortest + one.longest) / 2) for one in known]
    return replace(curve, kind=kind, cap_s=cap, envelope=envelope, waits=tuple(waits[: _cut(curve.retries)]))


def _is_finite(wait: Between | None) -> bool:
    return wait is not None and math.isfinite(wait.longest)


def _worked_out(wait: Callable[[int], float], retries: int | None) -> tuple[float, ...]:
    return tuple(wait(n) for n in range(max(_ENDLESS, min(retries or 0, 1_000))))


def _cut(retries: int | None) -> int:
    return _ENDLESS if retries is None else min(retries, 1_000)


def growth(near: Sequence[float], far: Sequence[float | None]) -> tuple[str, float | None]:
    """Return (kind, cap) of consecutive delays and of two much later ones; None there: a table that ends."""
    if not near:
        return UNKNOWN, None
    if None in far:
        return TABLE, max(near)
    cap = far[-1] if len(set(far)) == 1 and math.isfinite(far[-1] or 0) else None
    if set(near) == {cap}:
        return (FIXED if cap else IMMEDIATE), cap
    return _shape([wait for wait in near if wait != cap]), cap


def _shape(growing: Sequence[float]) -> str:
    if doubles(growing):
        return EXPONENTIAL
    steps = [later - earlier for earlier, later in pairwise(growing)]
    is_linear = len(steps) > 1 and steps[0] > 0 and all(abs(s - steps[0]) <= _CLOSE * max(1.0, s) for s in steps)
    return LINEAR if is_linear else OTHER


def doubles(growing: Iterable[float]) -> bool:
    """Return whether each delay is at least twice the previous one, starting above zero."""
    waits = list(growing)
    return bool(waits) and waits[0] > 0 and all(later >= 2 * earlier - _CLOSE for earlier, later in pairwise(waits))
