"""Rules of alerts: switched on and off by the same service as on their page, where they are made and changed."""

from __future__ import annotations

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html

from jobs_admin import alerts
from jobs_admin.admin.records import Records, viewer
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import marked
from jobs_admin.models import Rule


@admin.register(Rule)
class RuleAdmin(Records):
    list_display = (
        "name", "metric", "source", "queue", "threshold", "for_s", "severity", "tells", "enabled", "changed_by", "changed_at",
    )  # fmt: skip
    list_filter = ("enabled", "severity", "metric")
    search_fields = ("name", "source", "queue")
    ordering = ("name",)
    actions = ("switch_on", "switch_off")
    fields = (
        "page", "name", "metric", "source", "queue", "task", "group", "tenant", "view", "threshold", "clear", "for_s",
        "keep_firing_s", "renotify_s", "escalate_s", "no_data", "severity", "runbook_url", "tells", "escalates_to", "enabled",
        "created_at", "changed_at", "changed_by",
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Rule]:
        seen = [rule.pk for rule in alerts.rules(viewer(request))]
        return Rule.objects.filter(pk__in=seen).select_related("view").prefetch_related("channels", "escalate_to")

    @admin.display(description="page")
    def page(self, rule: Rule) -> str:
        url = reverse("redrive:alert-rule-detail", args=[rule.pk])
        return format_html('<a href="{}">Its page, where it is changed</a>', url)

    @admin.display(description="channels")
    def tells(self, rule: Rule) -> str:
        return marked(", ".join(sorted(one.name for one in rule.channels.all()))) or "–"

    @admin.display(description="escalates to")
    def escalates_to(self, rule: Rule) -> str:
        return marked(", ".join(sorted(one.name for one in rule.escalate_to.all()))) or "–"

    @admin.action(description="Switch on", permissions=["operate"])
    def switch_on(self, request: HttpRequest, chosen: QuerySet[Rule]) -> None:
        self._switch(request, chosen, True)

    @admin.action(description="Switch off: its open alerts are closed", permissions=["operate"])
    def switch_off(self, request: HttpRequest, chosen: QuerySet[Rule]) -> None:
        self._switch(request, chosen, False)

    def _switch(self, request: HttpRequest, chosen: QuerySet[Rule], is_on: bool) -> None:
        done = 0
        for rule in chosen:
            try:
                alerts.save_rule(viewer(request), alerts.document(rule) | {"enabled": is_on}, rule.pk)
                done += 1
            except Refused as refused:
                self.message_user(request, f"{rule.name}: {refused.message}", messages.ERROR)
            except NotFound:
                self.message_user(request, f"{rule.name} is not there any more.", messages.ERROR)
        self.message_user(request, f"{done} switched {'on' if is_on else 'off'}.", messages.SUCCESS)
