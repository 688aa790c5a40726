"""Saved views: save, change, share, delete; and the columns that a person chose for the failure list.

A view stores its query as written, so `age:<2h` stays relative. The page defines the columns; they are names here.

A view belongs to the person who saved it; others can read it once it is shared, within the limits of `view_sight`. Its
results are always those that the reader may see.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from jobs_admin import config, failures
from jobs_admin.core import query as language
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable
from jobs_admin.db import audit
from jobs_admin.db.authorizing import authorize, note, refuse
from jobs_admin.db.authorizing import owner as owner_of
from jobs_admin.models import Alert, AuditEvent, ListColumns, Rule, SavedView
from jobs_admin.models.access import ADMIN, EVERY_SOURCE, OPERATOR, VIEWER, Viewer
from jobs_admin.models.alert import AlertState
from jobs_admin.rights import view_sight

LONGEST_NAME = 100
MOST_OF_ONE = 200  # views per owner
_CHANGEABLE = ("name", "query", "columns", "is_shared")

MOST_COLUMNS = 8
_COLUMN_NAME = re.compile(r"[a-z][a-z_]{0,39}")


def listing(viewer: Viewer) -> list[SavedView]:
    """Return the viewer's own views, then those that others share, each by name."""
    own = Q(owner_id=viewer.user_id) if viewer.user_id is not None else Q(owner=None)
    found = SavedView.objects.filter(own | Q(pk__in=view_sight.readable(viewer))).select_related("owner")
    return sorted(found, key=lambda view: (view.owner_id != viewer.user_id, view.name.casefold(), view.pk))


def get(viewer: Viewer, pk: int) -> SavedView:
    """Return one view. Raises SavedView.DoesNotExist, also if it belongs to someone else and is not shared."""
    found = SavedView.objects.select_related("owner").get(pk=pk)
    if not (_is_own(viewer, found) or _is_admin(viewer) or pk in view_sight.readable(viewer)):
        raise SavedView.DoesNotExist
    return found


def count(viewer: Viewer, view: SavedView) -> failures.Count:
    return failures.count(viewer, language.parse(view.query))


def may_change(viewer: Viewer, view: SavedView) -> bool:
    """Return whether the viewer owns the view or is admin of every source."""
    return not config.is_read_only() and viewer.may_anywhere(VIEWER) and (_is_own(viewer, view) or _is_admin(viewer))


def save(viewer: Viewer, *, name: str, query: str, columns: Sequence[str] = (), is_shared: bool = False) -> SavedView:
    """Save a search under a name. A token's view has no owner and is always shared. Raises Refused."""
    _authorize(viewer, "view.save")
    is_shared = is_shared or viewer.user_id is None
    view = SavedView(
        owner_id=viewer.user_id,
        **_values(viewer, {"name": name, "query": query, "columns": columns, "is_shared": is_shared}),
    )
    if _of_owner(viewer.user_id).count() >= MOST_OF_ONE:
        raise Refused(
            "too_many", f"You have reached the limit of {MOST_OF_ONE} views. Nothing was changed. Delete a view first."
        )
    with transaction.atomic():
        _store(view)
        audit.record(viewer, "view.save", f"view:{view.pk}", after=_plain(view))
    return view


def change(viewer: Viewer, view: SavedView, changes: Mapping[str, Any]) -> SavedView:
    """Change some of name, query, columns, is_shared. Raises Refused.

    If an alert rule watches the view, a new query changes the rule, and requires the right to change the rule.
    """
    _authorize(viewer, "view.change", view)
    values = _values(viewer, changes, view)
    try:
        with transaction.atomic():
            # In the lock order of changing a rule: rules before the view.
            list(Rule.objects.select_for_update().filter(view_id=view.pk, deleted_at=None).order_by("pk"))
            row = SavedView.objects.select_for_update().get(pk=view.pk)
            before = _plain(row)
            for field, value in values.items():
                setattr(row, field, value)
            _store(row)
            entries = _change_watching(viewer, row, before)
            audit.record(viewer, "view.change", f"view:{row.pk}", before=before, after=_plain(row))
            audit.record_all(viewer, "rule.change", entries)
    except _NotTheirRule as refused:
        note(viewer, "view.change", f"view:{view.pk}", str(refused), [refused.source, ""])
        raise Refused("forbidden", str(refused), "query") from refused
    return get(viewer, row.pk)


