"""Automations: read-only, with actions that disable and reset them."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from jobs_admin import automations
from jobs_admin.admin.records import Records, viewer
from jobs_admin.models import Automation


@admin.register(Automation)
class AutomationAdmin(Records):
    list_display = ("name", "mode", "act", "source", "owner_name", "tripped_at", "checked_at", "why_not")
    list_filter = ("mode", "act")
    search_fields = ("name", "source")
    ordering = ("name",)
    sortable_by = ()
    actions = ("disable", "reset")
    fields = (
        "name", "mode", "version", "source", "query", "rule", "min_jobs", "quiet_s", "cooldown_s", "cap_per_hour", "act",
        "parameters", "note", "expires_at", "owner_name", "approver", "changed_at", "tripped_at", "why_tripped",
        "checked_at", "why_not",
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Automation]:
        sources = viewer(request).sources()
        return Automation.objects.all() if sources is None else Automation.objects.filter(source__in=sources)

    @admin.action(description="Disable", permissions=["operate"])
    def disable(self, request: HttpRequest, chosen: QuerySet[Automation]) -> None:
        self.act_on_each(request, chosen, lambda one: automations.disable(viewer(request), one.name), "disabled")

    @admin.action(description="Reset", permissions=["operate"])
    def reset(self, request: HttpRequest, chosen: QuerySet[Automation]) -> None:
        self.act_on_each(request, chosen, lambda one: automations.reset(viewer(request), one.name), "reset")
