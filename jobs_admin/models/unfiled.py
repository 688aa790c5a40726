from __future__ import annotations

from django.db import models


class Unfiled(models.Model):
    """A report that could not be filed, kept as it came, so that nothing is lost."""

    entry_id = models.CharField(max_length=40, unique=True, help_text="Its id in the stream.")
    received_at = models.DateTimeField()
    why = models.TextField()
    body = models.BinaryField(help_text="Fernet token of the whole entry.")
    size = models.PositiveBigIntegerField()

    class Meta:
        verbose_name = "unfiled report"
