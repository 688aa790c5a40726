"""Sources, their workers, the depth of their queues and the releases that ran there."""

from __future__ import annotations

from django.db import models

# A worker without a heartbeat for this long is not alive (heartbeats come every five seconds).
ALIVE_S = 30


class Source(models.Model):
    """A queue system that is configured, or has sent reports: a source seen on the stream registers itself."""

    name = models.CharField(max_length=63, primary_key=True)
    backend = models.CharField(max_length=20, default="celery")
    is_configured = models.BooleanField(
        default=False, help_text="False: reports arrive, but we cannot reach its queues."
    )
    first_seen = models.DateTimeField(auto_now_add=True)
    signed_since = models.DateTimeField(null=True, help_text="When its first signed report was filed.")
    unsigned_at = models.DateTimeField(null=True, help_text="When its latest unsigned report was filed, to the minute.")
    # Result of the last sample. Null reachable: never tried.
    is_reachable = models.BooleanField(null=True)
    changed_at = models.DateTimeField(null=True, help_text="Since when it is (un)reachable.")
    why_unreachable = models.TextField(blank=True)
    sampled_at = models.DateTimeField(null=True)
    # Findings about its settings at the last check: [{"id", "severity", "text", "fix"}].
    findings = models.JSONField(default=list)

    # Of a system that stores dead letters itself, from which they are pulled (`pulling.py`).
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
    """A guarded worker, according to its latest heartbeat."""

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
    # Since boot, and when the desk last saw the number increase. Null: not since boot.
    overrun = models.PositiveBigIntegerField(default=0, help_text="Jobs above a limit, while it did not answer.")
    overrun_at = models.DateTimeField(null=True)
    shared_out = models.PositiveBigIntegerField(default=0, help_text="Retries by its own share of a budget.")
    shared_out_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["source", "name"], name="one_row_per_worker")]


class DepthSample(models.Model):
    """One sample of one queue, or several samples folded into one (`jobs_admin.queues.depths`).

    An unreachable queue is a row too, never a zero. A folded row has the last value of each number, the mean of rates
    per minute, and why the source was unreachable in some of its samples; workers, acknowledgement and priorities exist
    only in samples.
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
    # Minimum and maximum of the folded samples; null if equal to the last value, as in most rows of most queues.
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


class Release(models.Model):
    """A deployed version of the user's code, recorded by the API or first seen on a report."""

    source = models.CharField(max_length=63)
    version = models.CharField(max_length=100)
    at = models.DateTimeField()
    told_by = models.CharField(max_length=150, blank=True, help_text="Empty: it was first seen on a report.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["source", "version"], name="one_row_per_release")]
