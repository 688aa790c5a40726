"""Counts over time: each thing is counted in its minute and in every longer step around it, in one statement.

Written only with a new attempt, so they never count twice. A reader asks for one step: minutes for rates, longer ones
for pictures of a day, which then cost a few rows a group instead of 1,440.
"""

from __future__ import annotations

from datetime import timedelta

from django.db import models

MINUTE, QUARTER, HOUR = 60, 900, 3600
# How long the shorter steps are kept, and how far back whoever reads may count on them: retention may have begun.
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
