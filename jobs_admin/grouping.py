"""Changes to a group by a person: its state, who looks after it, note and runbook."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.validators import URLValidator
from django.db import transaction
from django.utils import timezone

from jobs_admin import audit, config
from jobs_admin.models import FailureCount, Group
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.models.group import GroupState

# What a person may make of a group; `new` and `regressed` are what the engine finds.
STATES = (GroupState.ONGOING, GroupState.RESOLVED, GroupState.MUTED)
_CHANGEABLE = ("state", "muted_until", "assignee", "note", "runbook_url")
_is_url = URLValidator(schemes=["http", "https"])  # it becomes a link: no javascript: address


class ChangeRefused(Exception):
    """Nothing was changed. `field` names the input that is to blame."""

    def __init__(self, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.field = code, message, field


def change(
    viewer: Viewer, group: Group, changes: dict[str, Any], *, reason: str = "", now: datetime | None = None
) -> Group:
    """Change some of state, muted_until, assignee (a user's name, "" for nobody), note, runbook_url.

    Takes the role operator on every source in which the group has failures. Raises ChangeRefused.
    """
    now = now or timezone.now()
    _may(viewer, group)
    values = _values(changes, now)
    shown = [name for name in _CHANGEABLE if name in changes]
    with transaction.atomic():
        held = Group.objects.select_for_update(of=("self",)).select_related("assignee").get(pk=group.pk)
        before = _plain(held, shown)
        Group.objects.filter(pk=group.pk).update(**values)
        after_row = Group.objects.select_related("assignee").get(pk=group.pk)
        audit.record(
            viewer,
            "group.change",
            f"group:{group.fingerprint}",
            reason=reason,
            before=before,
            after=_plain(after_row, shown),
        )
    return after_row


def _may(viewer: Viewer, group: Group) -> None:
    if config.is_read_only():
        raise ChangeRefused("forbidden", "The desk is read-only (REDRIVE_READ_ONLY). Nothing was changed.")
    sources = FailureCount.objects.filter(group_id=group.pk, count__gt=0).values_list("source", flat=True).distinct()
    refused = sorted(source for source in sources if not viewer.may(OPERATOR, source))
    if refused:
        where = refused[0] if viewer.role_on(refused[0]) else "a source"
        message = f"The group has failures of {where}, where you are not operator. Nothing was changed."
        with transaction.atomic():
            audit.record(
                viewer, "group.change", f"group:{group.fingerprint}", source=refused[0], reason=message, allowed=False
            )
        raise ChangeRefused("forbidden", message)


def _values(changes: dict[str, Any], now: datetime) -> dict[str, Any]:
    """The columns to write."""
    values: dict[str, Any] = {}
    if (state := changes.get("state")) is not None:
        if state not in STATES:
            raise ChangeRefused("invalid", f"A group can be made {', '.join(STATES)}. Nothing was changed.", "state")
        values |= {"state": state, "regressed_after": "", "resolved_at": now if state == "resolved" else None}
        if state != GroupState.MUTED:
            values |= {"muted_until": None, "muted_until_count": None}
    if (until := changes.get("muted_until")) is not None:
        if state != GroupState.MUTED:
            raise ChangeRefused("invalid", "muted_until goes with the state muted. Nothing was changed.", "muted_until")
        if timezone.is_naive(until) or until <= now:
            raise ChangeRefused("invalid", "muted_until must be a time to come, with its zone.", "muted_until")
        values["muted_until"] = until
    if "assignee" in changes:
        values["assignee"] = _user(changes["assignee"])
    if (note := changes.get("note")) is not None:
        values["note"] = note
    if (address := changes.get("runbook_url")) is not None:
        values["runbook_url"] = _address(address)
    if not values:
        raise ChangeRefused("invalid", f"Nothing to change: give one of {', '.join(_CHANGEABLE)}.")
    return values


def _user(name: str | None) -> Any:
    if not name:
        return None
    found = get_user_model().objects.filter(username=name, is_active=True).first()
    if found is None:
        raise ChangeRefused("invalid", f"There is no active user {name!r}. Nothing was changed.", "assignee")
    return found


def _address(address: str) -> str:
    try:
        if address:
            _is_url(address)
    except ValidationError as error:
        raise ChangeRefused("invalid", "Give an http or https address. Nothing was changed.", "runbook_url") from error
    return address


def _plain(group: Group, names: list[str]) -> dict[str, Any]:
    values = {name: getattr(group, name) for name in names}
    if "assignee" in values:
        values["assignee"] = group.assignee.get_username() if group.assignee else None
    if values.get("muted_until"):
        values["muted_until"] = values["muted_until"].isoformat()
    return values
