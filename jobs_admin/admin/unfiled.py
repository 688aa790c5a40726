"""Reports that could not be filed."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from jobs_admin.admin.records import Records
from jobs_admin.models import Unfiled
from jobs_admin.models.access import ADMIN_OF_ALL


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
