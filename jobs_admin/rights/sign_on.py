"""Accounts of people who sign in with an OpenID provider: one per (issuer, subject), with the roles of their groups."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from itertools import count
from typing import Any

from django.contrib.auth import get_user_model
from django.db import IntegrityError, transaction

from jobs_admin import config
from jobs_admin.db import audit
from jobs_admin.models import Identity, Role
from jobs_admin.models.access import ADMIN, CONTROLLER, ENGINE, EVERY_SOURCE, RANK, Viewer, viewer_of

ACT = "login.sign_on"  # in the audit
_ATTEMPTS = 3  # of two simultaneous first sign-ins, one finds the account created by the other
_LONGEST_NAME = 140  # of 150 characters, leaving room for a number
# Names of the desk's own components in the audit, and of the superuser that `up` creates with a password.
_OURS = frozenset({ENGINE.name, CONTROLLER.name, "admin", "automations", "demo", "sign-in", "sign-on", "up"})


@dataclass(frozen=True, slots=True)
class Person:
    """Person as described by the provider's verified token."""

    issuer: str
    subject: str
    name: str  # for display only: it may change, and another account may have it
    groups: frozenset[str]


@dataclass(frozen=True, slots=True)
class Admission:
    user: Any = None  # None: refused
    why: str = ""  # message for a person who is refused


def roles_of(groups: Collection[str]) -> dict[str, str]:
    """Return source -> the strongest role that one of these groups has there (REDRIVE_OIDC_ROLES)."""
    found: dict[str, str] = {}
    for group, source, role in config.setting("OIDC_ROLES"):
        if group in groups and RANK[role] > RANK.get(found.get(source, ""), 0):
            found[source] = role
    return found


def admit(person: Person) -> Admission:
    """Give the person's account exactly the roles of their groups.

    Without a role the person is refused, and no earlier role remains.
    """
    for attempt in count(1):
        try:
            with transaction.atomic():
                return _admit(person, roles_of(person.groups))
        except IntegrityError:
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError


def _admit(person: Person, roles: dict[str, str]) -> Admission:
    of_person = {"issuer": person.issuer, "subject": person.subject}
    known = Identity.objects.select_for_update().filter(**of_person).first()
    if known is None and not roles:
        why = _without_role(person)
        audit.record(Viewer(f"sign-on {person.name}"), ACT, reason=why, after=of_person, allowed=False)
        return Admission(why=why)
    user = known.user if known else get_user_model()(username=_free_name(person.name))
    before = dict(Role.objects.filter(user=user).values_list("source", "role")) if known else {}
    _set_rights(user, roles)
    if known is None:
        Identity.objects.create(user=user, **of_person)
    why = _without_role(person) if not roles else "" if user.is_active else _INACTIVE
    audit.record(
        viewer_of(user), ACT, f"user:{user.get_username()}", reason=why, before={"roles": before},
        after={"roles": roles} | of_person, allowed=not why,
    )  # fmt: skip
    return Admission(why=why) if why else Admission(user)


_INACTIVE = "Your account on this desk is deactivated. You were not logged in. Ask an admin of this desk to activate the account."


def _without_role(person: Person) -> str:
    if not person.groups:
        claim = config.setting("OIDC_GROUPS_CLAIM")
        return (
            f"The provider reported no groups (claim “{claim}”), so you have no role on this desk. You were not logged in. "
            "Ask an admin to let the provider send your groups."
        )
    return (
        "None of your groups has a role on this desk. You were not logged in. Ask an admin to add you to a group with a role, "
        "or to map a group of yours in REDRIVE_OIDC_ROLES."
    )


def _set_rights(user: Any, roles: dict[str, str]) -> None:
    """Set all rights of the account from `roles`; rights granted elsewhere, and any password, are removed."""
    user.is_superuser, user.is_staff = False, roles.get(EVERY_SOURCE) == ADMIN
    if user.pk is None or user.has_usable_password():
        user.set_unusable_password()
    # Not `is_active`: an admin may deactivate the account concurrently.
    user.save(update_fields=None if user.pk is None else ["is_superuser", "is_staff", "password"])
    user.groups.clear()
    user.user_permissions.clear()
    Role.objects.filter(user=user).exclude(source__in=roles).delete()
    for source, role in roles.items():
        Role.objects.update_or_create(user=user, source=source, defaults={"role": role})


def _free_name(name: str) -> str:
    """Return a name that no account has, not even with different case or Unicode form."""
    base = re.sub(r"[^\w.@+-]", "-", unicodedata.normalize("NFKC", name))[:_LONGEST_NAME]
    accounts = get_user_model()._default_manager
    for number in count(1):
        free = base if number == 1 else f"{base}-{number}"
        if free.casefold() not in _OURS and not accounts.filter(username__iexact=free).exists():
            return free
    raise AssertionError
