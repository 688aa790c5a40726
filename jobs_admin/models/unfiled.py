from __future__ import annotations

from django.db import models


class Unfiled(models.Model):
    """A report that could not be filed, or was refused, stored as it came, so that nothing is lost."""

    # Ids of two streams may be the same: before it stand the source of the stream and a slash, where it has one.
    entry_id = models.CharField(max_length=120, unique=True, help_text="Its id in the stream.")
    # The version before 0023 writes neither of the two.
    source = models.CharField(
        max_length=63, blank=True, db_default="", default="", help_text="The source that it names; empty: not known."
    )
    # Of `jobs_admin.trust.Cause`; empty: it could not be read or written.
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
