"""The nearest valid policy of a draft: a refused field has its value in force, and the error beside its input."""

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


def nearest_policy(
    draft: Draft,
    name: str,
    viewer: Viewer,
    now: datetime,
    *,
    in_force_document: Mapping[str, Any],
    is_reported: bool = False,
) -> tuple[core.Policy, dict[str, Any], bool]:
    """Return the nearest policy, its normal form, and whether it is the complete draft. Adds refusals to the draft's
    errors unless `is_reported`. `in_force_document`: the source of the values of refused fields.
    """
    document = draft.document(now)
    document["name"] = document.get("name") or name
    try:
        found = policies.check(viewer, document["name"], document)
        return found, core.document(found), True
    except Refused as refused:
        if not is_reported:
            draft.refuse(problems(refused))
    for n in range(_TRIES):
        try:
            found = core.parse(document)
            return found, core.document(found), n == 0
        except Refused as refused:
            for problem in refused.details["problems"]:
                _fall_back(document, problem.field, {**in_force_document, "name": name})
    return core.Policy(name=name), core.document(core.Policy(name=name)), False


def problems(refused: Refused) -> list[core.Problem]:
    """All that is wrong with a draft."""
    return refused.details.get("problems") or [core.Problem(refused.field or "", refused.message)]


def _fall_back(document: dict[str, Any], path: str, in_force_document: Mapping[str, Any]) -> None:
    """Set the field to its value in force; drop it (a list as one) if it has none, or that was refused too."""
    name, _, rest = path.partition(".")
    inner, before = document.get(name), in_force_document.get(name)
    if rest and isinstance(inner, dict):
        _fall_back(inner, rest, before if isinstance(before, dict) else {})
    elif before is not None and before != inner:
        document[name] = deepcopy(before)
    else:
        document.pop(name, None)


def merge(was: Mapping[str, Any], now: Mapping[str, Any], yours: Mapping[str, Any]) -> dict[str, Any]:
    """Return your document with the changes of others in the fields that you did not change."""
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
