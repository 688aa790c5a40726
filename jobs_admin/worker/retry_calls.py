"""Calls of `self.retry(…)` in a task's own code, and the waits that they ask for: read from its source, nothing is run."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from jobs_admin.core.lint.configuration import RetryCall

MOST_CALLS = 20
_LONGEST = 300  # characters of an expression
_LONGEST_LIST = 50
_DEEPEST = 5  # names that stand for names
_POSITIONS = ("args", "kwargs", "exc", "throw", "eta", "countdown", "max_retries")  # of Task.retry
_REPORTED = ("exc", "countdown", "eta", "max_retries")
_CELERYS = {"current_task"}


def retry_calls(function: Callable[..., Any], settings: Mapping[str, Any]) -> tuple[tuple[RetryCall, ...], bool]:
    """The calls in the function, and whether it makes some that cannot be read, for want of its source.

    `settings` are the task's own values (`default_retry_delay` …), for expressions such as `self.default_retry_delay * 2`.
    """
    if not isinstance(function, FunctionType) or not calls_retry(function.__code__):
        return (), False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError, MemoryError):
        return (), True
    reader = _Reader(tree, function, settings)
    return tuple(reader.calls())[:MOST_CALLS], False


def calls_retry(code: CodeType) -> bool:
    """Return whether anything named `retry` is asked for, in the code or a function within: most tasks are through with that."""
    return "retry" in code.co_names or any(calls_retry(c) for c in code.co_consts if isinstance(c, CodeType))


class _Reader:
    def __init__(self, tree: ast.AST, function: FunctionType, settings: Mapping[str, Any]) -> None:
        self.tree, self.globals, self.settings = tree, function.__globals__, settings
        code = function.__code__
        self.names = {*code.co_varnames[: min(1, code.co_argcount)], function.__name__, *_CELERYS}
        self.locals = _assigned(tree)

    def calls(self) -> Iterator[RetryCall]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "retry":
                owner = node.func.value
                if isinstance(owner, ast.Name) and owner.id in self.names:
                    yield self._call(node)

    def _call(self, node: ast.Call) -> RetryCall:
        given = dict(zip(_POSITIONS, node.args, strict=False))
        given |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        is_hidden = any(keyword.arg is None for keyword in node.keywords) or any(
            isinstance(one, ast.Starred) for one in node.args
        )
        reported = {name: value for name, value in given.items() if name in _REPORTED and not _is_none(value)}
        countdown = self._text(reported["countdown"]) if "countdown" in reported else None
        return RetryCall(
            quoted=_quoted(node, reported, is_hidden),
            countdown="**" if is_hidden and countdown is None else countdown,
            is_eta="eta" in reported,
            max_retries=self._text(reported["max_retries"]) if "max_retries" in reported else None,
            is_plain=not is_hidden and _is_plain(given),
        )

    def _text(self, node: ast.expr) -> str:
        """The expression with constants of the module, and what is assigned once, in their places."""
        return ast.unparse(_without_texts(self._filled(node, 0)))[:_LONGEST]

    def _filled(self, node: ast.expr, depth: int) -> ast.expr:
        reader = self

        class Fill(ast.NodeTransformer):
            def visit_Name(self, name: ast.Name) -> ast.expr:
                if name.id in reader.locals:
                    value = reader.locals[name.id]
                    return name if value is None or depth >= _DEEPEST else reader._filled(value, depth + 1)
                return _constant(reader.globals.get(name.id)) or name

            def visit_Attribute(self, attribute: ast.Attribute) -> ast.expr:
                owner = attribute.value
                if isinstance(owner, ast.Name) and owner.id in reader.names:
                    return _constant(reader.settings.get(attribute.attr)) or attribute
                if isinstance(owner, ast.Name) and isinstance(module := reader.globals.get(owner.id), ModuleType):
                    return _constant(vars(module).get(attribute.attr)) or attribute
                return self.generic_visit(attribute)  # type: ignore[return-value]

        return Fill().visit(ast.parse(ast.unparse(node), mode="eval").body)  # type: ignore[no-any-return]


def _assigned(tree: ast.AST) -> dict[str, ast.expr | None]:
    """Local names: to the expression of the only assignment, to None where there are several, or another kind."""
    found: dict[str, ast.expr | None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] = None
        elif isinstance(node, ast.arg):
            found[node.arg] = None
    stored = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name) and stored.count(target.id) == 1:
                found[target.id] = node.value
    return found


def _constant(value: Any) -> ast.expr | None:
    """A number, or a list of numbers, as it would be written; None for whatever else it is."""
    if type(value) in (int, float):
        return ast.parse(repr(value), mode="eval").body
    if type(value) in (list, tuple) and len(value) <= _LONGEST_LIST and all(type(one) in (int, float) for one in value):
        return ast.parse(repr(list(value)), mode="eval").body
    return None


def _quoted(node: ast.Call, reported: Mapping[str, ast.expr], is_hidden: bool) -> str:
    """The call as it is written: without arguments of the job, and without texts, which may be secrets."""
    parts = [f"{name}={ast.unparse(_without_texts(value))}" for name, value in reported.items()]
    if is_hidden:
        parts.append("…")
    return f"{ast.unparse(node.func)}({', '.join(parts)})"[:_LONGEST]


def _without_texts(node: ast.expr) -> ast.expr:
    class Mask(ast.NodeTransformer):
        def visit_Constant(self, constant: ast.Constant) -> ast.expr:
            if not isinstance(constant.value, str | bytes) or str(constant.value).lower() == "retry-after":
                return constant
            return ast.Constant("…")

        def visit_JoinedStr(self, text: ast.JoinedStr) -> ast.expr:
            return ast.Constant("…")

    return Mask().visit(ast.parse(ast.unparse(node), mode="eval").body)  # type: ignore[no-any-return]


def _is_plain(given: Mapping[str, ast.expr]) -> bool:
    """Return whether the call is no more than a retry, as `worker/retrying.py` decides while the task runs; all else
    stays Celery's.
    """
    throws = given.get("throw")
    more = {name for name, value in given.items() if name not in _REPORTED and name != "throw" and not _is_none(value)}
    return not more and (throws is None or (isinstance(throws, ast.Constant) and bool(throws.value)))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
