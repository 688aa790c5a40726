"""Roles per source, API tokens and the audit."""

from __future__ import annotations

from django.contrib import admin, messages
from django.db import transaction
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest
from django.utils import timezone

from jobs_admin import config
from jobs_admin.admin.records import Records, viewer
from jobs_admin.core.text import representable, terminal_line
from jobs_admin.db import audit
from jobs_admin.models import ApiToken, AuditEvent, Role
from jobs_admin.models.access import ADMIN_OF_ALL, AUDITOR, EVERY_SOURCE


@admin.register(Role)
class RoleAdmin(Records):
    """Roles, editable only by admins of every source: anyone who grants roles could grant themselves any."""

    needs = adds = changes = deletes = ADMIN_OF_ALL
    list_display = ("user", "source", "role")
    list_select_related = ("user",)
    list_filter = ("role", "source")

    def save_model(self, request: HttpRequest, obj: Role, form: ModelForm, change: bool) -> None:
        before = {"role": form.initial.get("role"), "source": form.initial.get("source")} if change else None
        super().save_model(request, obj, form, change)
        self._record(request, "role.grant", obj, before=before, after={"role": obj.role, "source": obj.source})

        self._warn_of_unknown(request, obj.source)

    def _warn_of_unknown(self, request: HttpRequest, source: str) -> None:
        """Warn of an unknown source: a role may be granted before its source is configured, but may also be a typo."""
        try:
            known = sorted(config.sources())
        except config.BadConfiguration:
            return
        if source != EVERY_SOURCE and source not in known:
            message = f"No source {terminal_line(source, 40)!r} is configured here; known: {', '.join(known) or 'none'}. The role is saved."
            messages.warning(request, message)

    def delete_model(self, request: HttpRequest, obj: Role) -> None:
        with transaction.atomic():
            self._record(request, "role.withdraw", obj, before={"role": obj.role, "source": obj.source})
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Role]) -> None:
        with transaction.atomic():
            for role in queryset.select_related("user"):
                self.delete_model(request, role)

    def _record(self, request: HttpRequest, act: str, role: Role, **more: object) -> None:
        name = representable(role.user.get_username())
        source = "" if role.source == EVERY_SOURCE else role.source
        audit.record(viewer(request), act, f"user:{name}", source=source, **more)


@admin.register(ApiToken)
class ApiTokenAdmin(Records):
    """API tokens, which `manage.py token create` creates and shows once. Only the hash is stored."""

    needs = ADMIN_OF_ALL
    list_display = ("name", "role", "source", "owner", "networks", "calls", "created_at", "expires_at", "revoked_at")
    list_select_related = ("owner",)
    readonly_fields = ("sha256",)
    actions = ("revoke",)

    @admin.action(description="Revoke", permissions=["administer"])
    def revoke(self, request: HttpRequest, chosen: QuerySet[ApiToken]) -> None:
        revoked = 0
        for token in chosen:
            with transaction.atomic():
                if ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=timezone.now()):
                    audit.record(viewer(request), "token.revoke", f"token:{token.name}")
                    revoked += 1
        self.message_user(request, f"{revoked} tokens revoked.", messages.SUCCESS)


@admin.register(AuditEvent)
class AuditAdmin(Records):
    needs = AUDITOR
    list_display = ("at", "actor", "act", "object", "source", "reason", "allowed")
    ordering = ("-id",)
    sortable_by = ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[AuditEvent]:
        return audit.find_events(viewer(request))
