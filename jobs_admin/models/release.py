from __future__ import annotations

from django.db import models


class Release(models.Model):
    """A deployed version of the user's code, told by the API or first seen on a report."""

    source = models.CharField(max_length=63)
    version = models.CharField(max_length=100)
    at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["source", "version"], name="one_row_per_release")]
