"""Alerts, silences, runbooks, alert rules, channels and deliveries.

Alert rules and channels are created and changed on their pages, and switched on and off here by the same services.
Everything else is read-only. Secrets of channels are never shown; addresses only to admins of every source.
"""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html

from jobs_admin import alerts, notices
from jobs_admin.admin.records import Records, viewer
from jobs_admin.alerts import silencing
from jobs_admin.core.text import marked
from jobs_admin.models import Alert, Channel, Delivery, Rule, Runbook, Silence
from jobs_admin.models.access import ADMIN, ADMIN_OF_ALL, ENGINE, EVERY_SOURCE
from jobs_admin.notices import reading
from jobs_admin.rights import alert_sight

_MOST_SILENCES = 2_000  # latest silences checked for visibility


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


@admin.register(Rule)
class RuleAdmin(Records):
    list_display = (
        "name", "metric", "source", "queue", "threshold", "for_s", "severity", "channel_names", "enabled", "changed_by", "changed_at",
    )  # fmt: skip
    list_filter = ("enabled", "severity", "metric")
    search_fields = ("name", "source", "queue")
    ordering = ("name",)
    actions = ("switch_on", "switch_off")
    fields = (
        "page", "name", "metric", "source", "queue", "task", "group", "tenant", "view", "threshold", "clear", "for_s",
        "keep_firing_s", "renotify_s", "escalate_s", "no_data", "severity", "runbook_url", "channel_names", "escalates_to", "enabled",
        "created_at", "changed_at", "changed_by",
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Rule]:
        seen = [rule.pk for rule in alerts.rules(viewer(request))]
        return Rule.objects.filter(pk__in=seen).select_related("view").prefetch_related("channels", "escalate_to")

    @admin.display(description="page")
    def page(self, rule: Rule) -> str:
        url = reverse("redrive:alert-rule-detail", args=[rule.pk])
        return format_html('<a href="{}">View and edit rule</a>', url)

    @admin.display(description="channels")
    def channel_names(self, rule: Rule) -> str:
        return marked(", ".join(sorted(one.name for one in rule.channels.all()))) or "–"

    @admin.display(description="escalates to")
    def escalates_to(self, rule: Rule) -> str:
        return marked(", ".join(sorted(one.name for one in rule.escalate_to.all()))) or "–"

    @admin.action(description="Enable rules", permissions=["operate"])
    def switch_on(self, request: HttpRequest, chosen: QuerySet[Rule]) -> None:
        self._switch(request, chosen, True)

    @admin.action(description="Disable rules and close their open alerts", permissions=["operate"])
    def switch_off(self, request: HttpRequest, chosen: QuerySet[Rule]) -> None:
        self._switch(request, chosen, False)

    def _switch(self, request: HttpRequest, chosen: QuerySet[Rule], is_on: bool) -> None:
        def switch(rule: Rule) -> None:
            alerts.save_rule(viewer(request), alerts.document(rule) | {"enabled": is_on}, rule.pk)

        self.act_on_each(request, chosen, switch, f"{'enabled' if is_on else 'disabled'}")


@admin.register(Channel)
class ChannelAdmin(Records):
    """Channels, created, tested and rotated on their pages; here they can only be re-enabled."""

    needs = ADMIN_OF_ALL
    list_display = ("name", "kind", "address", "failures", "disabled_at", "why_disabled", "changed_by", "changed_at")
    list_filter = ("kind",)
    search_fields = ("name",)
    ordering = ("name",)
    sortable_by = ("name", "kind", "failures")
    actions = ("enable",)
    fields = (
        "page", "name", "kind", "address", "events", "how_many_secrets", "rotated_at", "failures", "disabled_at",
        "why_disabled", "created_at", "changed_at", "changed_by",
    )  # fmt: skip

    @admin.display(description="page")
    def page(self, channel: Channel) -> str:
        url = reverse("redrive:channel-detail", args=[channel.pk])
        return format_html('<a href="{}">View, edit and test channel</a>', url)

    @admin.display(description="address")
    def address(self, channel: Channel) -> str:
        return marked(reading.row(ENGINE, channel).address) or "–"

    @admin.display(description="signing secrets")
    def how_many_secrets(self, channel: Channel) -> int:
        return len(channel.secrets)

    @admin.action(description="Enable channels", permissions=["administer"])
    def enable(self, request: HttpRequest, chosen: QuerySet[Channel]) -> None:
        self.act_on_each(request, chosen, lambda channel: notices.enable(viewer(request), channel.pk), "enabled")


@admin.register(Delivery)
class DeliveryAdmin(Records):
    list_display = (
        "id",
        "type",
        "source",
        "channel",
        "state",
        "tries",
        "status",
        "created_at",
        "next_try_at",
        "delivered_at",
    )
    list_select_related = ("notice", "channel")
    list_filter = ("state",)
    search_fields = ("notice__key", "channel__name")
    ordering = ("-id",)
    sortable_by = ()
    actions = ("send_again",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Delivery]:
        seen = Delivery.objects.filter(reading.visible(viewer(request), "notice__"))
        return seen.select_related("notice", "channel")

    def get_fields(self, request: HttpRequest, obj: Delivery | None = None) -> tuple[str, ...]:
        shown = (
            "type", "source", "key", "channel", "state", "tries", "created_at", "tried_at", "next_try_at", "delivered_at",
            "status", "took_ms", "request",
        )  # fmt: skip
        # The answer and the error of a delivery reveal the channel's address.
        return (*shown, "error", "answer", "log") if viewer(request).may(ADMIN, EVERY_SOURCE) else shown

    @admin.display(description="type")
    def type(self, delivery: Delivery) -> str:
        return delivery.notice.type

    @admin.display(description="source")
    def source(self, delivery: Delivery) -> str:
        return marked(delivery.notice.source)

    @admin.display(description="webhook-id")
    def key(self, delivery: Delivery) -> str:
        return delivery.notice.key

    @admin.action(description="Send again with the same ID", permissions=["operate"])
    def send_again(self, request: HttpRequest, chosen: QuerySet[Delivery]) -> None:
        self.act_on_each(request, chosen, lambda delivery: notices.resend(viewer(request), delivery.pk), "sent again")
