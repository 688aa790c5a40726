"""Sources, as the last sample found them."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from jobs_admin.admin.records import Records, viewer
from jobs_admin.models import Source


@admin.register(Source)
class SourceAdmin(Records):
    list_display = ("name", "backend", "is_configured", "is_reachable", "sampled_at", "first_seen")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Source]:
        allowed = viewer(request).sources()
        return Source.objects.all() if allowed is None else Source.objects.filter(name__in=allowed)
