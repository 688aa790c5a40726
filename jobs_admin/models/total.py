from __future__ import annotations

from django.db import models


class Total(models.Model):
    """A count that only grows, for Prometheus: what it counted outlives the rows that were counted.

    Labels that a metric does not have are empty. Beyond a metric's bound of label sets what comes new is `other`.
    """

    metric = models.CharField(max_length=60)
    source = models.CharField(max_length=63, blank=True)
    queue = models.CharField(max_length=200, blank=True)
    task = models.CharField(max_length=255, blank=True)
    error = models.CharField(max_length=255, blank=True)
    value = models.FloatField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["metric", "source", "queue", "task", "error"], name="one_total_per_labels")
        ]
