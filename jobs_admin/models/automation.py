"""An automation, and its decisions."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

ACTS = ("replay", "discard", "assign", "notify", "pause")


class AutomationMode(models.TextChoices):
    DRY_RUN = "dry_run"  # does nothing; pages show what it would have done
    AWAITING_APPROVAL = "awaiting_approval"
    LIVE = "live"


class Automation(models.Model):
    """Conditions on the jobs of a search, and the act when they hold. Its acts have its owner's rights."""

    name = models.CharField(max_length=63, unique=True)
    source = models.CharField(max_length=63, help_text="The source whose jobs it acts on; * for every source.")
    query = models.TextField(blank=True)
    rule = models.ForeignKey("Rule", models.SET_NULL, null=True, blank=True, help_text="Must have resolved.")
    min_jobs = models.PositiveIntegerField()
    quiet_s = models.PositiveIntegerField(help_text="No job that matches has failed for so many seconds.")
    cooldown_s = models.PositiveIntegerField(help_text="Seconds between two acts, at least.")
    cap_per_hour = models.PositiveIntegerField(help_text="Jobs that it acts on within an hour, at most.")
    act = models.CharField(max_length=10, choices=[(act, act) for act in ACTS])
    parameters = models.JSONField(
        default=dict, help_text="Of the act: pace, delay_s, assignee, channels, queue, for_s."
    )
    note = models.CharField(max_length=500, blank=True)
    mode = models.CharField(max_length=20, choices=AutomationMode, default=AutomationMode.DRY_RUN)
    expires_at = models.DateTimeField(null=True, blank=True, help_text="When it goes back to dry run. Null: never.")
    version = models.PositiveIntegerField(default=1, help_text="Rises with each change of what it does.")

    # The person or token that last changed or enabled it. All null with a name: deleted since.
    owner_name = models.CharField(max_length=150)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    owner_token = models.ForeignKey("ApiToken", models.SET_NULL, null=True, related_name="+")
    approver = models.CharField(max_length=150, blank=True)
    created_at = models.DateTimeField()
    changed_at = models.DateTimeField()

    last_n = models.PositiveIntegerField(default=0, help_text="Of its diary: the number of the latest decision.")
    tripped_at = models.DateTimeField(null=True, blank=True, help_text="Null: it is not tripped.")
    why_tripped = models.CharField(max_length=500, blank=True)
    reset_at = models.DateTimeField(null=True, blank=True)
    checked_at = models.DateTimeField(null=True, blank=True)
    why_not = models.CharField(max_length=500, blank=True, help_text="Why it did nothing when it was last checked.")

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(act__in=ACTS), name="automation_act_is_known"),
            models.CheckConstraint(condition=Q(mode__in=AutomationMode.values), name="automation_mode_is_known"),
        ]

    def __str__(self) -> str:
        return self.name


class DecisionState(models.TextChoices):
    PLANNED = "planned"  # stored before the act
    DONE = "done"
    REFUSED = "refused"  # nothing was changed; does not count against the automation
    FAILED = "failed"
    CANCELLED = "cancelled"
    WAITED = "waited"  # it did nothing, for a new reason


class AutomationDecision(models.Model):
    """A decision of a live automation. The row is stored before the act, so that each act happens once."""

    automation = models.ForeignKey(Automation, models.CASCADE, related_name="decisions", db_index=False)
    n = models.PositiveIntegerField(help_text="Within the automation, from 1.")
    at = models.DateTimeField()
    version = models.PositiveIntegerField(help_text="Of the automation.")
    state = models.CharField(max_length=10, choices=DecisionState)
    jobs = models.PositiveIntegerField(default=0, help_text="Jobs that it decided to act on.")
    selection = models.JSONField(default=list, help_text="While it is planned: ids of the failures.")
    due_at = models.DateTimeField(null=True, help_text="When the act is due; null where it did nothing.")
    replay = models.ForeignKey("Replay", models.SET_NULL, null=True, related_name="+")
    text = models.CharField(max_length=500, blank=True, help_text="What was done, or why nothing was.")
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["automation", "n"], name="one_decision_per_number"),
            models.CheckConstraint(condition=Q(state__in=DecisionState.values), name="decision_state_is_known"),
        ]
        indexes = [
            models.Index(fields=["automation", "state"], condition=Q(state="planned"), name="decision_planned"),
        ]

    @property
    def idempotency_key(self) -> str:
        return f"automation:{self.automation_id}:{self.n}"
