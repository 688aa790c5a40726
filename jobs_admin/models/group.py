"""Groups, their fingerprints and sources, and operators' grouping rules."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from jobs_admin.core.text import marked


class GroupState(models.TextChoices):
    NEW = "new"
    ONGOING = "ongoing"
    REGRESSED = "regressed"
    RESOLVED = "resolved"
    MUTED = "muted"


# A merged group has this prefix in its name until its failures have moved (jobs_admin/groups/regrouping.py).
TAKEN_IN = "was-"
IS_TAKEN_IN = Q(fingerprint__startswith=TAKEN_IN)


class Group(models.Model):
    """Failures with the same fingerprint: the same cause, in any task or source."""

    fingerprint = models.CharField(max_length=40, unique=True)
    error_type = models.CharField(max_length=255)
    message = models.CharField(max_length=500, help_text="The message with its variable parts replaced.")
    culprit = models.CharField(max_length=255, blank=True, help_text="The innermost application frame.")
    state = models.CharField(max_length=10, choices=GroupState, default=GroupState.NEW)
    # Who set the state, and when: empty for the engine, and for an unchanged state.
    state_by = models.CharField(max_length=150, blank=True)
    state_since = models.DateTimeField(null=True, blank=True)
    # Cause of the regression: `replay:12` or `release:2026.11.2`; only while regressed.
    regressed_after = models.CharField(max_length=120, blank=True)
    # How its mute ended: `time` or `count`; only while ongoing after it.
    mute_ended = models.CharField(max_length=5, blank=True)
    resolved_at = models.DateTimeField(null=True, blank=True)
    muted_until = models.DateTimeField(null=True, blank=True)
    muted_until_count = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="The count of failed attempts that ends the mute."
    )
    assignee = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    note = models.TextField(blank=True)
    runbook_url = models.URLField(max_length=500, blank=True)
    issue_url = models.URLField(
        max_length=500, blank=True, db_default="", default="", help_text="Its issue in the issue tracker."
    )
    dependency = models.CharField(
        max_length=120,
        blank=True,
        db_default="",
        default="",
        help_text="Set by a person; empty: derived for each source.",
    )
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
        """Fingerprint for display.

        For a group that is being merged: the alias, which opens the group that it is merged into.
        """
        return self.fingerprint.removeprefix(TAKEN_IN)

    @property
    def title(self) -> str:
        return f"{self.error_type}: {self.message}" if self.message else self.error_type


class GroupAlias(models.Model):
    """A former fingerprint of this group: links and notes remain valid when the algorithm changes."""

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
    dependency = models.CharField(
        max_length=120, blank=True, db_default="", default="", help_text="What failed these jobs; empty: nothing known."
    )
    dependency_reason = models.CharField(max_length=200, blank=True, db_default="", default="")
    dependency_by = models.CharField(
        max_length=150, blank=True, db_default="", default="", help_text="Who set the dependency; empty: derived."
    )
    # Version of the rules and policies from which it was derived (ingest/dependencies.py); null: not yet.
    dependency_stamp = models.IntegerField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["group", "source"], name="one_row_per_group_and_source")]
        indexes = [
            models.Index(fields=["source", "dependency"], condition=Q(dependency__gt=""), name="group_dependency"),
            models.Index(fields=["dependency_stamp"], name="group_dependency_stamp"),
        ]


class GroupRuleKind(models.TextChoices):
    MERGE = "merge", "merge groups"
    SPLIT = "split", "split a group"
    IGNORE = "ignore", "ignore a frame"


class GroupRule(models.Model):
    """An operator's decision about grouping, which overrides the fingerprint. If two conflict, the latest applies."""

    kind = models.CharField(max_length=10, choices=GroupRuleKind)
    # merge: the group that receives the others. split: the split group. ignore: none, the rule is for all.
    group = models.ForeignKey(Group, models.CASCADE, null=True, blank=True, related_name="rules")
    others = models.JSONField(default=list, help_text="Merge: the fingerprints that were taken in.")
    by = models.CharField(
        max_length=20, blank=True, help_text="Split: task, queue, source, tenant, release or message."
    )
    frame = models.CharField(max_length=300, blank=True, help_text="Ignore: `file in function`; * matches anything.")
    note = models.CharField(max_length=500, blank=True)
    # State, note, assignee … of merged groups, which withdrawing the rule restores. "sources": its sources when it was
    # saved; "moved" and "into": the groups between which it moved failures.
    before = models.JSONField(default=dict)
    author = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)
    since = models.DateTimeField(default=timezone.now, help_text="In force since, or taken back.")
    # Position in applying it to known failures: the highest id processed, 0 before.
    applied_to = models.BigIntegerField(default=0)
    is_applied = models.BooleanField(default=False)
    is_withdrawn = models.BooleanField(default=False, help_text="Taken back; kept for the record.")

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(kind__in=GroupRuleKind.values), name="group_rule_kind_is_known")
        ]
        indexes = [models.Index(fields=["is_applied"], condition=Q(is_applied=False), name="group_rule_unapplied")]

    def __str__(self) -> str:
        return f"{self.kind} rule {self.pk}"
