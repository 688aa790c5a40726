from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q


class PolicyVersion(models.Model):
    """One version of a retry policy. The published version of a name is in force; the others are its history."""

    name = models.CharField(max_length=100)
    version = models.PositiveIntegerField()
    mode = models.CharField(max_length=10, choices=[("observe", "observe"), ("enforce", "enforce")], default="observe")
    match_source = models.CharField(max_length=200, default="*")
    match_queue = models.CharField(max_length=200, default="*")
    match_task = models.CharField(max_length=255, default="*")
    max_attempts = models.PositiveIntegerField(default=5)
    cap_s = models.FloatField(null=True, blank=True)
    # The whole document in the contract's shape: the columns above are what constraints look at.
    document = models.JSONField()
    is_published = models.BooleanField(default=False)
    published_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True, help_text="Then the version before is in force again.")
    note = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["name", "version"], name="one_row_per_policy_version"),
            models.UniqueConstraint(fields=["name"], condition=Q(is_published=True), name="one_published_version"),
            models.UniqueConstraint(
                fields=["match_source", "match_queue", "match_task"],
                condition=Q(is_published=True),
                name="no_two_policies_match_equally",
            ),
            models.CheckConstraint(
                condition=Q(max_attempts__gte=1) & Q(max_attempts__lte=1000), name="policy_attempts_bounded"
            ),
            models.CheckConstraint(
                condition=Q(cap_s__isnull=True) | (Q(cap_s__gte=0) & Q(cap_s__lte=30 * 86400)),
                name="policy_cap_bounded",
            ),
            models.CheckConstraint(condition=Q(mode__in=["observe", "enforce"]), name="policy_mode_is_known"),
        ]

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"
