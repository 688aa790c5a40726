"""Searches worth keeping: save, change, share, delete. A view is its query as it was written, so `age:<2h` stays true.

A view belongs to whoever saved it; others read it once it is shared, as far as `view_sight` lets them. What it finds is
always what its reader may see.
"""

from __future__ import annotations

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
from jobs_admin.failures import list_columns
from jobs_admin.models import Alert, AuditEvent, Rule, SavedView
from jobs_admin.models.access import ADMIN, EVERY_SOURCE, OPERATOR, VIEWER, Viewer
from jobs_admin.models.alert import AlertState
from jobs_admin.rights import view_sight

LONGEST_NAME = 100
MOST_OF_ONE = 200  # views of one owner
_CHANGEABLE = ("name", "query", "columns", "is_shared")


def listing(viewer: Viewer) -> list[SavedView]:
    """The viewer's own views, then those that others share, each by name."""
    own = Q(owner_id=viewer.user_id) if viewer.user_id is not None else Q(owner=None)
    found = SavedView.objects.filter(own | Q(pk__in=view_sight.readable(viewer))).select_related("owner")
    return sorted(found, key=lambda view: (view.owner_id != viewer.user_id, view.name.casefold(), view.pk))


def get(viewer: Viewer, pk: int) -> SavedView:
    """One view. Raises SavedView.DoesNotExist, also for what is not the viewer's and not shared."""
    found = SavedView.objects.select_related("owner").get(pk=pk)
    if not (_is_own(viewer, found) or _is_admin(viewer) or pk in view_sight.readable(viewer)):
        raise SavedView.DoesNotExist
    return found


def count(viewer: Viewer, view: SavedView) -> failures.Count:
    return failures.count(viewer, language.parse(view.query))


def may_change(viewer: Viewer, view: SavedView) -> bool:
    """Return whether the viewer is its owner, or admin of every source."""
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

    What is found by a view that a rule watches is what the rule watches: another query takes what changing the rule takes.
    """
    _authorize(viewer, "view.change", view)
    values = _values(viewer, changes, view)
    try:
        with transaction.atomic():
            # Rules before the view, as who changes a rule locks them.
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
    """Raises Refused."""
    _authorize(viewer, "view.delete", view)
    if Rule.objects.filter(view_id=view.pk).exists():
        raise Refused("in_use", "An alert rule uses this view. Nothing was changed. Change the rule first.")
    with transaction.atomic():
        if SavedView.objects.filter(pk=view.pk).delete()[0]:
            audit.record(viewer, "view.delete", f"view:{view.pk}", before=_plain(view))


class _NotTheirRule(Exception):
    """A rule watches the view, and only others may change what it watches. `source`: of the audit."""

    def __init__(self, message: str, source: str) -> None:
        super().__init__(message)
        self.source = source


def _change_watching(viewer: Viewer, view: SavedView, before: Mapping[str, Any]) -> list[audit.Entry]:
    """The rules that watch the view go on with it as it is now, and their open alerts under its name. What to write down."""
    after, entries = _plain(view), []
    changed = [name for name in ("name", "query") if before[name] != after[name]]
    watching = Rule.objects.filter(view_id=view.pk, deleted_at=None).order_by("pk") if changed else []
    for rule in watching:
        owner = owner_of(rule.source)
        source = "" if owner == EVERY_SOURCE else owner
        if "query" in changed and rule.enabled and not viewer.may(OPERATOR, owner):
            raise _NotTheirRule(_not_theirs(viewer, rule, source), source)
        # A round of judging that read the view before changes nothing now.
        Rule.objects.filter(pk=rule.pk).update(changed_at=timezone.now(), changed_by=viewer.name[:150])
        open_ = Alert.objects.filter(rule=rule).exclude(state=AlertState.RESOLVED)
        open_.filter(subject=str(before["name"])[:255]).update(subject=view.name[:255])
        was, is_ = {"name": rule.name}, {"name": rule.name}
        of_source = Viewer(name="", roles={owner: VIEWER})
        if before["is_shared"] and view.pk in view_sight.readable(of_source):  # else what it says is its readers'
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
        values["columns"] = list_columns.parse([str(one) for one in changes["columns"]])
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
    """Return whether a token of this name saved it, so that a new key keeps its views: the audit has the name."""
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
