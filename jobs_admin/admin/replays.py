"""Replays, to be read: they are made and steered on their pages."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from jobs_admin import replays
from jobs_admin.admin.records import Records, viewer
from jobs_admin.models import Replay


@admin.register(Replay)
class ReplayAdmin(Records):
    list_display = ("id", "state", "query", "total", "succeeded", "failed_again", "actor", "created_at")
    list_filter = ("state",)
    ordering = ("-id",)
    exclude = ("sender", "sender_until", "snapshot", "edit")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Replay]:
        return replays.visible(viewer(request))
