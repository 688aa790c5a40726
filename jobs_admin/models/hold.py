"""Pauses, and the history of breakers."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from jobs_admin.core.breaker_memory import HOST
from jobs_admin.core.pauses import KINDS


class Pause(models.Model):
    """An operator's pause of one queue, or on all queues of one task, tenant or dependency (named by its breaker).

    Guarded workers start none of its jobs meanwhile.
    """

    source = models.CharField(max_length=63)
    queue = models.CharField(max_length=255, blank=True)
    task = models.CharField(max_length=255, blank=True)
    tenant = models.CharField(max_length=255, blank=True, default="", db_default="")
    dependency = models.CharField(max_length=255, blank=True, default="", db_default="")
    reason = models.CharField(max_length=500)
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=150)
    until = models.DateTimeField(null=True, help_text="When the pause ends automatically. Null: until resumed.")
    resumed_at = models.DateTimeField(null=True, db_index=True, help_text="When the pause ended. Null: paused.")
    resumed_by = models.CharField(max_length=150, blank=True, help_text="Empty: the pause ended automatically.")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=(~Q(queue="") & Q(task="", tenant="", dependency=""))
                | (~Q(task="") & Q(queue="", tenant="", dependency=""))
                | (~Q(tenant="") & Q(queue="", task="", dependency=""))
                | (~Q(dependency="") & Q(queue="", task="", tenant="")),
                name="pause_of_one_kind",
            ),
            models.UniqueConstraint(
                fields=["source", "queue", "task", "tenant", "dependency"],
                condition=Q(resumed_at=None),
                name="one_open_pause_of_a_place",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.source}/{self.name}"

    @property
    def kind(self) -> str:
        return next((kind for kind in KINDS if getattr(self, kind)), KINDS[0])

    @property
    def name(self) -> str:
        """Name of the paused queue, task, tenant or dependency."""
        return str(getattr(self, self.kind))


class BreakerEvent(models.Model):
    """One transition of a breaker, or one sample of the jobs that it holds.

    A transition is copied from the breaker's document in the store, which has the latest 50. A sample has no reason and
    one state.
    """

    IS_SAMPLE = Q(why="", from_state=F("to_state"))

    source = models.CharField(max_length=63)
    name = models.CharField(max_length=200)
    at = models.DateTimeField(help_text="By the clock of the worker or desk that made the transition.")
    from_state = models.CharField(max_length=10)
    to_state = models.CharField(max_length=10)
    why = models.CharField(max_length=500, blank=True)
    is_observed = models.BooleanField(default=False, help_text="No policy that defines the breaker was enforced.")
    on_hold = models.PositiveBigIntegerField(
        null=True, help_text="Jobs held when the desk read it. Null: not reported."
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["source", "name", "at", "to_state"], name="one_row_per_transition")
        ]
        indexes = [models.Index(fields=["at"], name="breaker_event_by_time")]

    def __str__(self) -> str:
        return f"{self.source}/{self.name} {self.to_state}"

    @property
    def is_of_host(self) -> bool:
        """Return whether the hold of one host started or ended, without a change of the breaker's state."""
        return self.from_state == self.to_state and self.why.startswith(HOST)
