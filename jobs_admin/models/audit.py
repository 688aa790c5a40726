from __future__ import annotations

from django.conf import settings
from django.db import models


class AuditEvent(models.Model):
    """An act, done or refused. Rows form a chain: each holds a MAC of itself and the previous one."""

    at = models.DateTimeField()
    actor = models.CharField(max_length=150)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+", db_constraint=False
    )
    token_id = models.BigIntegerField(null=True)
    act = models.CharField(max_length=60, help_text="`replay.start`, `failure.discard` …")
    source = models.CharField(max_length=63, blank=True)
    object = models.CharField(max_length=120, blank=True, help_text="`replay:12`, `failure:4711`, `group:v1-…`")
    reason = models.CharField(max_length=500, blank=True)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    allowed = models.BooleanField(default=True)
    mac = models.CharField(max_length=64)

    class Meta:
        indexes = [
            models.Index(fields=["object", "-id"], name="audit_by_object"),
            models.Index(fields=["act", "-id"], name="audit_by_act"),
        ]


class AuditPosition(models.Model):
    """Position up to which the audit was forwarded: one row."""

    position = models.BigIntegerField(help_text="The last forwarded event.")
    next_try_at = models.DateTimeField(null=True, help_text="While events are being sent, the end of the claim.")
    failing_since = models.DateTimeField(null=True)
    error = models.CharField(max_length=300, blank=True)
