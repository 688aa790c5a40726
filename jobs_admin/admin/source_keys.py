"""Keys of sources: to be revoked here; the keys themselves stay sealed."""

from __future__ import annotations

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from jobs_admin.admin.records import Records, viewer
from jobs_admin.core.refused import NotFound
from jobs_admin.models import SourceKey
from jobs_admin.models.access import ADMIN_OF_ALL
from jobs_admin.trust import source_keys


@admin.register(SourceKey)
class SourceKeyAdmin(Records):
    """Made by `manage.py source-key create`, which shows a key once."""

    needs = ADMIN_OF_ALL
    list_display = ("source", "key_id", "created_at", "created_by", "last_used_at", "revoked_at")
    fields = ("source", "key_id", "created_at", "created_by", "last_used_at", "revoked_at")
    actions = ("revoke",)

    @admin.action(description="Revoke", permissions=["administer"])
    def revoke(self, request: HttpRequest, chosen: QuerySet[SourceKey]) -> None:
        revoked = 0
        for key in chosen.filter(revoked_at=None):
            try:
                source_keys.revoke(viewer(request), key.key_id, timezone.now())
                revoked += 1
            except NotFound:  # somebody else was quicker
                pass
        self.message_user(request, f"{revoked} keys revoked.", messages.SUCCESS)
