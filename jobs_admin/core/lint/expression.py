"""How long `countdown=…` waits, read from the expression as it is written. Nothing is run.

Numbers, arithmetic, `min`, `max`, `pow`, `random.uniform` and its kin, `self.request.retries`, a literal list by index,
and Celery's own `get_exponential_backoff_interval`. What else stands in it cannot be told.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Between:
    """From the shortest to the longest that it can be, in seconds."""

    shortest: float
    longest: float


class CannotTell(Exception):
    """The expression asks what only the running job knows."""


def number(text: str) -> float | None:
    """What a constant expression comes to; None where it is none."""
    found = waits(text, 0)
    return found.shortest if found is not None and found.shortest == found.longest else None


def waits(text: str, retries: int) -> Between | None:
    """The wait after so many retries (0 at the first failure); None where it cannot be told."""
    tree = _tree(text)
    if tree is None:
        return None
    try:
        found = _Reader(retries).read(tree)
    except (CannotTell, ValueError, ArithmeticError, RecursionError, LookupError, TypeError):
        return None
    # Celery runs at once what was due before now.
    return Between(max(0.0, found.shortest), max(0.0, found.longest)) if not math.isnan(found.longest) else None


@lru_cache(maxsize=4096)  # asked for one retry after the other
def _tree(text: str) -> ast.expr | None:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def asks_the_server(text: str) -> bool:
    """Whether the wait is what a server asked for: `error.retry_after`, a header `Retry-After`."""
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
        raise CannotTell

    def _attribute(self, node: ast.Attribute) -> Between:
        owner = node.value
        if node.attr == "retries" and isinstance(owner, ast.Attribute) and owner.attr == "request":
            return Between(self.retries, self.retries)
        raise CannotTell

    def _binary(self, node: ast.BinOp) -> Between:
        apply = _OPERATORS.get(type(node.op))
        if apply is None:
            raise CannotTell
        left, right = self.read(node.left), self.read(node.right)
        if isinstance(node.op, ast.Mod) and (left.shortest != left.longest or right.shortest != right.longest):
            raise CannotTell  # not monotone: its ends are not at the ends
        ends = [apply(a, b) for a in (left.shortest, left.longest) for b in (right.shortest, right.longest)]
        return Between(min(ends), max(ends))

    def _call(self, node: ast.Call) -> Between:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "get_exponential_backoff_interval":
            return self._celery(node)
        if node.keywords or name not in _CALLS:
            raise CannotTell
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
