"""The policy that can be drawn while somebody types: what is refused is said beside its input, and drawn as it is in force."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from datetime import datetime
from typing import Any

from dashboard.policies.forms import Draft
from jobs_admin import policies
from jobs_admin.core import policy as core
from jobs_admin.core.refused import Refused
from jobs_admin.models.access import Viewer
from jobs_admin.policies.changes import conflicts

_TRIES = 8  # a field is refused twice at most: as it was typed, and as it is in force


def drawable(
    draft: Draft, name: str, viewer: Viewer, now: datetime, *, held: Mapping[str, Any], is_told: bool = False
) -> tuple[core.Policy, dict[str, Any], bool]:
    """The nearest policy, its normal form, and whether it is all of the draft. Notes what is refused in the draft,
    unless that `is_told` already. `held`: the document in force, whose values are drawn for what is refused.
    """
    document = draft.document(now) | {"name": name}
    try:
        found = policies.check(viewer, name, document)
        return found, core.document(found), True
    except Refused as refused:
        if not is_told:
            draft.refuse(problems(refused))
    for n in range(_TRIES):
        try:
            found = core.parse(document)
            return found, core.document(found), n == 0
        except Refused as refused:
            for problem in refused.details["problems"]:
                _fall_back(document, problem.field, held)
    return core.Policy(name=name), core.document(core.Policy(name=name)), False


def problems(refused: Refused) -> list[core.Problem]:
    """All that is wrong with a draft."""
    return refused.details.get("problems") or [core.Problem(refused.field or "", refused.message)]


def _fall_back(document: dict[str, Any], path: str, held: Mapping[str, Any]) -> None:
    """This field as it is held; without it (of a list without all of it) where it is not, or was refused so too."""
    name, _, rest = path.partition(".")
    inner, before = document.get(name), held.get(name)
    if rest and isinstance(inner, dict):
        _fall_back(inner, rest, before if isinstance(before, dict) else {})
    elif before is not None and before != inner:
        document[name] = deepcopy(before)
    else:
        document.pop(name, None)


def merged(was: Mapping[str, Any], now: Mapping[str, Any], yours: Mapping[str, Any]) -> dict[str, Any]:
    """Yours, with what somebody else changed wherever you changed nothing."""
    found = deepcopy(dict(yours))
    for one in conflicts(was, now, yours):
        if one.yours == one.was:
            _set(found, one.field, one.now)
    return found


def _set(document: dict[str, Any], path: str, value: Any) -> None:
    name, _, rest = path.partition(".")
    if rest:
        inner = document.setdefault(name, {})
        _set(inner, rest, value)
        value = inner or None  # a part without anything in it is no part
    if value is None:
        document.pop(name, None)
    else:
        document[name] = value
