from __future__ import annotations

from django.db import models
from django.db.models import Q


class Pause(models.Model):
    """A pause by hand of one queue, or of one task on all queues. Guarded workers start none of its jobs meanwhile."""

    source = models.CharField(max_length=63)
    queue = models.CharField(max_length=255, blank=True)
    task = models.CharField(max_length=255, blank=True)
    reason = models.CharField(max_length=500)
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=150)
    until = models.DateTimeField(null=True, help_text="When the pause ends automatically. Null: until resumed.")
    resumed_at = models.DateTimeField(null=True, db_index=True, help_text="When the pause ended. Null: paused.")
    resumed_by = models.CharField(max_length=150, blank=True, help_text="Empty: the pause ended automatically.")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=(Q(queue="") & ~Q(task="")) | (~Q(queue="") & Q(task="")), name="pause_of_a_queue_or_a_task"
            ),
            models.UniqueConstraint(
                fields=["source", "queue", "task"], condition=Q(resumed_at=None), name="one_open_pause"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.source}/{self.queue or self.task}"
