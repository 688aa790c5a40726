"""Signature of a task, as its workers report it, and the check of a call against it. Names only, no default values."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobs_admin.core.refused import Refused

LONGEST = 2_000  # characters; a longer one is not reported
_MOST_NAMED = 20  # arguments listed in a refusal


@dataclass(frozen=True, slots=True)
class Signature:
    """Signature of a task. `text` is in Python's notation: `order_id, /, currency=, *rest, key, **more`."""

    text: str
    positional: tuple[str, ...] = ()  # in order; callers cannot use the names of the first `positional_only`
    positional_only: int = 0
    named: tuple[str, ...] = ()  # keyword-only
    optional: frozenset[str] = frozenset()
    takes_more_args: bool = False
    takes_more_kwargs: bool = False

    def check(self, task: str, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Raise Refused for a call that would raise a TypeError before the task's first line."""
        takes = f"Arguments: {self.in_parentheses}."
        if len(args) > len(self.positional) and not self.takes_more_args:
            most = len(self.positional)
            raise Refused(
                "bad_edit",
                f"{task} takes {most} argument{'' if most == 1 else 's'} by position, not {len(args)}. {takes}",
                "args",
            )
        by_name = set(self.positional[self.positional_only :]) | set(self.named)
        for name in kwargs:
            if name in self.positional[self.positional_only : len(args)]:
                raise Refused(
                    "bad_edit", f"{task} gets {name!r} twice: by position and by name. {takes}", f"kwargs.{name}"
                )
            if name not in by_name and not self.takes_more_kwargs:
                raise Refused("bad_edit", f"{task} takes no argument {name[:100]!r}. {takes}", f"kwargs.{name}")
        missing = [name for name in self.positional[len(args) : self.positional_only] if name not in self.optional]
        unnamed = (*self.positional[max(len(args), self.positional_only) :], *self.named)
        missing += [name for name in unnamed if name not in self.optional and name not in kwargs]
        if missing:
            place = "args" if missing[0] in self.positional[: self.positional_only] else "kwargs"
            raise Refused("bad_edit", f"{task} needs the argument {missing[0]!r}. {takes}", place)

    @property
    def in_parentheses(self) -> str:
        """Return the signature in parentheses: at most 20 arguments, `…` for a default value."""
        parts = self.text.split(", ") if self.text else []
        shown = ", ".join(f"{part}…" if part.endswith("=") else part for part in parts[:_MOST_NAMED])
        return f"({shown}{', …' if len(parts) > _MOST_NAMED else ''})"


def format_signature(signature: inspect.Signature) -> str | None:
    """Return a signature as text; None if too long to be reported."""
    parts, kinds = [], [one.kind for one in signature.parameters.values()]
    for n, (name, one) in enumerate(signature.parameters.items()):
        if one.kind is one.KEYWORD_ONLY and one.KEYWORD_ONLY not in kinds[:n] and one.VAR_POSITIONAL not in kinds:
            parts.append("*")
        mark = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
        parts.append(f"{mark}{name}{'' if one.default is one.empty else '='}")
        if one.kind is one.POSITIONAL_ONLY and one.POSITIONAL_ONLY not in kinds[n + 1 :]:
            parts.append("/")
    text = ", ".join(parts)
    return text if len(text) <= LONGEST else None


def read(text: str) -> Signature | None:
    """Parse the text that `format_signature` returns; None for anything else."""
    positional: list[str] = []
    named: list[str] = []
    optional: set[str] = set()
    positional_only, is_named, more_args, more_kwargs = 0, False, False, False
    for part in text.split(", ") if text else []:
        if part == "/":
            positional_only = len(positional)
        elif part == "*":
            is_named = True
        elif part.startswith("**"):
            more_kwargs = True
        elif part.startswith("*"):
            more_args = is_named = True
        else:
            name = part.removesuffix("=")
            if not name.isidentifier():
                return None
            (named if is_named else positional).append(name)
            optional |= {name} if part.endswith("=") else set()
    return Signature(
        text, tuple(positional), positional_only, tuple(named), frozenset(optional), more_args, more_kwargs
    )
