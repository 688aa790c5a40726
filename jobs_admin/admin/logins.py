"""Logins and groups of Django permissions, in Redrive's own project.

Editing accounts grants no right that the editor does not have already, and every change is audited.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.admin import GroupAdmin as AccountGroupAdmin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import AbstractUser, Permission
from django.contrib.auth.models import Group as AccountGroup
from django.db import transaction
from django.db.models import Manager, Model, QuerySet
from django.http import HttpRequest

from jobs_admin.admin.records import viewer
from jobs_admin.core.text import representable
from jobs_admin.db import audit
from jobs_admin.models import Role
from jobs_admin.models.access import PERMISSION
from jobs_admin.rights import second_factor, sign_ins, slack_links

# Shown only to superusers; ignored in requests of anyone else.
_RIGHTS = frozenset({"is_superuser", "groups", "user_permissions"})


class KeepsRights(admin.ModelAdmin):
    """Admin in which only a superuser can create or change a superuser: a new password would grant its rights."""

    needs = adds = changes = deletes = PERMISSION

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        found = super().get_fieldsets(request, obj)
        if request.user.is_superuser:
            return found
        left = [
            (name, options | {"fields": tuple(f for f in options["fields"] if f not in _RIGHTS)})
            for name, options in found
        ]
        return [(name, options) for name, options in left if options["fields"]]

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return super().has_change_permission(request, obj) and _may_keep(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return super().has_delete_permission(request, obj) and _may_keep(request, obj)


class ForSuperusers(admin.ModelAdmin):
    """Groups of Django permissions, only for superusers: anyone else could add to their own."""

    needs = adds = changes = deletes = PERMISSION

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.is_superuser

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return request.user.is_superuser

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return request.user.is_superuser


def _may_keep(request: HttpRequest, account: Model | None) -> bool:
    if request.user.is_superuser or not isinstance(account, AbstractUser) or account.pk == request.user.pk:
        return True
    if account.is_superuser or not account.get_all_permissions() <= request.user.get_all_permissions():
        return False
    who = viewer(request)
    return all(who.may(role.role, role.source) for role in Role.objects.filter(user=account))


class Audited(admin.ModelAdmin):
    """Admin of logins and Django permissions: each change is audited."""

    act: str

    def log_addition(self, request: HttpRequest, obj: Model, message: object) -> LogEntry:
        self._record(request, "add", obj, after=self._audited(obj))
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Model, message: object) -> LogEntry:
        self._record(request, "change", obj, after=self._audited(obj) | {"changed": message})
        return super().log_change(request, obj, message)

    def log_deletions(self, request: HttpRequest, queryset: QuerySet) -> object:
        for obj in queryset:
            self._record(request, "delete", obj, before=self._audited(obj))
        return super().log_deletions(request, queryset)

    def _record(self, request: HttpRequest, verb: str, obj: Model, **more: object) -> None:
        with transaction.atomic():
            audit.record(viewer(request), f"{self.act}.{verb}", f"{self.act}:{representable(str(obj))}", **more)


class AuditedUserAdmin(Audited, KeepsRights, UserAdmin):
    act = "user"
    actions = ("reset_second_factor", "end_sessions", "unlink_slack")

    @admin.action(description="Reset second factor and end sessions", permissions=["change"])
    def reset_second_factor(self, request: HttpRequest, chosen: QuerySet[AbstractUser]) -> None:
        people = [user for user in self._changeable(request, chosen) if user.pk != request.user.pk]
        # A hijacked session must not be sufficient to remove the second factor.
        if chosen.filter(pk=request.user.pk).exists():
            self.message_user(
                request, "You replace your own second factor under Your account, with a code.", messages.ERROR
            )
        ended = sum(sign_ins.end(viewer(request), user) for user in people)
        reset = sum(second_factor.remove(viewer(request), user, "second_factor.reset") for user in people)
        self.message_user(request, f"{reset} second factors reset, {ended} sessions ended.", messages.SUCCESS)

    @admin.action(description="End sessions", permissions=["change"])
    def end_sessions(self, request: HttpRequest, chosen: QuerySet[AbstractUser]) -> None:
        ended = sum(sign_ins.end(viewer(request), user) for user in self._changeable(request, chosen))
        self.message_user(request, f"{ended} sessions ended.", messages.SUCCESS)

    @admin.action(description="Unlink from Slack", permissions=["change"])
    def unlink_slack(self, request: HttpRequest, chosen: QuerySet[AbstractUser]) -> None:
        ended = sum(slack_links.unlink(viewer(request), user) for user in self._changeable(request, chosen))
        self.message_user(request, f"{ended} accounts unlinked from Slack.", messages.SUCCESS)

    def log_change(self, request: HttpRequest, obj: AbstractUser, message: object) -> LogEntry:
        # After all rows are written: the audit's lock comes last.
        if not obj.is_active:  # active again, the account is not linked
            slack_links.unlink(viewer(request), obj)
        return super().log_change(request, obj, message)

    def _changeable(self, request: HttpRequest, chosen: QuerySet[AbstractUser]) -> list[AbstractUser]:
        """Return the selected accounts that the person may change, with a message if some are excluded."""
        people = [user for user in chosen if self.has_change_permission(request, user)]
        if len(people) < len(chosen):
            refused = len(chosen) - len(people)
            self.message_user(
                request, f"{refused} accounts have more rights than you and were not changed.", messages.ERROR
            )
        return people

    def _audited(self, user: AbstractUser) -> dict[str, object]:
        return {
            "is_active": user.is_active,
            "is_staff": user.is_staff,
            "is_superuser": user.is_superuser,
            "groups": sorted(user.groups.values_list("name", flat=True)),
            "permissions": _permissions(user.user_permissions),
        }


class AuditedAccountGroupAdmin(Audited, ForSuperusers, AccountGroupAdmin):
    act = "account-group"

    def _audited(self, group: AccountGroup) -> dict[str, object]:
        return {"permissions": _permissions(group.permissions)}


def _permissions(manager: Manager[Permission]) -> list[str]:
    return sorted(".".join(pair) for pair in manager.values_list("content_type__app_label", "codename"))


def register() -> None:
    """Replace Django's own admins of accounts. In a host project, accounts belong to the project."""
    admin.site.unregister(get_user_model())
    admin.site.unregister(AccountGroup)
    admin.site.register(get_user_model(), AuditedUserAdmin)
    admin.site.register(AccountGroup, AuditedAccountGroupAdmin)
