"""A rule on depth, and the episodes in which it was true."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

METRICS = (
    "dead",
    "growth_per_minute",
    "oldest_dead_s",
    "failure_rate",
    "retry_rate",
    "quarantined",
    "unreachable",
    "ingest_lag_s",
    "view",
)


class Severity(models.TextChoices):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Rule(models.Model):
    name = models.CharField(max_length=100, unique=True)
    metric = models.CharField(max_length=20, choices=[(m, m) for m in METRICS])
    source = models.CharField(max_length=200, default="*")
    queue = models.CharField(max_length=200, default="*")
    task = models.CharField(max_length=255, default="*")
    group = models.CharField(max_length=40, default="*")
    tenant = models.CharField(max_length=200, default="*")
    view = models.ForeignKey("SavedView", models.CASCADE, null=True, blank=True)
    threshold = models.FloatField()
    clear = models.FloatField(null=True, blank=True, help_text="Closes at or below this; the threshold where empty.")
    for_s = models.PositiveIntegerField(default=60)
    keep_firing_s = models.PositiveIntegerField(default=0)
    renotify_s = models.PositiveIntegerField(null=True, blank=True)
    escalate_s = models.PositiveIntegerField(
        null=True, blank=True, help_text="Without acknowledgement for so long, tell again."
    )
    no_data = models.CharField(
        max_length=10, default="keep", choices=[("keep", "keep"), ("fire", "fire"), ("clear", "clear")]
    )
    severity = models.CharField(max_length=10, choices=Severity, default=Severity.WARNING)
    runbook_url = models.URLField(max_length=500, blank=True)
    channels = models.ManyToManyField("Channel", blank=True, related_name="rules")
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(metric__in=METRICS), name="rule_metric_is_known")]

    def __str__(self) -> str:
        return self.name


class AlertState(models.TextChoices):
    PENDING = "pending"
    FIRING = "firing"
    ACKNOWLEDGED = "acknowledged"
    SILENCED = "silenced"
    RESOLVED = "resolved"


class Alert(models.Model):
    """One episode of a rule being true for one queue (or source, group, view: `subject`)."""

    rule = models.ForeignKey(Rule, models.CASCADE, related_name="alerts")
    source = models.CharField(max_length=63)
    subject = models.CharField(max_length=255, help_text="The queue, group or view; empty for the source itself.")
    state = models.CharField(max_length=14, choices=AlertState, default=AlertState.PENDING)
    severity = models.CharField(max_length=10, choices=Severity)
    value = models.FloatField()
    threshold = models.FloatField()
    opened_at = models.DateTimeField()
    fired_at = models.DateTimeField(null=True)
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    resolved_at = models.DateTimeField(null=True)
    transitions = models.PositiveIntegerField(default=0, help_text="Numbers the notices of this episode.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["rule", "source", "subject"],
                condition=~Q(state="resolved"),
                name="one_open_alert_per_subject",
            )
        ]
        indexes = [models.Index(fields=["state", "-opened_at"], name="alert_by_state")]


class AlertEvent(models.Model):
    """A transition of an alert, with the value and the reason."""

    alert = models.ForeignKey(Alert, models.CASCADE, related_name="events")
    n = models.PositiveIntegerField()
    at = models.DateTimeField()
    to = models.CharField(max_length=14, choices=AlertState)
    value = models.FloatField(null=True)
    reason = models.CharField(max_length=500, blank=True)
    actor = models.CharField(max_length=150, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["alert", "n"], name="one_event_per_transition")]


class Silence(models.Model):
    matchers = models.JSONField(help_text='{"source": glob, "queue": glob, "rule": glob, "severity": word}')
    author = models.CharField(max_length=150)
    comment = models.CharField(max_length=500)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField(db_index=True)
