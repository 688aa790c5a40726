"""Alert rules, their alerts (episodes in which a rule is true), and silences."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import models
from django.db.models import Case, F, IntegerField, Q, QuerySet, Value, When

from jobs_admin.core import alert_metrics
from jobs_admin.core.matching import matches

METRICS = tuple(alert_metrics.METRICS)
LONGEST_URL = 500
LONGEST_FOR_S = 86_400  # for each duration in a rule, in seconds
LARGEST_THRESHOLD = alert_metrics.LARGEST


class Severity(models.TextChoices):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


GRAVITY = {Severity.CRITICAL: 0, Severity.WARNING: 1}


class NoData(models.TextChoices):
    KEEP = "keep"
    FIRE = "fire"
    CLEAR = "clear"


class Rule(models.Model):
    """A condition on a metric. `source`, `queue`, `task`, `group` and `tenant` are globs that define its scope."""

    name = models.CharField(max_length=100)
    metric = models.CharField(max_length=20, choices=[(m, m) for m in METRICS])
    source = models.CharField(max_length=200, default="*")
    queue = models.CharField(max_length=200, default="*")
    task = models.CharField(max_length=255, default="*")
    group = models.CharField(max_length=40, default="*")
    tenant = models.CharField(max_length=200, default="*")
    # Empty for a rule whose view was deleted: such a rule is disabled (`alerts/closing.py`).
    view = models.ForeignKey("SavedView", models.SET_NULL, null=True, blank=True)
    threshold = models.FloatField()
    clear = models.FloatField(null=True, blank=True, help_text="Closes at or below this; the threshold where empty.")
    for_s = models.PositiveIntegerField(default=60)
    keep_firing_s = models.PositiveIntegerField(
        default=120, help_text="It closes after so long at or below `clear`, without a break."
    )
    renotify_s = models.PositiveIntegerField(null=True, blank=True)
    escalate_s = models.PositiveIntegerField(
        null=True, blank=True, help_text="Without acknowledgement for so long, tell `escalate_to`."
    )
    no_data = models.CharField(max_length=10, default=NoData.KEEP, choices=NoData)
    severity = models.CharField(max_length=10, choices=Severity, default=Severity.WARNING)
    runbook_url = models.URLField(max_length=LONGEST_URL, blank=True)
    channels = models.ManyToManyField("Channel", blank=True, related_name="rules")
    escalate_to = models.ManyToManyField(
        "Channel", blank=True, related_name="escalations", help_text="`channels` where none is named."
    )
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)
    changed_by = models.CharField(max_length=150, blank=True)
    # Deleted rules stay, so that links in their notices still open.
    deleted_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["name"], condition=Q(deleted_at=None), name="one_rule_per_name"),
            models.CheckConstraint(condition=Q(metric__in=METRICS), name="rule_metric_is_known"),
            models.CheckConstraint(
                condition=Q(threshold__gte=0, threshold__lte=LARGEST_THRESHOLD), name="rule_threshold_is_sane"
            ),
            models.CheckConstraint(
                condition=Q(clear__isnull=True) | Q(clear__gte=0, clear__lte=F("threshold")),
                name="rule_clears_below_its_threshold",
            ),
            models.CheckConstraint(
                condition=Q(for_s__lte=LONGEST_FOR_S, keep_firing_s__lte=LONGEST_FOR_S),
                name="rule_does_not_wait_for_ever",
            ),
            models.CheckConstraint(
                condition=~Q(metric="view") | Q(view__isnull=False) | Q(deleted_at__isnull=False) | Q(enabled=False),
                name="rule_on_a_view_names_it",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def measure(self) -> alert_metrics.Metric:
        return alert_metrics.METRICS[self.metric]

    @property
    def is_narrowed(self) -> bool:
        """Return whether only some jobs of a queue count."""
        return (self.task, self.group, self.tenant) != ("*", "*", "*")


class AlertState(models.TextChoices):
    PENDING = "pending"  # true, not yet for long enough
    FIRING = "firing"
    ACKNOWLEDGED = "acknowledged"
    SILENCED = "silenced"  # true for long enough, and silenced
    RESOLVED = "resolved"


UNACKNOWLEDGED = "Acknowledgement undone."  # reason of the event with which an acknowledged alert notifies again


class Alert(models.Model):
    """One episode in which a rule is true for one queue (or source, group, view: `subject`).

    Alerts of one rule and source that fire shortly after each other share their notices: `told_with` is the first of
    them, whose number is in the key of their notices and in the links to them.
    """

    rule = models.ForeignKey(Rule, models.CASCADE, related_name="alerts")
    source = models.CharField(max_length=63)
    subject = models.CharField(max_length=255, help_text="The queue, group or view; empty for the source itself.")
    told_with = models.ForeignKey("self", models.SET_NULL, null=True, blank=True, related_name="told_together")
    state = models.CharField(max_length=14, choices=AlertState, default=AlertState.PENDING)
    severity = models.CharField(max_length=10, choices=Severity)
    value = models.FloatField(help_text="As last judged.")
    peak = models.FloatField(default=0)
    threshold = models.FloatField()
    opened_at = models.DateTimeField(help_text="Since when the condition is true.")
    fired_at = models.DateTimeField(null=True)
    below_since = models.DateTimeField(null=True, help_text="At or below `clear` without a break.")
    # The last evaluated sample: a process with an older one, which was suspended, changes nothing.
    judged_at = models.DateTimeField(null=True)
    held_because = models.CharField(max_length=300, blank=True, help_text="What keeps it as it is: its inhibition.")
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_by = models.CharField(max_length=150, blank=True, help_text="Their name; a person's or a token's.")
    told_at = models.DateTimeField(null=True, help_text="The last notice of it; reminders follow from this.")
    escalated_at = models.DateTimeField(null=True)
    resolved_at = models.DateTimeField(null=True)
    transitions = models.PositiveIntegerField(default=0, help_text="Numbers its events; the last one's.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["rule", "source", "subject"],
                condition=~Q(state="resolved"),
                name="one_open_alert_per_subject",
            )
        ]
        indexes = [
            models.Index(fields=["state", "-opened_at"], name="alert_by_state"),
            models.Index(fields=["source", "subject", "-opened_at"], name="alert_by_subject"),
            models.Index(fields=["rule", "-fired_at"], condition=Q(fired_at__isnull=False), name="alert_by_rule"),
        ]

    @property
    def is_open(self) -> bool:
        return self.state != AlertState.RESOLVED


IS_FIRING = Q(state__in=(AlertState.FIRING, AlertState.ACKNOWLEDGED))
_COUNT_JOBS = [one.name for one in alert_metrics.METRICS.values() if one.counts_jobs]


def find_firing(alerts: QuerySet[Alert]) -> QuerySet[Alert]:
    """Return those of the alerts that are firing, acknowledged or not, worst first.

    The order is by severity, then unacknowledged first, then by jobs over the threshold, then latest first.
    """
    rank = Case(
        *(When(severity=severity, then=Value(n)) for severity, n in GRAVITY.items()),
        default=Value(len(GRAVITY)),
        output_field=IntegerField(),
    )
    excess = Case(When(rule__metric__in=_COUNT_JOBS, then=F("value") - F("threshold")), default=Value(0.0))
    found = alerts.filter(IS_FIRING).annotate(rank=rank, excess=excess)
    return found.order_by("rank", "-state", "-excess", "-fired_at", "-pk")


class AlertEvent(models.Model):
    """A transition of an alert, with the value and the reason. `n` counts from 1 within the alert."""

    alert = models.ForeignKey(Alert, models.CASCADE, related_name="events")
    n = models.PositiveIntegerField()
    at = models.DateTimeField()
    to = models.CharField(max_length=14, choices=AlertState)
    value = models.FloatField(null=True)
    reason = models.CharField(max_length=500, blank=True)
    is_held = models.BooleanField(default=False, help_text="Whether something keeps it as it is from then on.")
    actor = models.CharField(max_length=150, blank=True)
    notice = models.ForeignKey("Notice", models.SET_NULL, null=True, blank=True, related_name="events")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["alert", "n"], name="one_event_per_transition")]

    @property
    def is_undo(self) -> bool:
        """Return whether it undoes an acknowledgement.

        An acknowledgement's comment may have the same text; that is no undo.
        """
        return self.reason == UNACKNOWLEDGED and self.to != AlertState.ACKNOWLEDGED


class Silence(models.Model):
    """A silence of all alerts that match every matcher, for a time. They fire without notices."""

    matchers = models.JSONField(
        help_text='Globs: {"source", "queue", "rule"}, and {"severity"}, {"alert": id}; what is left out fits all.'
    )
    author = models.CharField(max_length=150)
    comment = models.CharField(max_length=500)
    created_at = models.DateTimeField(auto_now_add=True)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField(db_index=True)
    ended_by = models.CharField(max_length=150, blank=True, help_text="Who ended it before its time.")

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(ends_at__gte=F("starts_at")), name="silence_ends_after_it_starts")
        ]

    def covers(self, alert: Alert, rule_name: str) -> bool:
        """Return whether the alert matches every matcher, whatever the time."""
        if "alert" in self.matchers and self.matchers["alert"] not in (alert.pk, alert.told_with_id):
            return False
        if self.matchers.get("severity", alert.severity) != alert.severity:
            return False
        return self.matches_names({"source": alert.source, "queue": alert.subject, "rule": rule_name})

    def matches_names(self, names: Mapping[str, str]) -> bool:
        """Return whether each of these names matches the glob of its kind, if there is one."""
        exact = self.matchers.get("exact", ())
        return all(
            self.matchers[kind] == text if kind in exact else matches(str(self.matchers[kind]), text)
            for kind, text in names.items()
            if kind in self.matchers
        )


class Runbook(models.Model):
    """Instructions for failures of a task. The runbook of a group or of an alert rule takes precedence."""

    task = models.CharField(max_length=255, unique=True, help_text="A glob; the most particular one counts.")
    url = models.URLField(max_length=LONGEST_URL)
    changed_by = models.CharField(max_length=150, blank=True)
    changed_at = models.DateTimeField(auto_now=True)
