"""Roles and viewers: roles are per source."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from django.conf import settings
from django.db import models
from django.utils import timezone

from jobs_admin.core.matching import matches

VIEWER, AUDITOR, OPERATOR, ADMIN = "viewer", "auditor", "operator", "admin"
# Role -> the roles whose rights it includes. An operator does not read the audit.
INCLUDES = {
    VIEWER: {VIEWER},
    AUDITOR: {VIEWER, AUDITOR},
    OPERATOR: {VIEWER, OPERATOR},
    ADMIN: {VIEWER, AUDITOR, OPERATOR, ADMIN},
}
RANK = {role: rank for rank, role in enumerate(INCLUDES, 1)}
EVERY_SOURCE = "*"

# Further requirements of addresses in Django's admin.
ADMIN_OF_ALL = "admin of all"  # admin of every source
PERMISSION = "permission"  # Django's own permission, which superusers hold
NO_ROLE = "nobody"


class RoleName(models.TextChoices):
    VIEWER = VIEWER
    AUDITOR = AUDITOR
    OPERATOR = OPERATOR
    ADMIN = ADMIN


class Role(models.Model):
    """Role of a user on a source.

    A viewer reads, an auditor also reads the audit, an operator replays and triages, an admin also configures.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="redrive_roles")
    source = models.CharField(max_length=63, default=EVERY_SOURCE, help_text="A source's name, or * for every source.")
    role = models.CharField(max_length=10, choices=RoleName)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "source"], name="one_role_per_user_and_source"),
            models.CheckConstraint(condition=models.Q(role__in=list(RANK)), name="role_is_known"),
        ]

    def __str__(self) -> str:
        return f"{self.user}: {self.role} of {self.source}"


class ApiToken(models.Model):
    """A program's key to the API. Only its SHA-256 is kept; the token itself is shown once."""

    name = models.CharField(max_length=100, unique=True)
    sha256 = models.CharField(max_length=64, unique=True, editable=False)
    role = models.CharField(max_length=10, choices=RoleName)
    source = models.CharField(max_length=63, default=EVERY_SOURCE)
    # A token ends with its owner's account.
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="redrive_tokens",
        help_text="The person whom it belongs to, and whom it counts as; empty: nobody in particular.",
    )
    networks = models.CharField(
        max_length=500,
        default="",
        db_default="",
        blank=True,
        help_text="Networks that it may be used from, separated by spaces; empty: any.",
    )
    calls = models.CharField(
        max_length=500,
        default="",
        db_default="",
        blank=True,
        help_text="Calls of the API that it may make, as names or globs separated by spaces; empty: all of its role.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True, help_text="Empty: never.")
    revoked_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.name

    @property
    def is_in_force(self) -> bool:
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > timezone.now())


class Identity(models.Model):
    """Person at an OpenID provider, and their account. E-mail and name do not identify the person."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="redrive_identities")
    issuer = models.CharField(max_length=255)
    subject = models.CharField(max_length=255)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["issuer", "subject"], name="one_account_per_identity")]

    def __str__(self) -> str:
        return f"{self.subject} at {self.issuer}"


@dataclass(frozen=True, slots=True)
class Viewer:
    """A reader or actor: a user, a token, or the engine itself. All reads and acts require one."""

    name: str
    roles: dict[str, str] = field(default_factory=dict)  # source or "*" -> role
    user_id: Any = None  # of a login: the primary key
    token_id: int | None = None
    owner_id: Any = None  # of a token: its owner
    calls: tuple[str, ...] = ()  # of a token: names and globs of the only calls that it may make; empty: all
    focus: str = ""  # the only source that is read; "": all that the roles allow
    through: str = ""  # program in which the person acts, for the audit; "": the desk itself

    @property
    def person_id(self) -> Any:
        """The user who acts, logged in or by their token; None if unknown."""
        return self.owner_id if self.user_id is None else self.user_id

    @property
    def unfocused(self) -> Viewer:
        """Return the viewer with all sources that the roles allow: `focus` filters, and does not limit rights."""
        return replace(self, focus="") if self.focus else self

    def may_call(self, name: str) -> bool:
        """Return whether this call of the API is among those that the token is limited to, or the token is not limited."""
        return not self.calls or any(matches(one, name) for one in self.calls)

    def role_on(self, source: str) -> str | None:
        """Return the stronger of the role on this source and the role on every source; None without either."""
        return max(self._roles_on(source), key=RANK.__getitem__, default=None)

    def may(self, role: str, source: str) -> bool:
        return any(role in INCLUDES[current] for current in self._roles_on(source))

    def may_anywhere(self, role: str) -> bool:
        return any(role in INCLUDES.get(current, ()) for current in self.roles.values())

    def limited_to(self, role: str, source: str) -> dict[str, str]:
        """Return the roles of a token with this role on this source, or on "*", that belongs to this viewer."""
        theirs = {name: [owned] for name, owned in self.roles.items()}
        if source != EVERY_SOURCE:
            theirs = {source: self._roles_on(source)}
        found = {name: [_find_common_role(role, one) for one in owned if one in RANK] for name, owned in theirs.items()}
        return {name: max(roles, key=RANK.__getitem__) for name, roles in found.items() if roles}

    def _roles_on(self, source: str) -> list[str]:
        return [role for role in (self.roles.get(source), self.roles.get(EVERY_SOURCE)) if role in RANK]

    def sources(self, role: str = VIEWER) -> list[str] | None:
        """Return the sources on which the viewer has at least `role`; None means every source."""
        if self.focus:
            return [self.focus] if self.may(role, self.focus) else []
        if self.may(role, EVERY_SOURCE):
            return None
        return sorted(s for s in self.roles if s != EVERY_SOURCE and self.may(role, s))

    def sees_any_of(self, pattern: str) -> bool:
        """Return whether the viewer sees a source that this glob matches.

        A viewer of every source also sees future ones.
        """
        theirs = self.sources()
        return theirs is None or any(matches(pattern, one) for one in theirs)


# The engine acting on its own behalf (`watch`), named so in the audit.
ENGINE = Viewer(name="redrive", roles={EVERY_SOURCE: ADMIN})
# The engine where it holds and ends replays.
CONTROLLER = Viewer(name="controller", roles={EVERY_SOURCE: ADMIN})


def viewer_of(user) -> Viewer:
    """Return the viewer of a logged-in user. A superuser is admin of every source; an inactive user has no role."""
    if not user.is_active:
        return Viewer(name=user.get_username(), user_id=user.pk)
    if user.is_superuser:
        return Viewer(name=user.get_username(), roles={EVERY_SOURCE: ADMIN}, user_id=user.pk)
    roles = dict(Role.objects.filter(user=user).values_list("source", "role"))
    return Viewer(name=user.get_username(), roles=roles, user_id=user.pk)


def _find_common_role(one: str, other: str) -> str:
    """Return the strongest role that both include."""
    return max(INCLUDES[one] & INCLUDES[other], key=RANK.__getitem__)


def viewer_of_token(token: ApiToken) -> Viewer | None:
    """Return the viewer behind a token; None if it is revoked or expired, or its user may not log in."""
    if not token.is_in_force or (token.owner is not None and not token.owner.is_active):
        return None
    roles = {token.source: token.role}
    if token.owner is not None:
        roles = viewer_of(token.owner).limited_to(token.role, token.source)
    calls = tuple(token.calls.split())
    return Viewer(name=f"token {token.name}", roles=roles, token_id=token.pk, owner_id=token.owner_id, calls=calls)