def delete(viewer: Viewer, view: SavedView) -> None:
    """Delete a view. Raises Refused."""
    _authorize(viewer, "view.delete", view)
    if Rule.objects.filter(view_id=view.pk).exists():
        raise Refused("in_use", "An alert rule uses this view. Nothing was changed. Change the rule first.")
    with transaction.atomic():
        if SavedView.objects.filter(pk=view.pk).delete()[0]:
            audit.record(viewer, "view.delete", f"view:{view.pk}", before=_plain(view))


class _NotTheirRule(Exception):
    """An alert rule that the viewer may not change watches the view. `source`: for the audit."""

    def __init__(self, message: str, source: str) -> None:
        super().__init__(message)
        self.source = source


def _change_watching(viewer: Viewer, view: SavedView, before: Mapping[str, Any]) -> list[audit.Entry]:
    """Apply the change to the alert rules that watch the view and to their open alerts. Return the audit entries."""
    after, entries = _plain(view), []
    changed = [name for name in ("name", "query") if before[name] != after[name]]
    watching = Rule.objects.filter(view_id=view.pk, deleted_at=None).order_by("pk") if changed else []
    for rule in watching:
        owner = owner_of(rule.source)
        source = "" if owner == EVERY_SOURCE else owner
        if "query" in changed and rule.enabled and not viewer.may(OPERATOR, owner):
            raise _NotTheirRule(_not_theirs(viewer, rule, source), source)
        # A concurrent evaluation that read the old view then writes nothing.
        Rule.objects.filter(pk=rule.pk).update(changed_at=timezone.now(), changed_by=viewer.name[:150])
        open_ = Alert.objects.filter(rule=rule).exclude(state=AlertState.RESOLVED)
        open_.filter(subject=str(before["name"])[:255]).update(subject=view.name[:255])
        was, is_ = {"name": rule.name}, {"name": rule.name}
        of_source = Viewer(name="", roles={owner: VIEWER})
        if before["is_shared"] and view.pk in view_sight.readable(of_source):  # else only its readers may see it
            was |= {f"view_{name}": before[name] for name in changed}
            is_ |= {f"view_{name}": after[name] for name in changed}
        why = f"The view of this rule was changed: its {' and its '.join(changed)}."
        entries.append(audit.Entry(f"alert-rule:{rule.pk}", source=source, reason=why, before=was, after=is_))
    return entries


def _not_theirs(viewer: Viewer, rule: Rule, source: str) -> str:
    if not viewer.sees_any_of(rule.source):
        return "An alert rule of a source that you cannot see uses this view. Nothing was changed."
    where = source or "every source"
    return (
        f"The alert rule “{rule.name}” uses this view. Changing its search needs the role operator on {where}. Nothing "
        "was changed."
    )


def _store(view: SavedView) -> None:
    try:
        with transaction.atomic():
            view.save()
    except IntegrityError as error:
        if not _of_owner(view.owner_id).filter(name=view.name).exclude(pk=view.pk).exists():
            raise
        raise Refused("taken", f"A view “{view.name}” already exists. Nothing was changed.", "name") from error


def _of_owner(owner_id: int | None) -> QuerySet[SavedView]:
    return SavedView.objects.filter(owner_id=owner_id) if owner_id is not None else SavedView.objects.filter(owner=None)


