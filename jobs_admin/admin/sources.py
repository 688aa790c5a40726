"""Sources as last sampled, their keys, unfiled reports, pauses, and transitions of breakers.

Keys are revoked and pauses resumed here; the keys themselves stay encrypted.
"""

from __future__ import annotations

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from jobs_admin import holds
from jobs_admin.admin.records import Records, viewer
from jobs_admin.core.refused import NotFound
from jobs_admin.models import BreakerEvent, Pause, Source, SourceKey, Unfiled
from jobs_admin.models.access import ADMIN_OF_ALL
from jobs_admin.models.hold import KINDS
from jobs_admin.trust import admission, source_keys


@admin.register(Source)
class SourceAdmin(Records):
    list_display = ("name", "backend", "is_configured", "is_reachable", "sampled_at", "first_seen")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Source]:
        allowed = viewer(request).sources()
        return Source.objects.all() if allowed is None else Source.objects.filter(name__in=allowed)


@admin.register(SourceKey)
class SourceKeyAdmin(Records):
    """Keys of sources, which `manage.py source-key create` creates and shows once."""

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
            except NotFound:  # another request was faster
                pass
        self.message_user(request, f"{revoked} keys revoked.", messages.SUCCESS)


@admin.register(Unfiled)
class UnfiledAdmin(Records):
    """Unfiled reports: their source is unknown, so only admins of every source see them."""

    needs = ADMIN_OF_ALL
    list_display = ("received_at", "source", "cause", "short_why", "size")
    list_filter = ("cause",)
    ordering = ("-id",)
    sortable_by = ()
    actions = ("discard",)
    fields = ("received_at", "entry_id", "source", "cause", "size", "why")  # the content stays encrypted

    @admin.display(description="why")
    def short_why(self, report: Unfiled) -> str:
        return report.why[:200]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Unfiled]:
        return Unfiled.objects.defer("body")

    @admin.action(description="Discard", permissions=["administer"])
    def discard(self, request: HttpRequest, chosen: QuerySet[Unfiled]) -> None:
        count = admission.discard_unfiled(viewer(request), list(chosen.values_list("pk", flat=True)))
        self.message_user(request, f"{count} reports deleted.", messages.SUCCESS)


@admin.register(Pause)
class PauseAdmin(Records):
    list_display = (
        "source",
        "queue",
        "task",
        "tenant",
        "dependency",
        "reason",
        "created_by",
        "created_at",
        "until",
        "resumed_at",
        "resumed_by",
    )
    list_filter = ("source",)
    search_fields = ("source", *KINDS)
    ordering = ("-id",)
    sortable_by = ()
    actions = ("resume",)
    fields = ("source", *KINDS, "reason", "created_by", "created_at", "until", "resumed_at", "resumed_by")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Pause]:
        sources = viewer(request).sources()
        return Pause.objects.all() if sources is None else Pause.objects.filter(source__in=sources)

    @admin.action(description="Resume", permissions=["operate"])
    def resume(self, request: HttpRequest, chosen: QuerySet[Pause]) -> None:
        self.act_on_each(request, chosen, lambda one: holds.resume(viewer(request), one.pk), "resumed")


@admin.register(BreakerEvent)
class BreakerEventAdmin(Records):
    list_display = ("source", "name", "at", "from_state", "to_state", "why", "on_hold", "is_observed")
    list_filter = ("source", "to_state")
    search_fields = ("source", "name")
    ordering = ("-id",)
    sortable_by = ()
    fields = ("source", "name", "at", "from_state", "to_state", "why", "on_hold", "is_observed")

    def get_queryset(self, request: HttpRequest) -> QuerySet[BreakerEvent]:
        sources = viewer(request).sources()
        found = BreakerEvent.objects.exclude(BreakerEvent.IS_SAMPLE)
        return found if sources is None else found.filter(source__in=sources)
