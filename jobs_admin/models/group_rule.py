from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils import timezone

from jobs_admin.models.group import Group


class GroupRuleKind(models.TextChoices):
    MERGE = "merge", "merge groups"
    SPLIT = "split", "split a group"
    IGNORE = "ignore", "ignore a frame"


class GroupRule(models.Model):
    """A person's decision about grouping, which overrides the fingerprint. The latest first where two differ."""

    kind = models.CharField(max_length=10, choices=GroupRuleKind)
    # merge: the group that takes the others in. split: the group that is split. ignore: none, the rule is for all.
    group = models.ForeignKey(Group, models.CASCADE, null=True, blank=True, related_name="rules")
    others = models.JSONField(default=list, help_text="Merge: the fingerprints that were taken in.")
    by = models.CharField(
        max_length=20, blank=True, help_text="Split: task, queue, source, tenant, release or message."
    )
    frame = models.CharField(max_length=300, blank=True, help_text="Ignore: `file in function`; * matches anything.")
    note = models.CharField(max_length=500, blank=True)
    # Of groups that were taken in: state, note, assignee …, so that taking the rule back gives them back. "sources": what
    # it was about when it was saved, "moved" and "into": the groups that it moved failures between.
    before = models.JSONField(default=dict)
    author = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)
    since = models.DateTimeField(default=timezone.now, help_text="In force since, or taken back.")
    # Applying it to failures that are known takes a while: the highest id that was looked at, 0 before.
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
