"""Links between accounts and Slack users: made by a code and its confirmation, found at each press, ended.

A link is made from both sides. The account page shows a code to the person who is logged in, that person's Slack user sends
it, and the page asks to confirm the Slack user that sent it. A link that begins in Slack would be unsafe: its address could be
sent to an operator, whose confirmation would let a stranger's Slack user act as the operator.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from jobs_admin import config
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable
from jobs_admin.db import audit
from jobs_admin.models import SlackLink
from jobs_admin.models.access import ENGINE, Viewer

WITHIN = timedelta(minutes=10)  # from the code to its confirmation
_ALPHABET = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"  # none that look alike; 5 bits each
_LENGTH = 12
_ID = re.compile(r"[A-Z0-9]{1,20}", re.ASCII)


def make_code(viewer: Viewer, user: Any) -> str:
    """Return a new code that links the Slack user who sends it, after a confirmation. Raises Refused."""
    _refuse_if_read_only()
    code = "".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH))
    row = {"code_sha256": _digest(code), "expires_at": timezone.now() + WITHIN, "linked_at": None, "session_hash": ""}
    row |= {"team": "", "member": "", "member_name": ""}
    with transaction.atomic():
        found = SlackLink.objects.select_for_update().filter(user=user).first()
        if found is not None and found.linked_at is not None and _is_in_force(found, user):
            raise Refused("wrong_state", "Your account is already linked. Unlink it first. Nothing was changed.")
        SlackLink.objects.update_or_create(user=user, defaults=row)
    return "-".join(code[at : at + 4] for at in range(0, _LENGTH, 4))


def redeem_code(team: str, member: str, name: str, code: str) -> str:
    """Record that this Slack user sent the code, once, and return the name of its account. Raises Refused."""
    _refuse_if_read_only()
    typed = re.sub(r"[\s-]", "", code).upper()
    if not (is_id(team) and is_id(member)) or len(typed) != _LENGTH:
        raise Refused("invalid", "This is not a code from your account page in Redrive. Nothing was changed.")
    if find_user(team, member) is not None:
        raise Refused("taken", "This Slack user is already linked to a Redrive account. Nothing was changed.")
    for ended in SlackLink.objects.filter(team=team, member=member, linked_at__isnull=False).select_related("user"):
        unlink(ENGINE, ended.user)  # not in force, and would prevent the confirmation
    open_codes = SlackLink.objects.filter(linked_at=None, expires_at__gt=timezone.now(), user__is_active=True)
    row = open_codes.filter(code_sha256=_digest(typed)).select_related("user").first()
    sent = {"code_sha256": "", "team": team, "member": member, "member_name": representable(name)[:80]}
    if row is None or not open_codes.filter(pk=row.pk, code_sha256=row.code_sha256).update(**sent):
        raise Refused("invalid", "This code is wrong, used or expired. Create a new one. Nothing was changed.")
    return row.user.get_username()


def read(user: Any) -> SlackLink | None:
    """Return the link that is in force or awaits its confirmation; None if there is none."""
    row = SlackLink.objects.filter(user=user).first()
    if row is None or not row.team:
        return None
    is_open = row.expires_at > timezone.now() if row.linked_at is None else _is_in_force(row, user)
    return row if is_open else None


def confirm(viewer: Viewer, user: Any, team: str, member: str) -> None:
    """Link the Slack user who sent the code and was shown to the person, whose password was checked. Raises Refused."""
    now = timezone.now()
    try:
        with transaction.atomic():
            waiting = SlackLink.objects.filter(user=user, linked_at=None, expires_at__gt=now, team=team, member=member)
            linked = (
                is_id(team)
                and is_id(member)
                and waiting.update(linked_at=now, session_hash=user.get_session_auth_hash())
            )
            if linked:
                after = {"team": team, "member": member}
                audit.record(viewer, "slack.link", f"user:{user.get_username()}", after=after)
    except IntegrityError as error:
        raise Refused("taken", "This Slack user is already linked to another account. Nothing was changed.") from error
    if not linked:
        raise Refused("wrong_state", "This code is used or expired. Create a new one. Nothing was changed.")


def unlink(viewer: Viewer, user: Any) -> bool:
    """Delete the link, or the code for one. Return whether there was a link."""
    with transaction.atomic():
        row = SlackLink.objects.select_for_update().filter(user=user).first()
        if row is None:
            return False
        row.delete()
        if row.linked_at is None:
            return False
        before = {"team": row.team, "member": row.member}
        audit.record(viewer, "slack.unlink", f"user:{user.get_username()}", before=before)
    return True


def find_user(team: str, member: str) -> Any:
    """Return the active account that this Slack user is linked to; None if there is none."""
    linked = SlackLink.objects.filter(team=team, member=member, linked_at__isnull=False, user__is_active=True)
    row = linked.select_related("user").first() if is_id(team) and is_id(member) else None
    return row.user if row is not None and _is_in_force(row, row.user) else None


def _is_in_force(row: SlackLink, user: Any) -> bool:
    current = (user.get_session_auth_hash(), *user.get_session_auth_fallback_hash())
    return any(constant_time_compare(row.session_hash, one) for one in current)


def _refuse_if_read_only() -> None:
    if config.is_read_only():
        raise Refused("read_only", config.READ_ONLY)


def is_id(text: str) -> bool:
    """Return whether `text` can be Slack's id of a workspace or user."""
    return _ID.fullmatch(text) is not None


def _digest(code: str) -> str:
    return hashlib.sha256(code.replace("-", "").encode()).hexdigest()
