"""Differences between two policies by field, with the editor's labels; versions of a policy, and their changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from django.urls import reverse

from dashboard.policies import words as policy_words
from dashboard.policies.fields import LABELS
from dashboard.policies.forms import EXPIRES_AT, KINDS
from dashboard.web import moments
from jobs_admin import policies
from jobs_admin.models import PolicyVersion
from jobs_admin.models.access import Viewer

NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    values: tuple[str, ...]  # before, after; of a stale edit: begun from, in force, yours


def lines(changes: Iterable[Any], *names: str) -> list[Line]:
    """Return lines of changes. Each of `changes` has a dotted `field` and a value for each of `names`."""
    return [
        Line(label(one.field), tuple(editor_text(one.field, getattr(one, name)) for name in names)) for one in changes
    ]


def label(path: str) -> str:
    if path in LABELS:
        parent, _, part = path.partition(".")
        return f"{LABELS[parent]}: {LABELS[path].lower()}" if part and parent in LABELS else LABELS[path]
    return path


def editor_text(path: str, value: Any) -> str:
    """Return a value of a document as the editor shows it."""
    if value is None or value == "" or value == []:
        return NOTHING
    if isinstance(value, bool) or value == {}:  # a part whose fields all have their defaults
        return "yes" if value or value == {} else "no"
    if path == EXPIRES_AT:
        at = moments.local(datetime.fromisoformat(str(value)))
        return f"{at.isoformat(sep=' ')[:19].removesuffix(':00')} {moments.zone_name(at)}"
    if path in KINDS:
        return KINDS[path].write(value)
    if path == "classes":
        return "; ".join(f"{one.get('error')}: {str(one.get('as')).replace('_', ' ')}" for one in value)
    return str(value)


MOST_SHOWN = 6  # changes of a version shown at once


@dataclass(frozen=True, slots=True)
class VersionLine:
    version: PolicyVersion
    summary: str
    changes: list[Line]  # changes from the previous version; empty if there are none
    is_first: bool  # there is no previous version
    is_current: bool
    may_put_back: bool
    compare_url: str  # comparison with the version in force; "" for that version itself
    edit_url: str


def version_lines(
    shown: Sequence[PolicyVersion], known: Sequence[PolicyVersion], current: PolicyVersion | None, viewer: Viewer
) -> list[VersionLine]:
    """Return lines of versions. `known`: those shown, and the one before them."""
    before = {one.version: older for one, older in pairwise(known)}
    return [_version_line(one, before.get(one.version), current, viewer) for one in shown]


def _version_line(
    version: PolicyVersion, before: PolicyVersion | None, current: PolicyVersion | None, viewer: Viewer
) -> VersionLine:
    is_current = bool(current and current.version == version.version)
    address = reverse("redrive:policy-versions", args=[version.name])
    curve, often = policy_words.in_brief(version)
    compare = f"{address}?left={version.version}&right={current.version}" if current and not is_current else ""
    return VersionLine(
        version,
        f"{often}: {curve}",
        version_changes(before, version) if before else [],
        before is None,
        is_current,
        not is_current and policies.may_publish(viewer, version.match_source),
        compare,
        f"{reverse('redrive:policy-detail', args=[version.name])}?from={version.version}" if compare else "",
    )


def version_changes(before: PolicyVersion, after: PolicyVersion) -> list[Any]:
    found = policies.difference(before.document, after.document)
    return lines(found, "before", "after")
