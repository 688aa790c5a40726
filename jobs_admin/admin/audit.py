"""The audit: an admin of one source reads what belongs to it."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from jobs_admin.admin.records import Records, viewer
from jobs_admin.models import AuditEvent
from jobs_admin.models.access import ADMIN


@admin.register(AuditEvent)
class AuditAdmin(Records):
    needs = ADMIN
    list_display = ("at", "actor", "act", "object", "source", "reason", "allowed")
    ordering = ("-id",)
    sortable_by = ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[AuditEvent]:
        allowed = viewer(request).sources(ADMIN)
        return AuditEvent.objects.all() if allowed is None else AuditEvent.objects.filter(source__in=allowed)
