"""The policy that can be drawn while somebody types: what is refused is left out of it, and said beside its input."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from datetime import datetime
from typing import Any

from dashboard.policy_forms import Draft
from jobs_admin import policies
from jobs_admin.core import policy as core
from jobs_admin.models.access import Viewer
from jobs_admin.policies.changes import conflicts

_TRIES = 4


def drawable(
    draft: Draft, name: str, viewer: Viewer, now: datetime, *, is_told: bool = False
) -> tuple[core.Policy, dict[str, Any], bool]:
    """The nearest policy, its normal form, and whether it is all of the draft. Notes what is refused in the draft,
    unless that `is_told` already.
    """
    document = draft.document(now) | {"name": name}
    try:
        found = policies.check(viewer, name, document)
        return found, core.document(found), True
    except policies.PolicyRefused as refused:
        if not is_told:
            draft.refuse(refused.problems or [core.Problem(refused.field or "", refused.message)])
    for n in range(_TRIES):
        try:
            found = core.parse(document)
            return found, core.document(found), n == 0
        except core.PolicyRefused as refused:
            for problem in refused.problems:
                _leave_out(document, problem.field)
    return core.Policy(name=name), core.document(core.Policy(name=name)), False


def _leave_out(document: dict[str, Any], path: str) -> None:
    """Without this field; of a list without all of it."""
    name, _, rest = path.partition(".")
    inner = document.get(name)
    if rest and isinstance(inner, dict):
        _leave_out(inner, rest)
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
