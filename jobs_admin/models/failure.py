"""A failure with its attempts, messages and stack."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from jobs_admin.core.envelope import KINDS


class FailureState(models.TextChoices):
    RETRYING = "retrying"
    DEAD = "dead"
    QUARANTINED = "quarantined"
    REPLAYING = "replaying"
    RECOVERED = "recovered"
    DISCARDED = "discarded"
    GONE = "gone"


class Caveat:
    """Properties of a failure's message that a replay checks before sending it: bits of `Failure.caveats`."""

    TRUNCATED = 1  # too large to be stored completely
    NO_MESSAGE = 2
    CHORD = 4  # other jobs of a chord waited for it
    EXPIRES = 8  # `expires_at` has the time
    NO_FORM = 16  # not in the message format of its queue system, so that no id can be set and it cannot be sent
    REMOVED = 32  # removed from its source after a discard: a replay puts it back from the stored message

    SEEN = 64  # only seen in its system's events: no guard stored the message

    UNSENDABLE = TRUNCATED | NO_MESSAGE | NO_FORM  # any of these: the stored message cannot be sent


class Failure(models.Model):
    """A failed job, over all its runs. Ids increase in the order of ingest; lists show the highest first."""

    source = models.CharField(max_length=63)
    queue = models.CharField(max_length=200)
    first_job_id = models.CharField(
        max_length=255, help_text="The job's id in run 1: with source and queue, its name for ever."
    )
    job_id = models.CharField(max_length=255, help_text="The job's id in the current run.")
    run = models.PositiveIntegerField(default=1)
    state = models.CharField(max_length=12, choices=FailureState)
    task = models.CharField(max_length=255)
    group = models.ForeignKey("Group", models.PROTECT, related_name="failures", null=True)

    error_type = models.CharField(max_length=255, blank=True)
    message = models.TextField(blank=True)
    traceback = models.ForeignKey("Traceback", models.SET_NULL, null=True, related_name="+")
    kind = models.CharField(max_length=16, choices=[(k, k) for k in KINDS], help_text="How the latest attempt ended.")
    reason = models.CharField(max_length=200, blank=True, help_text="Why it is in its state, where that is not plain.")

    attempts = models.PositiveIntegerField(default=1, help_text="Attempts in the current run.")
    max_attempts = models.PositiveIntegerField(null=True, blank=True)
    due_at = models.DateTimeField(null=True, blank=True, help_text="While retrying: when the next attempt is due.")
    first_failed_at = models.DateTimeField(help_text="By the worker's clock, never later than its arrival.")
    failed_at = models.DateTimeField(
        help_text="The latest failed attempt, by the worker's clock, never later than its arrival."
    )
    received_at = models.DateTimeField(help_text="By our clock.")

    worker = models.CharField(max_length=255, blank=True)
    host = models.CharField(max_length=255, blank=True)
    release = models.CharField(max_length=100, blank=True)
    tenant = models.CharField(max_length=200, blank=True)
    priority = models.IntegerField(null=True, blank=True)
    labels = models.CharField(max_length=200, blank=True, help_text="Space-separated: `demo-history`.")

    # The display copy: JSON text, redacted by the worker and truncated. Never sent anywhere.
    args = models.TextField(blank=True)
    kwargs = models.TextField(blank=True)
    headers = models.TextField(blank=True)
    redacted = models.PositiveIntegerField(default=0, help_text="How many values the worker hid.")

    # Null if there are none, as for nearly all: the column adds nothing to the size of existing rows.
    crashes = models.TextField(null=True, blank=True, help_text="JSON text: how it ended its workers, one record each.")

    # Null if the worker reported none.
    event_id = models.CharField(max_length=32, null=True, blank=True, help_text="Its latest attempt's event in Sentry.")

    # Null if the system does not reuse ids.
    made_at = models.DateTimeField(null=True, help_text="When the job of run 1 was made, by its maker's clock.")

    # Null for nearly all, so that a small index finds and counts the others without reading every failure.
    caveats = models.SmallIntegerField(null=True, blank=True, help_text="Bits of `Caveat`; null for none.")
    expires_at = models.DateTimeField(null=True, blank=True, help_text="When its message says it is of no more use.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["source", "queue", "first_job_id"], name="one_failure_per_job"),
            models.CheckConstraint(condition=Q(state__in=FailureState.values), name="failure_state_is_known"),
            models.CheckConstraint(condition=Q(run__gte=1) & Q(attempts__gte=1), name="failure_counts_from_one"),
        ]
        indexes = [
            # Includes tenant and source, which the start of a replay reads for many rows: a row is kilobytes long.
            models.Index("state", F("id").desc(), "tenant", "source", name="failure_by_state"),
            models.Index("source", "state", F("id").desc(), name="failure_by_source"),
            models.Index("group", "state", F("id").desc(), name="failure_by_group"),
            models.Index("queue", "state", F("id").desc(), name="failure_by_queue"),
            models.Index("task", "state", F("id").desc(), name="failure_by_task"),
            models.Index("tenant", "state", F("id").desc(), name="failure_by_tenant"),
            models.Index("kind", "state", F("id").desc(), name="failure_by_kind"),
            models.Index("attempts", "state", F("id").desc(), name="failure_by_attempts"),
            models.Index(
                "priority",
                "state",
                F("id").desc(),
                condition=Q(priority__isnull=False),
                name="failure_by_priority",
            ),
            models.Index(fields=["job_id", "source"], name="failure_by_job"),
            models.Index(fields=["due_at"], condition=Q(state="retrying"), name="failure_overdue"),
            models.Index(fields=["failed_at", "id"], name="failure_by_time"),
            models.Index(
                fields=["state", "caveats", "expires_at", "id"],
                condition=Q(caveats__isnull=False),
                name="failure_with_caveat",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.task} {self.first_job_id}"


class Comeback(models.Model):
    """The reuse of a failure's id by another job, which failed too: a run of the same failure."""

    failure = models.ForeignKey(Failure, models.CASCADE, related_name="+", db_index=False)
    made_at = models.DateTimeField(help_text="When that job was made: by this it is known again.")
    run = models.PositiveIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["failure", "made_at"], name="one_comeback_per_job"),
            models.UniqueConstraint(fields=["failure", "run"], name="one_comeback_per_run"),
        ]


