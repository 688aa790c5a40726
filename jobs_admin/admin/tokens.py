"""API tokens: to be revoked here; only their hash is known."""

from __future__ import annotations

from django.contrib import admin, messages
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from jobs_admin.admin.records import Records, viewer
from jobs_admin.db import audit
from jobs_admin.models import ApiToken
from jobs_admin.models.access import ADMIN_OF_ALL


@admin.register(ApiToken)
class ApiTokenAdmin(Records):
    """Made by `manage.py token create`, which shows a token once. Here only its hash is known."""

    needs = ADMIN_OF_ALL
    list_display = ("name", "role", "source", "owner", "created_at", "revoked_at")
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
