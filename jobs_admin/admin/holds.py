"""Pauses: read only, with an action that resumes them."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from jobs_admin import holds
from jobs_admin.admin.records import Records, viewer
from jobs_admin.models import Pause


@admin.register(Pause)
class PauseAdmin(Records):
    list_display = (
        "source",
        "queue",
        "task",
        "reason",
        "created_by",
        "created_at",
        "until",
        "resumed_at",
        "resumed_by",
    )
    list_filter = ("source",)
    search_fields = ("source", "queue", "task")
    ordering = ("-id",)
    sortable_by = ()
    actions = ("resume",)
    fields = ("source", "queue", "task", "reason", "created_by", "created_at", "until", "resumed_at", "resumed_by")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Pause]:
        sources = viewer(request).sources()
        return Pause.objects.all() if sources is None else Pause.objects.filter(source__in=sources)

    @admin.action(description="Resume", permissions=["operate"])
    def resume(self, request: HttpRequest, chosen: QuerySet[Pause]) -> None:
        self.act_on_each(request, chosen, lambda one: holds.resume(viewer(request), one.pk), "resumed")
