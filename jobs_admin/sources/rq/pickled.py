"""Values in a pickle, read without running it: its operations are interpreted, and nothing is imported or called.

RQ pickles its data by default, and unpickling runs code. Plain values are shown unchanged; an object is shown as its
class and constructor arguments.
"""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

LARGEST = 4_000_000  # maximum bytes that are interpreted
_MOST_OPERATIONS = 400_000
_MOST_VALUES = 20_000  # maximum shown: a pickle may refer to one value a million times
_DEEPEST = 60
_LONGEST_BYTES = 1_000
_LARGEST_INT = 2**64


class NotPickled(ValueError):
    """The data is not a pickle, or is too large to be interpreted."""


@dataclass(slots=True)
class _Object:
    """An object that unpickling would create."""

    name: str
    made_of: list[Any] = field(default_factory=list)


class _Mark:
    """The operation MARK on the stack."""


def read(data: bytes) -> tuple[Any, bool]:
    """Return the value as JSON, and whether it is plain: no object, no set, no tuple below the first.

    Raises NotPickled.
    """
    if len(data) > LARGEST:
        raise NotPickled(f"a pickle of {len(data)} bytes is not interpreted")
    try:
        shown = _Shown()
        return shown.show(_interpret(data)), shown.is_plain
    except (ValueError, IndexError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise NotPickled("it is not a pickle") from error


def write(value: Any, like: bytes) -> bytes:
    """Pickle plain values in the protocol of another pickle."""
    protocol = like[1] if like[:1] == b"\x80" and len(like) > 1 and 2 <= like[1] <= pickle.HIGHEST_PROTOCOL else 2
    return pickle.dumps(value, protocol=protocol)


class _Shown:
    """A value as JSON, limited to a number of values."""

    def __init__(self) -> None:
        self.is_plain = True
        self._left = _MOST_VALUES

    def show(self, value: Any, depth: int = 0) -> Any:
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            return self._strange("…")
        if isinstance(value, int) and abs(value) > _LARGEST_INT:
            return self._strange("a large number")
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list | tuple):
            if isinstance(value, tuple) and depth > 1:  # the job itself, and its arguments
                self.is_plain = False
            return [self.show(one, depth + 1) for one in self._some(value)]
        if isinstance(value, dict):
            return {self._key(name): self.show(one, depth + 1) for name, one in self._some(value.items())}
        if isinstance(value, bytes | bytearray):
            text = bytes(value[:_LONGEST_BYTES]).decode("utf-8", "backslashreplace")
            return self._strange(f"{text}… ({len(value)} bytes)" if len(value) > _LONGEST_BYTES else text)
        if isinstance(value, _Object):
            made_of = [self.show(one, depth + 1) for one in self._some(value.made_of) if one not in ((), None)]
            return self._strange({"object": value.name, **({"made of": made_of} if made_of else {})})
        return self._strange("…")

    def _some(self, values: Any) -> Iterator[Any]:
        for one in values:
            if self._left < 0:
                self.is_plain = False
                return
            yield one

    def _key(self, name: Any) -> str:
        if not isinstance(name, str):
            self.is_plain = False
        return name if isinstance(name, str) else str(name)[:200]

    def _strange(self, shown: Any) -> Any:
        self.is_plain = False
        return shown


def _interpret(data: bytes) -> Any:
    """Run a pickle's operations on a stack of plain values and `_Object`s."""
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    for count, (operation, argument, _) in enumerate(pickletools.genops(data)):
        name = operation.name
        if count > _MOST_OPERATIONS:
            raise ValueError
        if name in _OPERATIONS:
            _OPERATIONS[name](stack, argument)
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name.endswith("PUT"):
            memo[argument] = stack[-1]
        elif name.endswith("GET"):
            stack.append(memo[argument])
        elif name.startswith("EXT"):
            stack.append(_Object(f"extension {argument}"))
        elif any(kind in name for kind in _VALUES):
            stack.append(argument)
        elif name not in _IGNORED:
            raise ValueError(name)
    return stack[-1]


