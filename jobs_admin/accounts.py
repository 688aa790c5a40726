"""Accounts in Django's admin: whoever may keep them gains no right by it that they do not hold already."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth.models import AbstractUser
from django.db.models import Model
from django.http import HttpRequest

from jobs_admin.models import Role
from jobs_admin.models.access import viewer_of

# Only a superuser sees these, and what somebody else sends for them is ignored.
_RIGHTS = frozenset({"is_superuser", "groups", "user_permissions"})


class KeepsRights(admin.ModelAdmin):
    """Somebody who is no superuser makes none, and leaves alone whoever may do more: a new password would be theirs."""

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
    """Groups of Django's permissions: whoever changes one could add to their own."""

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
    viewer = viewer_of(request.user)
    return all(viewer.may(role.role, role.source) for role in Role.objects.filter(user=account))
