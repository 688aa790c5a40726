"""Roles and viewers: roles are per source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from django.db import models

from jobs_admin.core.matching import matches

VIEWER, OPERATOR, ADMIN = "viewer", "operator", "admin"
RANK = {VIEWER: 1, OPERATOR: 2, ADMIN: 3}
EVERY_SOURCE = "*"

# Beside the roles, what an address of Django's admin may need.
ADMIN_OF_ALL = "admin of all"  # admin of every source
PERMISSION = "permission"  # Django's own permission, which superusers hold
NO_ROLE = "nobody"


class RoleName(models.TextChoices):
    VIEWER = VIEWER
    OPERATOR = OPERATOR
    ADMIN = ADMIN


class Role(models.Model):
    """Role of a user on a source. A viewer reads, an operator replays and triages, an admin also configures."""

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
    # Without the account there is no token either.
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="redrive_tokens",
        help_text="The person whom it belongs to, and whom it counts as; empty: nobody in particular.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Viewer:
    """A reader or actor: a user, a token, or the machine itself. Every reader and every act takes one."""

    name: str
    roles: dict[str, str] = field(default_factory=dict)  # source or "*" -> role
    user_id: Any = None  # of a login: the primary key
    token_id: int | None = None
    owner_id: Any = None  # of a token: the user whom it belongs to

    @property
    def person_id(self) -> Any:
        """The user who acts, logged in or by a token of theirs; None where that is unknown."""
        return self.owner_id if self.user_id is None else self.user_id

    def role_on(self, source: str) -> str | None:
        """The stronger of the role on this source and on every source; None for a stranger."""
        found = [r for r in (self.roles.get(source), self.roles.get(EVERY_SOURCE)) if r in RANK]
        return max(found, key=RANK.__getitem__, default=None)

    def may(self, role: str, source: str) -> bool:
        current = self.role_on(source)
        return current is not None and RANK[current] >= RANK[role]

    def may_anywhere(self, role: str) -> bool:
        return any(r in RANK and RANK[r] >= RANK[role] for r in self.roles.values())

    def sources(self, role: str = VIEWER) -> list[str] | None:
        """The sources on which the viewer holds at least `role`; None means every source."""
        if self.may(role, EVERY_SOURCE):
            return None
        return sorted(s for s in self.roles if s != EVERY_SOURCE and self.may(role, s))

    def sees_any_of(self, pattern: str) -> bool:
        """Return whether the viewer sees a source that this glob matches.

        One who sees every source sees also those to come.
        """
        theirs = self.sources()
        return theirs is None or any(matches(pattern, one) for one in theirs)


# The engine acting on its own behalf (watch), named as such in the audit.
ENGINE = Viewer(name="redrive", roles={EVERY_SOURCE: ADMIN})
# The same where it holds and ends replays.
CONTROLLER = Viewer(name="controller", roles={EVERY_SOURCE: ADMIN})


def viewer_of(user) -> Viewer:
    """The viewer behind a logged-in user. A superuser is admin of every source; an inactive user has no role."""
    if not user.is_active:
        return Viewer(name=user.get_username(), user_id=user.pk)
    if user.is_superuser:
        return Viewer(name=user.get_username(), roles={EVERY_SOURCE: ADMIN}, user_id=user.pk)
    roles = dict(Role.objects.filter(user=user).values_list("source", "role"))
    return Viewer(name=user.get_username(), roles=roles, user_id=user.pk)


def lent(role: str, source: str, owner: Viewer) -> dict[str, str]:
    """The roles of a token that has this role on this source, or on "*", and an owner: nowhere more than the owner's."""
    theirs = owner.roles if source == EVERY_SOURCE else {source: owner.role_on(source)}
    return {name: min(role, owned, key=RANK.__getitem__) for name, owned in theirs.items() if owned in RANK}
