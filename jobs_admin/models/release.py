from __future__ import annotations

from django.db import models


class Release(models.Model):
    """A deployed version of the user's code, reported by the API or first seen on a report."""

    source = models.CharField(max_length=63)
    version = models.CharField(max_length=100)
    at = models.DateTimeField()
    told_by = models.CharField(max_length=150, blank=True, help_text="Empty: it was first seen on a report.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["source", "version"], name="one_row_per_release")]
