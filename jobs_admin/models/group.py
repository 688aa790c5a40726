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


# A group that another one took in stands under this name until its failures have moved (jobs_admin/groups/regrouping.py).
TAKEN_IN = "was-"
IS_TAKEN_IN = models.Q(fingerprint__startswith=TAKEN_IN)


class Group(models.Model):
    """The failures that share one fingerprint: the same thing broke, whatever task or source it broke in."""

    fingerprint = models.CharField(max_length=40, unique=True)
    error_type = models.CharField(max_length=255)
    message = models.CharField(max_length=500, help_text="The message with its variable parts replaced.")
    culprit = models.CharField(max_length=255, blank=True, help_text="The innermost application frame.")
    state = models.CharField(max_length=10, choices=GroupState, default=GroupState.NEW)
    # Who made it so, and when: empty for the engine, and for what is as it was found.
    state_by = models.CharField(max_length=150, blank=True)
    state_since = models.DateTimeField(null=True, blank=True)
    # What it came back after: `replay:12` or `release:2026.11.2`; only while regressed.
    regressed_after = models.CharField(max_length=120, blank=True)
    # What ended its mute: `time` or `count`; only while ongoing after it.
    mute_ended = models.CharField(max_length=5, blank=True)
    resolved_at = models.DateTimeField(null=True, blank=True)
    muted_until = models.DateTimeField(null=True, blank=True)
    muted_until_count = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="The count of failed attempts that ends the mute."
    )
    assignee = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    note = models.TextField(blank=True)
    runbook_url = models.URLField(max_length=500, blank=True)
    count = models.PositiveBigIntegerField(default=0, help_text="Failed attempts ever seen.")
    first_seen = models.DateTimeField()
    first_release = models.CharField(max_length=100, blank=True, help_text="The release that it was first seen in.")
    last_seen = models.DateTimeField(db_index=True)
    representative = models.ForeignKey(
        "Failure", models.SET_NULL, null=True, blank=True, related_name="+", db_constraint=False
    )

    class Meta:
        indexes = [
            models.Index(fields=["state", "-last_seen"], name="group_by_state"),
            models.Index(fields=["error_type"], name="group_by_type"),
            models.Index(fields=["culprit"], name="group_by_culprit"),
        ]

    def __str__(self) -> str:
        return marked(self.title)

    @property
    def name(self) -> str:
        """Fingerprint for display. Of a group that is being merged: the alias, which opens the group that takes it in."""
        return self.fingerprint.removeprefix(TAKEN_IN)

    @property
    def title(self) -> str:
        return f"{self.error_type}: {self.message}" if self.message else self.error_type


class GroupAlias(models.Model):
    """A fingerprint that used to name this group: links and notes outlive a change of the algorithm."""

    fingerprint = models.CharField(max_length=40, unique=True)
    group = models.ForeignKey(Group, models.CASCADE, related_name="aliases")


class GroupSource(models.Model):
    """One source's part of a group: its text, and when it was seen there. A viewer of some sources reads only this."""

    group = models.ForeignKey(Group, models.CASCADE, related_name="of_sources", db_index=False)
    source = models.CharField(max_length=63)
    error_type = models.CharField(max_length=255)
    message = models.CharField(max_length=500, help_text="As in the group: of its first failure at this source.")
    culprit = models.CharField(max_length=255, blank=True)
    first_seen = models.DateTimeField()
    first_release = models.CharField(max_length=100, blank=True)
    last_seen = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["group", "source"], name="one_row_per_group_and_source")]
