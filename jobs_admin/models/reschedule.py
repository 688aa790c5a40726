"""Reschedules: changes of the due time and number of attempts of waiting retries."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q


class RescheduleState(models.TextChoices):
    PLANNED = "planned"
    DONE = "done"
    STOPPED = "stopped"


class Reschedule(models.Model):
    """An act on waiting retries of one source: planned by an operator, carried out by `watch`."""

    source = models.CharField(max_length=63)
    state = models.CharField(max_length=10, choices=RescheduleState, default=RescheduleState.PLANNED)
    query = models.TextField(blank=True, help_text="The scope, with relative times pinned to absolute ones.")
    selection = models.JSONField(default=list, blank=True, help_text="Its other form: ids of failures chosen by hand.")
    scope_max_id = models.BigIntegerField(
        help_text="The highest failure id of the preview: what came later is not in it."
    )
    change = models.JSONField(help_text="core.retry_change.Change as a document; of an undo empty.")
    undo_of = models.ForeignKey("self", models.CASCADE, null=True, blank=True, related_name="undone_by")
    reason = models.CharField(max_length=500, blank=True)
    actor = models.CharField(max_length=150)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    below = models.BigIntegerField(help_text="Everything from this failure on (of an undo: this part) was looked at.")
    matched = models.PositiveIntegerField(default=0, help_text="When it was planned.")
    changed = models.PositiveIntegerField(default=0)
    left = models.PositiveIntegerField(
        default=0, help_text="Looked at, and as they were: they waited no more, or could not."
    )
    why = models.CharField(max_length=500, blank=True, help_text="Why it was stopped.")

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(state__in=RescheduleState.values), name="reschedule_state_is_known"),
            models.UniqueConstraint(fields=["undo_of"], name="one_undo_per_reschedule"),
        ]
        indexes = [
            models.Index(fields=["source", "id"], condition=Q(state="planned"), name="reschedule_planned"),
        ]

    def __str__(self) -> str:
        return f"reschedule #{self.pk}"


class ReschedulePart(models.Model):
    """Changes of one transaction of a reschedule, for its undo."""

    reschedule = models.ForeignKey(Reschedule, models.CASCADE, related_name="parts")
    # [failure, run, attempts, due before, max attempts before, due after, max attempts after]; times in seconds since
    # 1970.
    rows = models.JSONField(default=list)
