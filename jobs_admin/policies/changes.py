"""Differences between documents of policies, field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# Lists are compared as a unit: an entry moved within `classes` changes decisions.
Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    field: str  # `backoff.first_delay_s`
    before: Any  # None: absent
    after: Any


@dataclass(frozen=True, slots=True)
class Conflict:
    """A field that differs between the version an edit is based on, the one in force, and the submitted one."""

    field: str
    was: Any
    now: Any
    yours: Any


def difference(before: Document | None, after: Document | None) -> list[Change]:
    """Return the changes, in the order of the fields; none without a difference."""
    old, new = dict(_fields(before)), dict(_fields(after))
    found = [Change(field, old.get(field), new.get(field)) for field in {**old, **new}]
    return [change for change in found if change.before != change.after]


def conflicts(was: Document | None, now: Document | None, yours: Document) -> list[Conflict]:
    """Return the fields that another operator changed, then those that only this edit changes."""
    one, other, mine = dict(_fields(was)), dict(_fields(now)), dict(_fields(yours))
    found = [Conflict(field, one.get(field), other.get(field), mine.get(field)) for field in {**one, **other, **mine}]
    differing = [c for c in found if not c.was == c.now == c.yours]
    return sorted(differing, key=lambda conflict: conflict.was == conflict.now)


def _fields(document: Document | None, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in (document or {}).items():
        if isinstance(value, Mapping) and value:
            yield from _fields(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value
