from __future__ import annotations

from django.db import models

# A worker that said nothing for so long is not there (it says something every five seconds).
ALIVE_S = 30


class Source(models.Model):
    """A queue system we are connected to, or have heard from: one seen on the stream registers itself."""

    name = models.CharField(max_length=63, primary_key=True)
    backend = models.CharField(max_length=20, default="celery")
    is_configured = models.BooleanField(
        default=False, help_text="False: reports arrive, but we cannot reach its queues."
    )
    first_seen = models.DateTimeField(auto_now_add=True)
    signed_since = models.DateTimeField(null=True, help_text="When its first signed report was filed.")
    unsigned_at = models.DateTimeField(null=True, help_text="When its latest unsigned report was filed, to the minute.")
    # What the last sample found. Null reachable: never tried.
    is_reachable = models.BooleanField(null=True)
    changed_at = models.DateTimeField(null=True, help_text="Since when it is (un)reachable.")
    why_unreachable = models.TextField(blank=True)
    sampled_at = models.DateTimeField(null=True)
    # Findings of the last look at its settings: [{"id", "severity", "text", "fix"}].
    findings = models.JSONField(default=list)

    # Of a system that keeps dead letters itself, which are pulled (`pulling.py`).
    cursor = models.TextField(
        blank=True, help_text="Up to where its dead letters are filed, in its adapter's own words."
    )
    pulled_at = models.DateTimeField(null=True, help_text="When all that it had were last filed.")
    why_not_pulled = models.TextField(blank=True)
    not_pulled_since = models.DateTimeField(null=True)
    progress_due_at = models.DateTimeField(
        null=True, help_text="Time by which the reader must have made progress again. Null: not read yet."
    )
    puller = models.CharField(max_length=255, blank=True, help_text="The process that reads it.")
    puller_until = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return self.name


class Worker(models.Model):
    """A worker with our guard, by its latest heartbeat."""

    source = models.CharField(max_length=63)
    name = models.CharField(max_length=255)
    boot = models.CharField(max_length=32, help_text="New at each start: its counters begin at nought.")
    seen_at = models.DateTimeField()
    host = models.CharField(max_length=255, blank=True)
    release = models.CharField(max_length=100, blank=True)
    celery = models.CharField(max_length=20, blank=True)
    guard = models.CharField(max_length=20, blank=True)
    mode = models.CharField(max_length=10, blank=True)
    pool = models.CharField(max_length=20, blank=True)
    concurrency = models.PositiveIntegerField(null=True)
    queues = models.JSONField(default=list)
    # queue -> {"started", "succeeded", "failed", "retried", "busy_s"} since boot, as already counted.
    counted = models.JSONField(default=dict)
    spooled = models.PositiveBigIntegerField(default=0, help_text="Reports waiting on its disk.")
    dropped = models.PositiveBigIntegerField(default=0, help_text="Reports it could not keep.")
    # Since boot, and when the desk last saw the number grow. Null: not in this life.
    overrun = models.PositiveBigIntegerField(default=0, help_text="Jobs above a limit, while it did not answer.")
    overrun_at = models.DateTimeField(null=True)
    shared_out = models.PositiveBigIntegerField(default=0, help_text="Retries by its own share of a budget.")
    shared_out_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["source", "name"], name="one_row_per_worker")]
