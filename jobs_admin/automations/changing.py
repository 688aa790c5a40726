"""Create, change, enable, approve, disable, reset, delete, and stop automations."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from jobs_admin.automations import deciding, documents, reading
from jobs_admin.core.figures import dated
from jobs_admin.core.refused import Refused
from jobs_admin.db.authorizing import authorize, refuse, second_person_refusal
from jobs_admin.models import Automation
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.models.automation import AutomationMode

MOST = 200  # automations of a desk


def check(viewer: Viewer, document: object) -> Automation:
    """Return the automation of a document, without storing it, for a dry run. Raises Refused."""
    return Automation(name="", owner_name=viewer.name[:150], **documents.parse(viewer, document))


def create(viewer: Viewer, name: str, document: object) -> Automation:
    """Create an automation, in dry run until it is enabled. Raises Refused."""
    documents.parse_name(name)
    _authorize(viewer, "", "automation.create", name)
    values = documents.parse(viewer, document)
    _authorize(viewer, values["source"], "automation.create", name)
    now = timezone.now()
    made = Automation(name=name, created_at=now, changed_at=now, **values)
    reading.set_owner(made, viewer)
    try:
        with transaction.atomic():
            if Automation.objects.count() >= MOST:
                raise Refused("too_many", f"The limit of {MOST} automations is reached. Nothing was changed.")
            made.save(force_insert=True)
            deciding.record(viewer, "automation.create", made, after=documents.render(made))
    except IntegrityError as error:
        if not Automation.objects.filter(name=name).exists():
            raise
        raise Refused("taken", f"An automation named {name} already exists. Nothing was changed.", "name") from error
    return made


def change(viewer: Viewer, name: str, document: object, *, expected_version: int) -> Automation:
    """Change an automation, which returns to dry run and belongs to the viewer. Raises Refused and NotFound."""
    found = reading.get(viewer, name)
    _authorize(viewer, found.source, "automation.change", name)
    values = documents.parse(viewer, document)
    _authorize(viewer, values["source"], "automation.change", name)

    def update(row: Automation, now: datetime) -> dict[str, Any]:
        if row.version != expected_version:
            at = dated(row.changed_at, now, with_seconds=True)
            message = f"{row.owner_name} changed this automation at {at} UTC: it is at version {row.version}."
            raise Refused("stale", f"{message} Nothing was changed.", "expected_version")
        before = documents.render(row)
        for field, value in values.items():
            setattr(row, field, value)
        row.version += 1
        _to_dry_run(row, "The automation was changed.", now)
        reading.set_owner(row, viewer)
        return {"before": before, "after": documents.render(row)}

    return _changed(viewer, found, "automation.change", update)


def enable(viewer: Viewer, name: str, *, expected_version: int | None = None, reason: str = "") -> Automation:
    """Enable an automation with the viewer's rights; one that discards needs approval. Raises Refused and NotFound."""
    found = reading.get(viewer, name)
    _authorize(viewer, found.source, "automation.enable", name)

    def update(row: Automation, now: datetime) -> dict[str, Any]:
        if expected_version is not None and row.version != expected_version:
            message = f"{row.owner_name} changed this automation: it is at version {row.version}."
            raise Refused("stale", f"{message} Nothing was changed.", "expected_version")
        if row.mode != AutomationMode.DRY_RUN:
            raise _wrong_state(row, "enabled")
        if row.expires_at is not None and row.expires_at <= now:
            raise Refused("wrong_state", f"{row.name} has expired. Change expires_at first. Nothing was changed.")
        reading.set_owner(row, viewer)
        if not reading.is_known(row):
            message = "An automation acts with the rights of a person or a token; a terminal has neither."
            raise Refused("cannot", f"{message} Enable it on its page or with the API. Nothing was changed.")
        row.mode = AutomationMode.AWAITING_APPROVAL if row.act == "discard" else AutomationMode.LIVE
        row.approver, row.tripped_at, row.why_tripped, row.why_not = "", None, "", ""
        row.reset_at = now
        return {"reason": reason, "before": {"mode": AutomationMode.DRY_RUN}, "after": {"mode": row.mode}}

    return _changed(viewer, found, "automation.enable", update)


def approve(viewer: Viewer, name: str, *, expected_version: int | None, reason: str = "") -> Automation:
    """Approve an automation that discards, at the version that the viewer read. Raises Refused and NotFound."""
    found = reading.get(viewer, name)
    _authorize(viewer, found.source, "automation.approve", name)
    if why := approver_refusal(viewer, found):
        refused = Refused("forbidden", f"{why} Nothing was changed.")
        refuse(viewer, "automation.approve", f"automation:{name}", refused, [found.source])

    def update(row: Automation, now: datetime) -> dict[str, Any]:
        if row.version != expected_version:
            message = (
                f"The automation was changed: it is at version {row.version}. Read it again before you approve it."
            )
            raise Refused("stale", f"{message} Nothing was changed.", "expected_version")
        is_same = (row.version, row.owner_name) == (found.version, found.owner_name)
        if row.mode != AutomationMode.AWAITING_APPROVAL or not is_same:
            raise _wrong_state(row, "approved")
        row.mode, row.approver = AutomationMode.LIVE, viewer.name[:150]
        return {"reason": reason, "before": {"mode": AutomationMode.AWAITING_APPROVAL}, "after": {"mode": row.mode}}

    return _changed(viewer, found, "automation.approve", update)


