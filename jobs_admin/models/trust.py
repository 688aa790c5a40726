"""Trust in reports: keys of sources, the period in which unsigned reports are accepted, refused and unfiled reports."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.apps import apps as registry
from django.db import models
from django.utils import timezone

UNSIGNED_FOR = timedelta(days=30)  # from the first migration


class SourceKey(models.Model):
    """A key with which the workers of one source sign reports. A source may have several in force."""

    source = models.CharField(max_length=63)
    key_id = models.CharField(max_length=12, unique=True, help_text="Named in each report that is signed with it.")
    sealed = models.TextField(editable=False, help_text="Fernet token of the key.")
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=150)
    last_used_at = models.DateTimeField(null=True, blank=True, help_text="Latest report signed with it, to the minute.")
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["source"], name="source_key_by_source")]

    def __str__(self) -> str:
        return f"{self.source} {self.key_id}"


class UnsignedReports(models.Model):
    """The single row with the time until which unsigned reports are accepted."""

    until = models.DateTimeField()
    accepted_sources = models.PositiveIntegerField(
        default=0, help_text="Unknown sources that were accepted automatically so far."
    )

    class Meta:
        verbose_name_plural = "unsigned reports"
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="one_unsigned_reports_row")]


class RefusedReports(models.Model):
    """The reports of one source that were refused for one cause.

    Those of cause `unknown` are sources to be accepted.
    """

    source = models.CharField(max_length=63, blank=True, help_text="Empty: unknown sources beyond the bound.")
    cause = models.CharField(max_length=10)
    refused = models.PositiveBigIntegerField(default=0, help_text="All that were refused.")
    dropped = models.PositiveBigIntegerField(default=0, help_text="Those of them that were not stored.")
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()
    why = models.TextField(help_text="Of the latest one.")

    class Meta:
        verbose_name_plural = "refused reports"
        constraints = [models.UniqueConstraint(fields=["source", "cause"], name="one_row_per_source_and_cause")]


class Unfiled(models.Model):
    """A report that could not be filed, or was refused, stored unchanged, so that nothing is lost."""

    # Two streams may have the same ids: if the stream has a source, the source and a slash precede it.
    entry_id = models.CharField(max_length=120, unique=True, help_text="Its id in the stream.")
    # The version before 0023 writes neither of the two.
    source = models.CharField(
        max_length=63, blank=True, db_default="", default="", help_text="The source that it names; empty: not known."
    )
    # Value of `jobs_admin.trust.Cause`; empty: it could not be read or written.
    cause = models.CharField(
        max_length=10, blank=True, db_default="", default="", help_text="Why the desk refused it, in a word."
    )
    received_at = models.DateTimeField()
    why = models.TextField()
    body = models.BinaryField(help_text="Fernet token of the whole entry.")
    size = models.PositiveBigIntegerField()
    payload_key = models.CharField(
        max_length=8, null=True, editable=False, help_text="Id of the key of `body`. Null: not determined yet."
    )

    class Meta:
        verbose_name = "unfiled report"
        indexes = [
            models.Index(fields=["payload_key", "id"], name="unfiled_by_key"),
            models.Index(fields=["source", "cause", "id"], name="unfiled_by_cause", condition=models.Q(cause__gt="")),
        ]


def open_unsigned_reports(apps: Any = registry, using: str = "default", **_: Any) -> None:
    """Accept unsigned reports for 30 days from the first migration, so that a first worker needs no key."""
    try:
        unsigned = apps.get_model("jobs_admin", "UnsignedReports")
    except LookupError:  # migrated back to before the model
        return
    unsigned.objects.using(using).get_or_create(pk=1, defaults={"until": timezone.now() + UNSIGNED_FOR})
