"""Django's `{% for %}`, at a third of its cost: nearly all of a list's time went into walking its rows' nodes.

A row's nodes are compiled once, with the template, into functions that are fast for the usual contents of rows: text,
variables with filters, `if`, `with`, simple tags. All other nodes, and unusual values (missing, callable, lazy), are left
to Django, so that the output is the same: `tests/dashboard/test_quick_for.py` compares both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from typing import Any

from django import template
from django.template.base import (
    FilterExpression,
    Node,
    TextNode,
    Variable,
    VariableDoesNotExist,
    VariableNode,
    render_value_in_context,
)
from django.template.context import Context
from django.template.defaulttags import ForNode, IfNode, TemplateLiteral, WithNode, do_for
from django.template.library import SimpleNode
from django.utils.safestring import SafeData, SafeString, mark_safe
from django.utils.timezone import template_localtime

register = template.Library()

Answer = Callable[[Context], Any]
Piece = str | Callable[[Context], str]


@register.tag("for")
def quick_for(parser: Any, token: Any) -> ForNode:
    plain = do_for(parser, token)
    return QuickFor(
        plain.loopvars, plain.sequence, plain.is_reversed, plain.nodelist_loop, plain.nodelist_empty or None
    )


class QuickFor(ForNode):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.values = _value(self.sequence, ignore_failures=True)
        self.pieces = _pieces(self.nodelist_loop)

    def render(self, context: Context) -> str:
        if context.template.engine.debug:  # which marks the node that failed
            return super().render(context)
        parent = context.get("forloop", {})
        with context.push():
            values = self.values(context)
            if values is None:
                values = []
            if not hasattr(values, "__len__"):
                values = list(values)
            if len(values) < 1:
                return self.nodelist_empty.render(context)
            scope = context.dicts[-1]
            loop = scope["forloop"] = Loop(len(values), parent)
            output: list[str] = []
            for n, item in enumerate(reversed(values) if self.is_reversed else values):
                loop["counter0"] = n
                if len(self.loopvars) > 1:
                    with context.push(**self._unpacked(item)):
                        _render(self.pieces, context, output)
                else:
                    scope[self.loopvars[0]] = item
                    _render(self.pieces, context, output)
        return mark_safe("".join(output))  # noqa: S308  (each piece escaped what it shows)

    def _unpacked(self, item: Any) -> dict[str, Any]:
        found = len(item) if hasattr(item, "__len__") else 1
        if found != len(self.loopvars):
            raise ValueError(f"Need {len(self.loopvars)} values to unpack in for loop; got {found}. ")
        return dict(zip(self.loopvars, item, strict=True))


class Loop(dict):
    """`forloop`: has the row's number, and computes the other values on access."""

    def __init__(self, length: int, parent: Any) -> None:
        super().__init__(parentloop=parent)
        self.length = length

    def __missing__(self, name: str) -> int | bool:
        n, length = self["counter0"], self.length
        match name:
            case "counter":
                return n + 1
            case "revcounter":
                return length - n
            case "revcounter0":
                return length - n - 1
            case "first":
                return n == 0
            case "last":
                return n == length - 1
        raise KeyError(name)


def _render(pieces: list[Piece], context: Context, output: list[str]) -> None:
    for piece in pieces:
        output.append(piece if type(piece) is str else piece(context))


def _pieces(nodes: Iterable[Node]) -> list[Piece]:
    return [_piece(node) for node in nodes]


def _piece(node: Node) -> Piece:
    kind = type(node)
    if kind is TextNode:
        return node.s
    if kind is VariableNode:
        return _variable(node.filter_expression)
    if kind is IfNode:
        return _if(node)
    if kind is WithNode:
        return _with(node)
    if kind is SimpleNode and node.target_var is None:
        return _tag(node)
    return node.render_annotated


def _variable(expression: FilterExpression) -> Piece:
    value = _value(expression)
    return lambda context: _escaped(value(context), context)


def _escaped(value: Any, context: Context) -> str:
    kind = type(value)
    if kind is SafeString:
        return value
    if kind is str and context.autoescape:
        return escape(value)
    return render_value_in_context(value, context)