def approver_refusal(viewer: Viewer, automation: Automation) -> str:
    """Return why the viewer cannot approve it; "" if they can."""
    owner = automation.owner_id
    if owner is None and automation.owner_token is not None:
        owner = automation.owner_token.owner_id
    hands = {(automation.owner_name, owner)}
    subject = f"automation {automation.name}"
    return second_person_refusal(viewer, subject, automation.owner_name, hands, [automation.source])


def disable(viewer: Viewer, name: str, *, reason: str = "") -> Automation:
    """Return an automation to dry run. Replays that it started continue. Raises Refused and NotFound."""
    found = reading.get(viewer, name)
    _authorize(viewer, found.source, "automation.disable", name)

    def update(row: Automation, now: datetime) -> dict[str, Any]:
        if row.mode == AutomationMode.DRY_RUN:
            raise _wrong_state(row, "disabled")
        before = {"mode": row.mode}
        _to_dry_run(row, f"Disabled by {viewer.name}.", now)
        return {"reason": reason, "before": before, "after": {"mode": row.mode}}

    return _changed(viewer, found, "automation.disable", update)


def stop_all(viewer: Viewer, *, reason: str = "") -> list[str]:
    """Return every automation of sources where the viewer is operator to dry run; return their names."""
    message = "Stopping automations needs the role {role}. Nothing was changed."
    authorize(viewer, OPERATOR, None, "automation.stop", "automation", message=message)
    stopped = []
    for one in Automation.objects.exclude(mode=AutomationMode.DRY_RUN).order_by("name"):
        if not viewer.may(OPERATOR, one.source):
            continue

        def update(row: Automation, now: datetime) -> dict[str, Any]:
            before = {"mode": row.mode}
            _to_dry_run(row, f"All automations were stopped by {viewer.name}.", now)
            return {"reason": reason, "before": before, "after": {"mode": row.mode}}

        _changed(viewer, one, "automation.stop", update)
        stopped.append(one.name)
    return stopped


def reset(viewer: Viewer, name: str, *, reason: str = "") -> Automation:
    """Reset a tripped automation, which continues with the viewer's rights. Raises Refused and NotFound."""
    found = reading.get(viewer, name)
    _authorize(viewer, found.source, "automation.reset", name)

    def update(row: Automation, now: datetime) -> dict[str, Any]:
        if row.tripped_at is None:
            raise Refused("wrong_state", f"{row.name} is not tripped. Nothing was changed.")
        before = {"tripped_at": row.tripped_at, "why": row.why_tripped}
        if reading.acting_viewer(row) is None:
            message = f"{reading.lost_role_reason(row)} Disable it first. Nothing was changed."
            raise Refused("wrong_state", message)
        row.tripped_at, row.why_tripped, row.reset_at = None, "", now
        return {"reason": reason, "before": before}

    return _changed(viewer, found, "automation.reset", update)


def delete(viewer: Viewer, name: str) -> None:
    """Delete an automation in dry run, with its diary. Raises Refused and NotFound."""
    found = reading.get(viewer, name)
    _authorize(viewer, found.source, "automation.delete", name)
    with transaction.atomic():
        row = Automation.objects.select_for_update(of=("self",)).get(pk=found.pk)
        if row.mode != AutomationMode.DRY_RUN:
            raise Refused("wrong_state", f"{row.name} is not in dry run. Disable it first. Nothing was changed.")
        deciding.record(viewer, "automation.delete", row, before=documents.render(row))
        row.delete()


def _to_dry_run(row: Automation, why: str, now: datetime) -> None:
    row.mode = AutomationMode.DRY_RUN
    row.approver, row.tripped_at, row.why_tripped, row.why_not = "", None, "", ""
    deciding.cancel_planned(row, why, now)


def _changed(
    viewer: Viewer, found: Automation, act: str, update: Callable[[Automation, datetime], dict[str, Any]]
) -> Automation:
    """Change the locked row, and record the act."""
    now = timezone.now()
    with transaction.atomic():
        rows = Automation.objects.select_for_update(of=("self",)).select_related("rule", "owner", "owner_token__owner")
        row = rows.filter(pk=found.pk).first()
        if row is None or row.source != found.source:  # operators of another source have not agreed
            raise Refused("stale", "This automation was just changed or deleted. Nothing was changed.")
        changes = update(row, now)
        row.changed_at = now
        row.save()
        deciding.record(viewer, act, row, **changes)
    return reading.get(viewer, found.name)


def _wrong_state(row: Automation, done: str) -> Refused:
    state = reading.state(row).replace("_", " ")
    return Refused("wrong_state", f"{row.name} is in state {state}, so it cannot be {done}. Nothing was changed.")


def _authorize(viewer: Viewer, source: str, act: str, name: str) -> None:
    message = "This automation needs the role {role} on {where}. Nothing was changed."
    authorize(viewer, OPERATOR, source or None, act, f"automation:{name[:63]}", message=message, field="source")
