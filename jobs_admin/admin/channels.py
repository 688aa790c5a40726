"""Channels and deliveries. No secret is shown, and where a channel leads only to admins of every source."""

from __future__ import annotations

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html

from jobs_admin import notices
from jobs_admin.admin.records import Records, viewer
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import marked
from jobs_admin.models import Channel, Delivery
from jobs_admin.models.access import ADMIN, ADMIN_OF_ALL, ENGINE, EVERY_SOURCE
from jobs_admin.notices import reading


@admin.register(Channel)
class ChannelAdmin(Records):
    """Made, tested and rotated on their pages; here they can be enabled again."""

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
        return format_html('<a href="{}">Its page, where it is changed and tested</a>', url)

    @admin.display(description="address")
    def address(self, channel: Channel) -> str:
        return marked(reading.row(ENGINE, channel).address) or "–"

    @admin.display(description="secrets that sign")
    def how_many_secrets(self, channel: Channel) -> int:
        return len(channel.secrets)

    @admin.action(description="Enable again", permissions=["administer"])
    def enable(self, request: HttpRequest, chosen: QuerySet[Channel]) -> None:
        done = 0
        for channel in chosen:
            try:
                notices.enable(viewer(request), channel.pk)
                done += 1
            except Refused as refused:
                self.message_user(request, refused.message, messages.ERROR)
            except NotFound:
                self.message_user(request, f"{channel.name} is not there any more.", messages.ERROR)
        self.message_user(request, f"{done} enabled.", messages.SUCCESS)


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
        # What came back, and why it did not arrive, tells where the channel leads.
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

    @admin.action(description="Send again, with the id it had", permissions=["operate"])
    def send_again(self, request: HttpRequest, chosen: QuerySet[Delivery]) -> None:
        done = 0
        for delivery in chosen:
            try:
                notices.resend(viewer(request), delivery.pk)
                done += 1
            except Refused as refused:
                self.message_user(request, f"{delivery.pk}: {refused.message}", messages.ERROR)
            except NotFound:
                self.message_user(request, f"{delivery.pk} is not there any more.", messages.ERROR)
        self.message_user(request, f"{done} sent again.", messages.SUCCESS)
