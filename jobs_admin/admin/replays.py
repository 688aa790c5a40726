"""Replays, to be read: they are made and steered on their pages."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html

from jobs_admin import replays
from jobs_admin.admin.records import Records, viewer
from jobs_admin.models import Replay
from jobs_admin.search import scope


@admin.register(Replay)
class ReplayAdmin(Records):
    list_display = ("id", "state", "query", "total", "succeeded", "failed_again", "actor", "approver", "created_at")
    list_filter = ("state",)
    ordering = ("-id",)
    exclude = (
        "sender",
        "sender_until",
        "snapshot",
        "edit",
        "controller",
        "key",
        # Groups of any source: the replay's page shows those that the viewer may see.
        "set_aside",
        "without_groups",
    )
    readonly_fields = ("page",)

    @admin.display(description="page")
    def page(self, replay: Replay) -> str:
        return format_html('<a href="{}">View replay</a>', reverse("redrive:replay-detail", args=[replay.pk]))

    def get_changelist(self, request: HttpRequest, **more: Any) -> type[ChangeList]:
        class Restricted(ChangeList):
            def get_results(self, request: HttpRequest) -> None:
                super().get_results(request)
                self.result_list = list(self.result_list)
                scope.restrict_replays(viewer(request), self.result_list)

        return Restricted

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Replay | None:
        replay = super().get_object(request, object_id, from_field)
        if replay is not None:
            scope.restrict_replays(viewer(request), [replay])
        return replay

    def get_queryset(self, request: HttpRequest) -> QuerySet[Replay]:
        return replays.visible_replays(viewer(request))