def _if(node: IfNode) -> Piece:
    branches = [
        (condition and _quick_condition(condition), _pieces(nodes)) for condition, nodes in node.conditions_nodelists
    ]

    def render(context: Context) -> str:
        for condition, pieces in branches:
            try:
                is_met = condition is None or condition.eval(context)
            except VariableDoesNotExist:
                is_met = False
            if is_met:
                output: list[str] = []
                _render(pieces, context, output)
                return "".join(output)
        return ""

    return render


class _Leaf:
    """An operand of a condition."""

    def __init__(self, value: FilterExpression) -> None:
        self.eval = _value(value, ignore_failures=True)


def _quick_condition(condition: Any) -> Any:
    """Return the condition with fast operands. Operators and their errors stay Django's."""
    if isinstance(condition, TemplateLiteral):
        return _Leaf(condition.value)
    for side in ("first", "second"):
        operand = getattr(condition, side, None)
        if operand is not None:
            setattr(condition, side, _quick_condition(operand))
    return condition


def _with(node: WithNode) -> Piece:
    values = {name: _value(expression) for name, expression in node.extra_context.items()}
    pieces = _pieces(node.nodelist)

    def render(context: Context) -> str:
        output: list[str] = []
        with context.push(**{name: value(context) for name, value in values.items()}):
            _render(pieces, context, output)
        return "".join(output)

    return render


def _tag(node: SimpleNode) -> Piece:
    arguments = [_value(expression) for expression in node.args]
    named = {name: _value(expression) for name, expression in node.kwargs.items()}
    function, takes_context = node.func, node.takes_context

    def render(context: Context) -> str:
        given = [value(context) for value in arguments]
        if takes_context:
            given.insert(0, context)
        value = function(*given, **{name: value(context) for name, value in named.items()})
        if type(value) is SafeString:
            return value
        return escape(str(value)) if context.autoescape and not hasattr(value, "__html__") else node.render(context)

    return render


def _value(expression: FilterExpression, *, ignore_failures: bool = False) -> Answer:
    """Return a function that gives the value of the expression in a context, filters applied."""
    base = _lookup(expression.var) if expression.is_var else None
    constant = expression.var
    filters = [
        (
            function,
            [_lookup(given) if is_variable else _always(mark_safe(given)) for is_variable, given in arguments],  # noqa: S308
            getattr(function, "expects_localtime", False),
            {"autoescape"} if getattr(function, "needs_autoescape", False) else None,
            getattr(function, "is_safe", False),
        )
        for function, arguments in expression.filters
    ]

    def value(context: Context) -> Any:
        if base is None:
            found = constant
        else:
            try:
                found = base(context)
            except VariableDoesNotExist:
                return expression.resolve(context, ignore_failures=ignore_failures)
        for function, arguments, wants_local_time, wants_autoescape, is_safe in filters:
            given = [argument(context) for argument in arguments]
            if wants_local_time:
                found = template_localtime(found, context.use_tz)
            made = (
                function(found, *given, autoescape=context.autoescape) if wants_autoescape else function(found, *given)
            )
            found = mark_safe(made) if is_safe and isinstance(found, SafeData) else made  # noqa: S308  (as Django)
        return found

    return value if filters or base is None or ignore_failures else _forgiving(base, expression)


def _forgiving(base: Answer, expression: FilterExpression) -> Answer:
    def value(context: Context) -> Any:
        try:
            return base(context)
        except VariableDoesNotExist:
            return expression.resolve(context)

    return value


def _always(value: Any) -> Answer:
    return lambda context: value


def _lookup(variable: Variable) -> Answer:
    """`row.queue.name` in a context: names of dictionaries and attributes. All else is left to Django."""
    if variable.lookups is None:
        return variable.resolve if variable.translate else _always(variable.literal)
    first, *rest = variable.lookups
    by_django = variable.resolve

    def value(context: Context) -> Any:
        for scope in reversed(context.dicts):
            if first in scope:
                found = scope[first]
                break
        else:
            return by_django(context)
        for bit in rest:
            kind = type(found)
            try:
                if kind is dict:
                    found = found[bit]
                elif hasattr(kind, "__getitem__") or callable(found):
                    return by_django(context)
                else:
                    found = getattr(found, bit)
            except Exception:  # Django decides whether it is silent
                return by_django(context)
        return by_django(context) if callable(found) else found

    return value
