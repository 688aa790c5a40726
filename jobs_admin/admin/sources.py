"""Sources as the last sample found them, their keys, and reports that could not be filed.

Keys are revoked here; the keys themselves stay sealed.
"""

from __future__ import annotations

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from jobs_admin.admin.records import Records, viewer
from jobs_admin.core.refused import NotFound
from jobs_admin.models import Source, SourceKey, Unfiled
from jobs_admin.models.access import ADMIN_OF_ALL
from jobs_admin.trust import source_keys


@admin.register(Source)
class SourceAdmin(Records):
    list_display = ("name", "backend", "is_configured", "is_reachable", "sampled_at", "first_seen")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Source]:
        allowed = viewer(request).sources()
        return Source.objects.all() if allowed is None else Source.objects.filter(name__in=allowed)


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


@admin.register(Unfiled)
class UnfiledAdmin(Records):
    """Unfiled reports: their source is unknown, so only for admins of every source."""

    needs = ADMIN_OF_ALL
    list_display = ("received_at", "source", "cause", "short_why", "size")
    list_filter = ("cause",)
    ordering = ("-id",)
    sortable_by = ()
    fields = ("received_at", "entry_id", "source", "cause", "size", "why")  # what it holds stays encrypted

    @admin.display(description="why")
    def short_why(self, report: Unfiled) -> str:
        return report.why[:200]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Unfiled]:
        return Unfiled.objects.defer("body")
