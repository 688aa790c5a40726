"""Notices, their channels, and the attempts to deliver them."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

KINDS = ("webhook", "slack", "pagerduty", "email")
ALERT_FIRING, ALERT_RESOLVED = "alert.firing", "alert.resolved"  # types that alert rules send
REPLAY_AWAITING_APPROVAL = "replay.awaiting_approval"
SLACK_ANSWER = "slack.answer"  # to a press of a button in Slack; no channel subscribes to it
# Types of notices sent without an alert rule: a channel subscribes to them in `events`.
EVENTS = (
    "poison.quarantined",
    "job.escalated",
    REPLAY_AWAITING_APPROVAL,
    "replay.held",
    "replay.done",
    "breaker.opened",
    "breaker.closed",
    "hold.at_bound",
    "automation.tripped",
)


class Channel(models.Model):
    """Destination of notices: a webhook, a chat, a pager, e-mail addresses."""

    name = models.CharField(max_length=100, unique=True)
    kind = models.CharField(max_length=10, choices=[(k, k) for k in KINDS])
    # Of a webhook. Slack's address is itself a secret and stored in `secrets`; so is PagerDuty's routing key.
    url = models.CharField(max_length=1000, blank=True)
    to = models.TextField(blank=True, help_text="Addresses of an e-mail channel, one a line.")
    events = models.JSONField(default=list, blank=True, help_text="Types of notices without a rule that it wants.")
    # Fernet tokens, latest first: two during the rotation of a secret.
    secrets = models.JSONField(default=list, editable=False)
    rotated_at = models.DateTimeField(null=True, blank=True)
    disabled_at = models.DateTimeField(null=True, blank=True)
    why_disabled = models.CharField(max_length=300, blank=True)
    # Consecutive failed tries of any delivery: a channel that fails often waits separately from the others.
    failures = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)
    changed_by = models.CharField(max_length=150, blank=True)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(kind__in=KINDS), name="channel_kind_is_known")]

    def __str__(self) -> str:
        return self.name


class Notice(models.Model):
    """A notice, which any service may write and `notices` delivers.

    Its key is the `webhook-id`, and its body the `data` of the webhook without the fields of a single channel.
    """

    # For an alert, `alert-<first>-<n>` with the first of its bundle: a retry has the same key, a reminder the next.
    key = models.CharField(max_length=120, unique=True)
    type = models.CharField(max_length=30)
    severity = models.CharField(max_length=10, blank=True)
    source = models.CharField(max_length=63, blank=True, help_text="Who may not see it does not see the notice.")
    alert = models.ForeignKey("Alert", models.CASCADE, null=True, related_name="notices")
    # Its channels; empty with `is_routed_by_event`: every channel that subscribes to its type.
    channels = models.ManyToManyField(Channel, blank=True, related_name="notices")
    is_routed_by_event = models.BooleanField(default=True)
    body = models.JSONField()
    created_at = models.DateTimeField(auto_now_add=True)
    routed_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["created_at"], condition=Q(routed_at__isnull=True), name="notice_not_routed"),
        ]


class DeliveryState(models.TextChoices):
    WAITING = "waiting"
    SENDING = "sending"
    DELIVERED = "delivered"
    PARKED = "parked"  # no more automatic tries


class Delivery(models.Model):
    """One notice sent to one channel. The row exists before the request is sent."""

    notice = models.ForeignKey(Notice, models.CASCADE, related_name="deliveries")
    channel = models.ForeignKey(Channel, models.CASCADE, related_name="deliveries")
    state = models.CharField(max_length=10, default=DeliveryState.WAITING, choices=DeliveryState)
    tries = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    next_try_at = models.DateTimeField(null=True, help_text="While it is being sent: when its claim runs out.")
    request = models.TextField(blank=True, help_text="The body as it was last sent; secrets are not in it.")
    status = models.PositiveIntegerField(null=True, help_text="HTTP status of the last try.")
    answer = models.TextField(blank=True, help_text="At most 2 kB of what came back.")
    error = models.CharField(max_length=300, blank=True)
    counts = models.PositiveIntegerField(
        default=0, help_text="Of a row for what was too much to tell: so many notices of its type, its own among them."
    )
    took_ms = models.PositiveIntegerField(null=True, help_text="The last try.")
    log = models.JSONField(
        default=list, help_text='The tries, the newest last: [{"at", "status", "error", "took_ms"}].'
    )
    tried_at = models.DateTimeField(null=True)
    delivered_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "deliveries"
        constraints = [models.UniqueConstraint(fields=["notice", "channel"], name="one_delivery_per_channel")]
        indexes = [
            models.Index(fields=["state", "next_try_at"], name="delivery_due"),
            models.Index(fields=["channel", "-id"], name="delivery_by_channel"),
        ]
