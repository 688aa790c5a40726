"""Who may see and change rules, alerts and silences: decided by their source, which may be a pattern.

What names one source belongs to that source. What names a pattern belongs to all of them, also to those that will come.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db import transaction
from django.db.models import Q

from jobs_admin import config
from jobs_admin.core.refused import Refused
from jobs_admin.db import audit
from jobs_admin.models import Alert, Rule, SavedView
from jobs_admin.models.access import EVERY_SOURCE, OPERATOR, Viewer
from jobs_admin.rights import alert_sight, view_sight


def may_see(viewer: Viewer, rule: Rule) -> bool:
    """What a view finds is its owner's sight; who may not see the view does not see the rule on it."""
    if rule.deleted_at is not None or not viewer.sees_any_of(rule.source):
        return False
    return rule.view is None or sees_view(viewer, rule.view)


def sees_view(viewer: Viewer, view: SavedView) -> bool:
    own = viewer.user_id is not None and view.owner_id == viewer.user_id
    if own or viewer.sources() is None:
        return True
    return view.pk in view_sight.readable(viewer)


def may_change(viewer: Viewer, rule: Rule) -> bool:
    return not config.is_read_only() and may_see(viewer, rule) and holds(viewer, rule.source)


def holds(viewer: Viewer, source: str) -> bool:
    """Operator on the source; on every source where it is a pattern."""
    return viewer.may(OPERATOR, owner(source))


def must_hold(viewer: Viewer, sources: Iterable[str], what: str) -> None:
    """Raises Refused; `note` it where that does not end with the transaction. `what`: "This rule"."""
    if config.is_read_only():
        raise Refused("read_only", config.READ_ONLY)
    for source in sources:
        if not holds(viewer, source):
            where = "every source, because it is about more than one" if owner(source) == EVERY_SOURCE else source
            raise Refused("forbidden", f"{what} takes the role operator on {where}. Nothing was changed.", "source")


def visible_alerts(viewer: Viewer) -> Q:
    return alert_sight.visible(viewer)


def source_of(alert: Alert) -> str:
    """Whose operators act on it: every source's, where it is of none in particular."""
    return alert.source or EVERY_SOURCE


owner = alert_sight.owner


def audited(sources: Iterable[str]) -> list[str]:
    """One row of the audit each, so that the admin of one source reads what was done there."""
    return sorted({"" if owner(source) == EVERY_SOURCE else source for source in sources}) or [""]


def note(viewer: Viewer, act: str, name: str, refused: Refused, sources: Iterable[str]) -> None:
    """Write down that an act was refused for want of a right; what was merely wrong is not written down."""
    if refused.code in ("forbidden", "read_only"):
        with transaction.atomic():
            for source in audited(sources):
                audit.record(viewer, act, name, source=source, reason=refused.message, allowed=False)
