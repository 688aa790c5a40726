"""Automations, their diaries and owners, as far as a viewer may read them.

An automation has the rights of its owner at the time of the act, limited to its source.
"""

from __future__ import annotations

from dataclasses import dataclass

from jobs_admin.core.refused import NotFound
from jobs_admin.core.text import representable, whole_number
from jobs_admin.db.authorizing import may_write
from jobs_admin.models import Automation, AutomationDecision
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer, viewer_of, viewer_of_token
from jobs_admin.models.automation import AutomationMode

STATES = (AutomationMode.DRY_RUN.value, AutomationMode.AWAITING_APPROVAL.value, AutomationMode.LIVE.value, "tripped")


@dataclass(frozen=True, slots=True)
class DiaryPage:
    rows: list[AutomationDecision]
    next: str | None
    count: int  # number of decisions in the diary


def listing(viewer: Viewer) -> list[Automation]:
    """Return the automations, by name."""
    found = Automation.objects.select_related("rule", "owner", "owner_token__owner").order_by("name")
    return [one for one in found if sees(viewer, one)]


def get(viewer: Viewer, name: str) -> Automation:
    """Return an automation. Raises NotFound."""
    found = (
        Automation.objects.select_related("rule", "owner", "owner_token__owner")
        .filter(name=representable(name)[:64])
        .first()
    )
    if found is None or not sees(viewer, found):
        raise NotFound("No such automation, or you cannot view its source.")
    return found


def sees(viewer: Viewer, automation: Automation) -> bool:
    return viewer.may(VIEWER, automation.source)


def may_change(viewer: Viewer, automation: Automation) -> bool:
    return may_write(viewer, OPERATOR, automation.source)


def state(automation: Automation) -> str:
    """Return its mode, or `tripped`."""
    is_tripped = automation.mode == AutomationMode.LIVE and automation.tripped_at is not None
    return "tripped" if is_tripped else automation.mode


def diary(automation: Automation, *, after: str | None = None, limit: int = 50) -> DiaryPage:
    """Return the decisions, latest first."""
    found = AutomationDecision.objects.filter(automation=automation).defer("selection").select_related("replay")
    count = found.count()
    if (below := whole_number(after)) is not None:
        found = found.filter(n__lt=below)
    rows = list(found.order_by("-n")[: limit + 1])
    return DiaryPage(rows[:limit], str(rows[limit - 1].n) if len(rows) > limit else None, count)


def find_starter(viewer: Viewer, replay: int) -> Automation | None:
    """Return the automation that started a replay; None if none did, or it is not visible."""
    decision = AutomationDecision.objects.filter(replay=replay).select_related("automation").first()
    return decision.automation if decision is not None and sees(viewer, decision.automation) else None


def set_owner(automation: Automation, viewer: Viewer) -> None:
    """Set the viewer as the owner, in memory."""
    automation.owner_name = viewer.name[:150]
    automation.owner_id = viewer.user_id
    automation.owner_token_id = viewer.token_id


def is_known(automation: Automation) -> bool:
    """Return whether the owner is a person or a token: the rights of a terminal cannot be checked later."""
    return automation.owner_id is not None or automation.owner_token_id is not None


def acting_viewer(automation: Automation) -> Viewer | None:
    """Return the viewer as which it acts; None if the owner is no longer operator of its source."""
    owner = None
    if automation.owner is not None:
        owner = viewer_of(automation.owner)
    elif automation.owner_token is not None:
        owner = viewer_of_token(automation.owner_token)
    if owner is None or not owner.may(OPERATOR, automation.source):
        return None
    return Viewer(owner.name, {automation.source: OPERATOR}, owner.user_id, owner.token_id, owner.owner_id)


def lost_role_reason(automation: Automation) -> str:
    where = "every source" if automation.source == "*" else automation.source
    return f"{automation.owner_name} is no longer operator of {where}. Another operator must enable the automation."
