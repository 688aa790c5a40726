from __future__ import annotations

from django.db import models


class DepthSample(models.Model):
    """One look at one queue, or many of them folded (`jobs_admin.queues.depths`). A queue that could not be reached is a row too,
    never a zero.

    A folded row holds the last value of each number, the mean of what is per minute, and why some of its looks found the
    source out of reach; workers, acknowledgement and priorities stand only in looks.
    """

    source = models.CharField(max_length=63)
    queue = models.CharField(max_length=200)
    at = models.DateTimeField()
    step = models.PositiveIntegerField(default=10, help_text="Seconds that the row stands for.")
    looks = models.PositiveIntegerField(default=1, help_text="How many looks it was folded from.")
    is_reachable = models.BooleanField(default=True)
    why = models.CharField(max_length=300, blank=True)
    waiting = models.PositiveBigIntegerField(null=True)
    active = models.PositiveBigIntegerField(null=True)
    delayed = models.PositiveBigIntegerField(null=True)
    dead = models.PositiveBigIntegerField(null=True)
    source_dead = models.PositiveBigIntegerField(null=True)
    oldest_dead_at = models.DateTimeField(null=True)
    failed_per_min = models.FloatField(null=True)
    succeeded_per_min = models.FloatField(null=True)
    workers = models.PositiveIntegerField(null=True, help_text="Guarded or not; null where the source cannot tell.")
    guarded_workers = models.PositiveIntegerField(null=True)
    durability = models.CharField(max_length=20, blank=True, help_text="late or early acknowledgement, or mixed.")
    by_priority = models.JSONField(default=dict)
    # The least and the most of what was folded; null where that is the last value, as in most rows of most queues.
    waiting_min = models.PositiveBigIntegerField(null=True)
    waiting_max = models.PositiveBigIntegerField(null=True)
    active_min = models.PositiveBigIntegerField(null=True)
    active_max = models.PositiveBigIntegerField(null=True)
    delayed_min = models.PositiveBigIntegerField(null=True)
    delayed_max = models.PositiveBigIntegerField(null=True)
    dead_min = models.PositiveBigIntegerField(null=True)
    dead_max = models.PositiveBigIntegerField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["source", "queue", "step", "at"], name="one_sample_per_step")]
        indexes = [models.Index(fields=["step", "at"], name="sample_by_time")]