class Attempt(models.Model):
    """One execution that ended or was lost."""

    # No index of its own, here and below, where another one starts with the same column: each index costs a write per
    # failure.
    failure = models.ForeignKey(Failure, models.CASCADE, related_name="attempt_set", db_index=False)
    run = models.PositiveIntegerField()
    attempt = models.PositiveIntegerField(help_text="Within its run, from 1.")
    kind = models.CharField(max_length=16, choices=[(k, k) for k in KINDS])
    job_id = models.CharField(max_length=255)
    # Written by ingest, read by replays: connects an attempt to the item whose outcome it reports.
    item = models.ForeignKey(
        "ReplayItem", models.SET_NULL, null=True, related_name="attempts", db_constraint=False, db_index=False
    )
    group = models.ForeignKey("Group", models.PROTECT, null=True, related_name="+")
    traceback = models.ForeignKey("Traceback", models.SET_NULL, null=True, related_name="+")
    error_type = models.CharField(max_length=255, blank=True)
    message = models.TextField(blank=True)
    reason = models.CharField(max_length=200, blank=True)
    ended_at = models.DateTimeField(help_text="By the worker's clock, never later than its arrival.")
    received_at = models.DateTimeField()
    duration_s = models.FloatField(null=True)
    delay_s = models.FloatField(null=True, help_text="The wait that followed, for a retry.")
    worker = models.CharField(max_length=255, blank=True)
    host = models.CharField(max_length=255, blank=True)
    release = models.CharField(max_length=100, blank=True)
    policy = models.CharField(max_length=120, blank=True, help_text="`name@version` that decided it.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["failure", "run", "attempt", "kind"], name="one_row_per_attempt"),
        ]
        indexes = [
            models.Index(fields=["item"], condition=Q(item__isnull=False), name="attempt_by_item"),
            models.Index(fields=["policy", "failure"], condition=Q(policy__gt=""), name="attempt_by_policy"),
        ]


class Payload(models.Model):
    """The raw message of one run, byte for byte, encrypted. A replay sends this."""

    failure = models.ForeignKey(Failure, models.CASCADE, related_name="payloads", db_index=False)
    run = models.PositiveIntegerField()
    size = models.PositiveBigIntegerField(help_text="Bytes of the whole message.")
    sha256 = models.CharField(max_length=64)
    is_whole = models.BooleanField(default=True, help_text="False: only a head was kept, and a replay is refused.")
    # Last column: SQLite reads a row from its start, so a query for the other columns need not read the body.
    body = models.BinaryField(help_text="Fernet token of the message, or of its first bytes where it was too large.")
    # Read only from its index: after the body, a row would be read to its end.
    payload_key = models.CharField(
        max_length=8, null=True, editable=False, help_text="Id of the key of `body`. Null: not determined yet."
    )

    class Meta:
        constraints = [models.UniqueConstraint(fields=["failure", "run"], name="one_payload_per_run")]
        indexes = [models.Index(fields=["payload_key", "id"], name="payload_by_key")]


class Traceback(models.Model):
    """One distinct stack, stored once for all its occurrences."""

    sha256 = models.CharField(max_length=64, unique=True)
    text = models.TextField()
