"""Counts over time, and totals for Prometheus.

A count is added to its minute and to every longer step that contains it, in one statement. Counters change only with a
new attempt, so nothing is counted twice. A reader chooses one step: minutes for rates, longer ones for charts of a day,
which then read a few rows per group instead of 1,440.
"""

from __future__ import annotations

from datetime import timedelta

from django.db import models

MINUTE, QUARTER, HOUR = 60, 900, 3600
# Retention of the shorter steps, and the range on which readers can rely, because deletion may have started.
MINUTES_RETENTION, QUARTERS_RETENTION = timedelta(days=2), timedelta(days=14)
MINUTES_BACK, QUARTERS_BACK = MINUTES_RETENTION - timedelta(hours=1), QUARTERS_RETENTION - timedelta(days=1)
STEPS_OF_GROUPS = (MINUTE, HOUR)
STEPS_OF_QUEUES = (MINUTE, QUARTER, HOUR)


class GroupCounter(models.Model):
    group = models.ForeignKey("Group", models.CASCADE, related_name="counters", db_index=False)
    step = models.PositiveIntegerField(
        default=MINUTE, help_text="Seconds that the row covers: 60 or 3600, of queues 900 too."
    )
    at = models.DateTimeField(help_text="Start of the step.")
    failed = models.PositiveBigIntegerField(default=0)
    retried = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["group", "step", "at"], name="one_counter_per_group_step")]
        indexes = [models.Index(fields=["step", "at"], name="group_counter_by_time")]


class QueueCounter(models.Model):
    source = models.CharField(max_length=63)
    queue = models.CharField(max_length=200)
    step = models.PositiveIntegerField(default=MINUTE)
    at = models.DateTimeField()
    started = models.PositiveBigIntegerField(default=0)
    succeeded = models.PositiveBigIntegerField(default=0)
    failed = models.PositiveBigIntegerField(default=0, help_text="Attempts that failed for good.")
    retried = models.PositiveBigIntegerField(default=0, help_text="Attempts that failed and will be retried.")
    recovered = models.PositiveBigIntegerField(default=0, help_text="Failures that ran well later.")
    sent = models.PositiveBigIntegerField(default=0, help_text="Jobs sent by replays.")
    busy_s = models.FloatField(default=0, help_text="Seconds that workers spent in jobs that ended.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["source", "queue", "step", "at"], name="one_counter_per_queue_step")
        ]
        indexes = [models.Index(fields=["step", "at"], name="queue_counter_by_time")]


class Total(models.Model):
    """A count that only grows, for Prometheus. It outlives the rows that were counted.

    Labels that a metric does not have are empty. Beyond a metric's limit of label sets, new ones become `other`.
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