def _values(viewer: Viewer, changes: Mapping[str, Any], view: SavedView | None = None) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if "name" in changes:
        name = " ".join(representable(str(changes["name"])).split())
        if not name or len(name) > LONGEST_NAME:
            raise Refused("invalid", f"The name must have 1 to {LONGEST_NAME} characters.", "name")
        values["name"] = name
    if "query" in changes:
        query = representable(str(changes["query"])).strip()
        if language.parse(query).is_cut:
            raise Refused(
                "invalid", "The search is too long to save. Nothing was changed. Shorten the search.", "query"
            )
        values["query"] = query
    if "columns" in changes:
        values["columns"] = parse_columns([str(one) for one in changes["columns"]])
    if "is_shared" in changes:
        values["is_shared"] = bool(changes["is_shared"])
        begins = values["is_shared"] and not (view is not None and view.is_shared)
        if begins and not viewer.may_anywhere(OPERATOR):
            raise Refused("forbidden", "Sharing a view needs the role operator. Nothing was changed.", "is_shared")
        if not values["is_shared"] and view is not None and view.owner_id is None:
            raise Refused("invalid", "A view saved by a token is always shared. Nothing was changed.", "is_shared")
    if not values:
        raise Refused("invalid", f"Nothing to change: pass one of {', '.join(_CHANGEABLE)}.")
    return values


def _is_own(viewer: Viewer, view: SavedView) -> bool:
    if viewer.user_id is None:
        return view.owner_id is None and viewer.may_anywhere(OPERATOR) and _is_of_token(viewer, view)
    return view.owner_id == viewer.user_id


def _is_of_token(viewer: Viewer, view: SavedView) -> bool:
    """Return whether a token of this name saved it, according to the audit, so that a new key keeps its views."""
    saved = AuditEvent.objects.filter(object=f"view:{view.pk}", act="view.save", allowed=True)
    return viewer.token_id is not None and saved.filter(token_id__isnull=False, actor=viewer.name[:150]).exists()


def _is_admin(viewer: Viewer) -> bool:
    return viewer.may(ADMIN, EVERY_SOURCE)


def _authorize(viewer: Viewer, act: str, view: SavedView | None = None) -> None:
    name = f"view:{view.pk}" if view is not None else ""
    if view is not None and not config.is_read_only() and not may_change(viewer, view):
        message = "Only the owner or an admin of every source can do that. Nothing was changed."
        refuse(viewer, act, name, Refused("forbidden", message))
    role = OPERATOR if viewer.user_id is None else VIEWER
    authorize(viewer, role, None, act, name, message="Your role does not allow this. Nothing was changed.")


def _plain(view: SavedView) -> dict[str, Any]:
    columns = {"columns": view.columns} if view.columns else {}
    return {"name": view.name, "query": view.query, **columns, "is_shared": view.is_shared}


def read_columns(viewer: Viewer) -> list[str]:
    """Return the names of the chosen columns; empty for the default."""
    if viewer.user_id is None:
        return []
    return ListColumns.objects.filter(user_id=viewer.user_id).values_list("names", flat=True).first() or []


def choose_columns(viewer: Viewer, names: Sequence[str]) -> None:
    """Store the columns; an empty choice restores the default. Raises Refused."""
    authorize(
        viewer, VIEWER, None, "columns.choose", "columns", message="Your role does not allow this. Nothing was changed."
    )
    if viewer.user_id is None:
        raise Refused("invalid", "A token has no columns of its own. Nothing was changed.")
    wanted = parse_columns(names)
    with transaction.atomic():
        before = read_columns(viewer)
        if wanted:
            ListColumns.objects.update_or_create(user_id=viewer.user_id, defaults={"names": wanted})
        else:
            ListColumns.objects.filter(user_id=viewer.user_id).delete()
        audit.record(viewer, "columns.choose", "columns", before={"names": before}, after={"names": wanted})


def parse_columns(names: Sequence[str]) -> list[str]:
    """Return the names without duplicates. Raises Refused for more than MOST_COLUMNS, and for an invalid name."""
    found = list(dict.fromkeys(names))
    if len(found) > MOST_COLUMNS or not all(_COLUMN_NAME.fullmatch(one) for one in found):
        raise Refused("invalid", f"Choose at most {MOST_COLUMNS} columns. Nothing was changed.", "columns")
    return found
