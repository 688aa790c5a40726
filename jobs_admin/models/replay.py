"""A bulk run and its frozen members."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q


class ReplayState(models.TextChoices):
    DRAFT = "draft"
    AWAITING_APPROVAL = "awaiting_approval"
    WAITING = "waiting"
    CANARY = "canary"
    RAMPING = "ramping"
    RUNNING = "running"
    HELD = "held"
    PAUSED = "paused"
    DONE = "done"
    STOPPED = "stopped"
    CANCELLED = "cancelled"


class ItemState(models.TextChoices):
    PLANNED = "planned"
    SENT = "sent"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED_AGAIN = "failed_again"
    UNCERTAIN = "uncertain"
    CANCELLED = "cancelled"


SENDING = (ReplayState.CANARY, ReplayState.RAMPING, ReplayState.RUNNING)
ENDED = (ReplayState.DONE, ReplayState.STOPPED, ReplayState.CANCELLED)
AT_REST = (ReplayState.HELD, ReplayState.PAUSED)
START, RUN = "start", "run"  # when a group was excluded: in the draft, or during the replay
OPEN_ITEM = (ItemState.PLANNED, ItemState.SENT, ItemState.RUNNING, ItemState.UNCERTAIN)


def _new_key() -> str:
    return uuid.uuid4().hex


class Replay(models.Model):
    # Identifies this replay outside the database (ledger, job ids), where a restored or second database could reuse
    # ids.
    key = models.CharField(max_length=32, unique=True, default=_new_key, editable=False)
    state = models.CharField(max_length=20, choices=ReplayState, default=ReplayState.DRAFT)
    query = models.TextField(blank=True, help_text="The scope, with relative times pinned to absolute ones.")
    # Alternative form of the scope: a manual selection of failures. JSON list of ids; empty for a query.
    selection = models.JSONField(default=list, blank=True)
    scope_max_id = models.BigIntegerField(
        help_text="The highest failure id of the preview: what came later is not in it."
    )
    # Clocks may be set back; ids only grow.
    highest_item = models.BigIntegerField(
        default=0, help_text="The highest item id at its start: what other replays took later is theirs."
    )
    matched = models.PositiveIntegerField(default=0, help_text="What the draft matched.")
    blocked = models.JSONField(default=list, blank=True, help_text="[{reason, count}] of the draft.")
    pace = models.JSONField(default=dict)
    rate = models.FloatField(null=True, blank=True, help_text="Jobs per second now; null is as fast as can be.")
    # Edited arguments for a replay of one job: {"args": […], "kwargs": {…}}.
    edit = models.JSONField(null=True, blank=True)
    # How its jobs are sent: see `replays.options`.
    patch = models.JSONField(
        null=True, blank=True, help_text='JSON Merge Patch laid over {"args": …, "kwargs": …} of every job.'
    )
    attempts = models.CharField(max_length=10, default="reset", help_text="reset, kept, or how many a job has.")
    to_queue = models.CharField(max_length=200, blank=True, help_text="Where to, when not to the queue it came from.")
    same_job_id = models.BooleanField(default=False)
    accepted = models.JSONField(default=list, blank=True, help_text="What would be left out, and was accepted by name.")
    # The result of the preview, so that later changes are detected. See `replays.preview`.
    snapshot = models.CharField(max_length=64, blank=True)
    idempotency_key = models.CharField(max_length=100, null=True, blank=True, unique=True)
    reason = models.CharField(max_length=500, blank=True)
    held_because = models.TextField(blank=True)
    # State of the controller (`core.pacing.controller`), from which any process can continue.
    controller = models.JSONField(default=dict, blank=True)
    may_send = models.PositiveIntegerField(
        null=True, blank=True, help_text="How many may have been sent in all; null is all of them."
    )
    evidence = models.JSONField(null=True, blank=True, help_text="What it was held for: numbers, groups.")
    state_since = models.DateTimeField(null=True, blank=True)
    without_groups = models.JSONField(default=list, blank=True, help_text="Ids of groups whose jobs are not sent.")
    # Reasons: see `replays.setting_aside`.
    set_aside = models.JSONField(default=list, blank=True, help_text="[{group, phase, code, reason, by, at, jobs}]")
    by_source = models.JSONField(default=dict, blank=True, help_text="Number of jobs by source, counted at the start.")
    approval_because = models.CharField(max_length=255, blank=True, help_text="Why a second person has to approve it.")
    actor = models.CharField(max_length=150)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    approver = models.CharField(max_length=150, blank=True)
    approved_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    approved_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    # Changed with the items, in the same transaction.
    total = models.PositiveIntegerField(default=0)
    planned = models.PositiveIntegerField(default=0)
    sent = models.PositiveIntegerField(default=0)
    running = models.PositiveIntegerField(default=0)
    succeeded = models.PositiveIntegerField(default=0)
    failed_again = models.PositiveIntegerField(default=0)
    uncertain = models.PositiveIntegerField(default=0)
    cancelled = models.PositiveIntegerField(default=0)
    taken = models.PositiveIntegerField(
        default=0, help_text="Of what was frozen, what another replay had taken when it was laid out; not in the total."
    )

    # One sender at a time paces a replay; if it dies, its lease expires and the next one continues.
    sender = models.CharField(max_length=64, blank=True)
    sender_until = models.DateTimeField(null=True, blank=True)

    # In memory only (`replay_sight`): the sources whose jobs are counted, if not all; and whether it has jobs of hidden
    # sources.
    seen_sources: list[str] | None = None
    hides_sources: bool = False

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(state__in=ReplayState.values), name="replay_state_is_known")]
        indexes = [models.Index(fields=["state"], name="replay_by_state")]

    def __str__(self) -> str:
        return f"replay #{self.pk}"

    @property
    def sent_in_all(self) -> int:
        """Return the number of items sent, in any state now, except cancelled ones."""
        return self.sent + self.running + self.succeeded + self.failed_again + self.uncertain

    @property
    def settled(self) -> int:
        """Return the number of sent items with a known outcome; uncertain ones are excluded."""
        return self.succeeded + self.failed_again

    @property
    def has_settled_since_hold(self) -> bool:
        """Return whether jobs were settled since it was held; False if it is not held, or if unknown."""
        before = self.evidence if isinstance(self.evidence, dict) else {}
        counts = before.get("succeeded"), before.get("failed_again")
        if self.state != ReplayState.HELD or not all(isinstance(n, int) for n in counts):
            return False
        return self.settled > sum(counts)

    @property
    def current_hold_reason(self) -> str:
        """Return why it is held, with the present outcomes of all sent jobs if some were settled since.

        The reason has the first attempts at the time of the hold. Some of these are retried natively.
        """
        if not self.has_settled_since_hold:
            return self.held_because
        open_counts = ((self.sent + self.running, "not settled"), (self.uncertain, "uncertain"))
        rest = ", ".join(f"{n:,} {words}" for n, words in open_counts if n) or "all are settled"
        outcomes = f"{self.succeeded:,} succeeded and {self.failed_again:,} failed again"
        return f"{self.held_because} Now, of {self.sent_in_all:,} sent, {outcomes}; {rest}."

    @property
    def settled_percent(self) -> float:
        """Percentage of the sent items, 0 to 100, with one decimal; rounded down, so that 100 means all."""
        return self.settled * 1000 // self.sent_in_all / 10 if self.sent_in_all else 0.0


class ReplayItem(models.Model):
    """One failure in one replay. Its id is the token that makes sending idempotent."""

    replay = models.ForeignKey(Replay, models.CASCADE, related_name="items", db_index=False)
    n = models.PositiveIntegerField(help_text="Place in the order of sending, from 1.")
    failure = models.ForeignKey("Failure", models.CASCADE, related_name="replay_items", db_index=False)
    run = models.PositiveIntegerField(help_text="The run that sending starts: 2 for the first replay.")
    state = models.CharField(max_length=12, choices=ItemState, default=ItemState.PLANNED)
    job_id = models.CharField(max_length=255, blank=True, help_text="The job's id in that run.")
    key = models.CharField(
        max_length=64, blank=True, help_text="What `per_key` counts it under; empty where it does not."
    )
    # Set before sending: if the sender dies in between, the ledger of this epoch shows whether it was sent.
    claimed_at = models.DateTimeField(null=True)
    claim_epoch = models.CharField(max_length=64, blank=True)
    sent_at = models.DateTimeField(null=True)
    # The first attempt after sending, which the controller judges; a retry counts as a failure.
    first_at = models.DateTimeField(null=True)
    first_ok = models.BooleanField(null=True)
    first_group = models.ForeignKey("Group", models.SET_NULL, null=True, related_name="+", db_index=False)
    settled_at = models.DateTimeField(null=True)
    outcome = models.CharField(
        max_length=255, blank=True, help_text="The error it failed again with, or why it is uncertain."
    )
    # The group of its new error, so that a held replay can continue without it.
    failed_group = models.ForeignKey("Group", models.SET_NULL, null=True, related_name="+")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["replay", "n"], name="one_place_per_item"),
            models.UniqueConstraint(
                fields=["failure"],
                condition=Q(state__in=[s.value for s in OPEN_ITEM]),
                name="one_open_item_per_failure",
            ),
            models.CheckConstraint(condition=Q(state__in=ItemState.values), name="item_state_is_known"),
        ]
        indexes = [
            models.Index(fields=["replay", "state", "n"], name="item_by_state"),
            models.Index(fields=["failure", "-id"], name="item_by_failure"),
            models.Index(
                fields=["state", "sent_at"], condition=Q(state__in=["sent", "running"]), name="item_unsettled"
            ),
            models.Index(fields=["replay", "first_at"], condition=Q(first_at__isnull=False), name="item_judged"),
            models.Index(fields=["replay", "key", "state", "n"], condition=~Q(key=""), name="item_by_key"),
        ]

    @property
    def was_excluded(self) -> bool:
        """Return whether it was unsent without an operator's act on it: refused, excluded or obsolete (`outcome`)."""
        return self.state == ItemState.CANCELLED and bool(self.outcome) and self.sent_at is None


class FrozenBatch(models.Model):
    """A batch of the frozen scope of a replay, in the order of sending, until its items are created.

    A start writes these immediately, even for a million jobs; `watch` creates the items in short transactions.
    """

    replay = models.ForeignKey(Replay, models.CASCADE, related_name="frozen", db_index=False)
    first_n = models.PositiveIntegerField(help_text="The place of the first, from 1.")
    count = models.PositiveIntegerField()
    ids = models.BinaryField(help_text="Of failures: see `replays.freezing`.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["replay", "first_n"], name="one_batch_per_place")]
