"""Alerts, silences and runbooks to be read: they are acknowledged, made and ended on their pages."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from jobs_admin.admin.records import Records, viewer
from jobs_admin.alerts import silencing
from jobs_admin.models import Alert, Runbook, Silence
from jobs_admin.rights import alert_sight

_MOST_SILENCES = 2_000  # the newest, that are looked through for those that may be seen


@admin.register(Alert)
class AlertAdmin(Records):
    list_display = (
        "id", "rule", "source", "subject", "state", "severity", "value", "threshold", "opened_at", "fired_at", "resolved_at",
    )  # fmt: skip
    list_select_related = ("rule",)
    list_filter = ("state", "severity")
    search_fields = ("source", "subject", "rule__name")
    ordering = ("-id",)
    sortable_by = ()
    fields = (
        "rule", "source", "subject", "state", "severity", "value", "peak", "threshold", "opened_at", "fired_at",
        "acknowledged_at", "acknowledged_by", "told_at", "escalated_at", "resolved_at", "held_because", "transitions",
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Alert]:
        seen = Alert.objects.filter(alert_sight.visible(viewer(request)))
        return seen.select_related("rule")


@admin.register(Silence)
class SilenceAdmin(Records):
    list_display = ("matchers", "author", "comment", "starts_at", "ends_at", "ended_by")
    ordering = ("-ends_at", "-id")
    sortable_by = ()
    fields = ("matchers", "author", "comment", "created_at", "starts_at", "ends_at", "ended_by")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Silence]:
        latest = Silence.objects.order_by("-pk")[:_MOST_SILENCES]
        seen = [one.pk for one in latest if silencing.may_see(viewer(request), one)]
        return Silence.objects.filter(pk__in=seen)


@admin.register(Runbook)
class RunbookAdmin(Records):
    list_display = ("task", "url", "changed_by", "changed_at")
    search_fields = ("task", "url")
    ordering = ("task",)
    fields = ("task", "url", "changed_by", "changed_at")
