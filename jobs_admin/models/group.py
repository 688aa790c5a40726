from __future__ import annotations

from django.conf import settings
from django.db import models

from jobs_admin.core.text import marked


class GroupState(models.TextChoices):
    NEW = "new"
    ONGOING = "ongoing"
    REGRESSED = "regressed"
    RESOLVED = "resolved"
    MUTED = "muted"


class Group(models.Model):
    """The failures that share one fingerprint: the same thing broke, whatever task or source it broke in."""

    fingerprint = models.CharField(max_length=40, unique=True)
    error_type = models.CharField(max_length=255)
    message = models.CharField(max_length=500, help_text="The message with its variable parts replaced.")
    culprit = models.CharField(max_length=255, blank=True, help_text="The innermost application frame.")
    state = models.CharField(max_length=10, choices=GroupState, default=GroupState.NEW)
    # What it came back after: `replay:12` or `release:2026.11.2`; only while regressed.
    regressed_after = models.CharField(max_length=120, blank=True)
    resolved_at = models.DateTimeField(null=True, blank=True)
    muted_until = models.DateTimeField(null=True, blank=True)
    muted_until_count = models.PositiveBigIntegerField(null=True, blank=True)
    assignee = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    note = models.TextField(blank=True)
    runbook_url = models.URLField(max_length=500, blank=True)
    count = models.PositiveBigIntegerField(default=0, help_text="Failed attempts ever seen.")
    first_seen = models.DateTimeField()
    last_seen = models.DateTimeField(db_index=True)
    representative = models.ForeignKey(
        "Failure", models.SET_NULL, null=True, blank=True, related_name="+", db_constraint=False
    )

    class Meta:
        indexes = [models.Index(fields=["state", "-last_seen"], name="group_by_state")]

    def __str__(self) -> str:
        return marked(self.title)

    @property
    def title(self) -> str:
        return f"{self.error_type}: {self.message}" if self.message else self.error_type


class GroupAlias(models.Model):
    """A fingerprint that used to name this group: links and notes outlive a change of the algorithm."""

    fingerprint = models.CharField(max_length=40, unique=True)
    group = models.ForeignKey(Group, models.CASCADE, related_name="aliases")
