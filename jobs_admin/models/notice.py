"""Something to tell, where to tell it, and each try at telling."""

from __future__ import annotations

from django.db import models


class Channel(models.Model):
    name = models.CharField(max_length=100, unique=True)
    kind = models.CharField(max_length=10, choices=[(k, k) for k in ("webhook", "slack", "pagerduty", "email")])
    url = models.URLField(max_length=1000, blank=True)
    to = models.TextField(blank=True, help_text="Addresses of an e-mail channel, one a line.")
    events = models.JSONField(default=list, blank=True, help_text="Types of notices without a rule that it wants.")
    # Fernet tokens, newest first: two while a secret is being rotated.
    secrets = models.JSONField(default=list, editable=False)
    disabled_at = models.DateTimeField(null=True, blank=True)
    why_disabled = models.CharField(max_length=300, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class Notice(models.Model):
    """Anyone writes one; `notices` delivers it."""

    # `alert, transition, number`: a retry keeps it, a reminder gets the next.
    key = models.CharField(max_length=120, unique=True)
    type = models.CharField(max_length=30)
    severity = models.CharField(max_length=10, blank=True)
    alert = models.ForeignKey("Alert", models.CASCADE, null=True, related_name="notices")
    body = models.JSONField()
    created_at = models.DateTimeField(auto_now_add=True)
    routed_at = models.DateTimeField(null=True)


class Delivery(models.Model):
    """One notice sent to one channel. The row exists before the request leaves."""

    notice = models.ForeignKey(Notice, models.CASCADE, related_name="deliveries")
    channel = models.ForeignKey(Channel, models.CASCADE, related_name="deliveries")
    state = models.CharField(
        max_length=10, default="waiting", choices=[(s, s) for s in ("waiting", "sending", "delivered", "parked")]
    )
    tries = models.PositiveIntegerField(default=0)
    next_try_at = models.DateTimeField(null=True)
    claimed_until = models.DateTimeField(null=True)
    status = models.PositiveIntegerField(null=True, help_text="HTTP status of the last try.")
    answer = models.TextField(blank=True, help_text="At most 2 kB of what came back.")
    error = models.CharField(max_length=300, blank=True)
    delivered_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["notice", "channel"], name="one_delivery_per_channel")]
        indexes = [models.Index(fields=["state", "next_try_at"], name="delivery_due")]