_Operation = Callable[[list[Any], Any], Any]
_IGNORED = frozenset(("PROTO", "FRAME", "READONLY_BUFFER", "STOP"))
_VALUES = (
    "INT",
    "LONG",
    "FLOAT",
    "UNICODE",
    "STRING",
    "BYTE",
)  # in the name of each operation that pushes its argument
# Each changes the stack, by its argument.
_OPERATIONS: dict[str, _Operation] = {
    "NONE": lambda stack, _: stack.append(None),
    "NEWTRUE": lambda stack, _: stack.append(True),
    "NEWFALSE": lambda stack, _: stack.append(False),
    "EMPTY_TUPLE": lambda stack, _: stack.append(()),
    "EMPTY_LIST": lambda stack, _: stack.append([]),
    "EMPTY_DICT": lambda stack, _: stack.append({}),
    "EMPTY_SET": lambda stack, _: stack.append(_Object("set")),
    "NEXT_BUFFER": lambda stack, _: stack.append(_Object("buffer")),
    "MARK": lambda stack, _: stack.append(_Mark()),
    "POP": lambda stack, _: stack.pop(),
    "POP_MARK": lambda stack, _: _since_mark(stack),
    "DUP": lambda stack, _: stack.append(stack[-1]),
    "TUPLE1": lambda stack, _: _replace_top(stack, 1, tuple(stack[-1:])),
    "TUPLE2": lambda stack, _: _replace_top(stack, 2, tuple(stack[-2:])),
    "TUPLE3": lambda stack, _: _replace_top(stack, 3, tuple(stack[-3:])),
    "TUPLE": lambda stack, _: stack.append(tuple(_since_mark(stack))),
    "LIST": lambda stack, _: stack.append(_since_mark(stack)),
    "DICT": lambda stack, _: _set(stack, _since_mark(stack), {}),
    "FROZENSET": lambda stack, _: stack.append(_Object("frozenset", _since_mark(stack))),
    "APPEND": lambda stack, _: _extend(stack, [stack.pop()]),
    "APPENDS": lambda stack, _: _extend(stack, _since_mark(stack)),
    "ADDITEMS": lambda stack, _: _extend(stack, _since_mark(stack)),
    "SETITEM": lambda stack, _: _set(stack, [stack.pop(-2), stack.pop()]),
    "SETITEMS": lambda stack, _: _set(stack, _since_mark(stack)),
    "GLOBAL": lambda stack, argument: stack.append(_Object(str(argument).replace(" ", "."))),
    "STACK_GLOBAL": lambda stack, _: _replace_top(stack, 2, _Object(f"{stack[-2]}.{stack[-1]}")),
    "INST": lambda stack, argument: stack.append(_Object(str(argument).replace(" ", "."), _since_mark(stack))),
    "OBJ": lambda stack, _: stack.append(_new_object(*_since_mark(stack))),
    "REDUCE": lambda stack, _: _replace_top(stack, 2, _new_object(*stack[-2:])),
    "NEWOBJ": lambda stack, _: _replace_top(stack, 2, _new_object(*stack[-2:])),
    "NEWOBJ_EX": lambda stack, _: _replace_top(stack, 3, _new_object(*stack[-3:])),
    "BUILD": lambda stack, _: _build(stack, stack.pop()),
    "PERSID": lambda stack, argument: stack.append(_Object("persistent", [argument])),
    "BINPERSID": lambda stack, _: stack.append(_Object("persistent", [stack.pop()])),
}


def _replace_top(stack: list[Any], count: int, value: Any) -> None:
    """Replace the top `count` values."""
    if len(stack) < count:
        raise ValueError
    stack[-count:] = [value]


def _since_mark(stack: list[Any]) -> list[Any]:
    """Pop and return the values pushed since the last mark, and the mark."""
    for at in range(len(stack) - 1, -1, -1):
        if isinstance(stack[at], _Mark):
            taken = stack[at + 1 :]
            del stack[at:]
            return taken
    raise ValueError


def _extend(stack: list[Any], values: list[Any]) -> None:
    target = stack[-1]
    (target.made_of if isinstance(target, _Object) else target).extend(values)


def _set(stack: list[Any], pairs: list[Any], new: dict[Any, Any] | None = None) -> None:
    """Add items to the object on top, or to a new one."""
    if new is not None:
        stack.append(new)
    target = stack[-1]
    for name, value in zip(pairs[::2], pairs[1::2], strict=True):
        if isinstance(target, _Object):
            target.made_of.append([name, value])
        else:
            target[name if isinstance(name, str | int | float | bytes | None) else type(name).__name__] = value


def _build(stack: list[Any], state: Any) -> None:
    if isinstance(stack[-1], _Object):
        stack[-1].made_of.append(state)


def _new_object(what: Any, *of: Any) -> _Object:
    return _Object(what.name if isinstance(what, _Object) else "unknown", list(of))
