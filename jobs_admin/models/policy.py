from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.db.models.fields.json import KT

from jobs_admin.core import policy as core
from jobs_admin.core.policy import shape
from jobs_admin.models.document_bounds import (
    Bound,
    Holds,
    at_most,
    choice,
    not_below,
    not_between,
    number,
    text,
    unless_false,
)

LONGEST_NAME = 63
LONGEST_REASON = 500
_NEEDED = ("name", "mode", "match.source", "match.queue", "match.task")


def _document_column(*path: str, longest: int = shape.LONGEST_TEXT) -> models.GeneratedField:
    """Return a generated column with a value of the document, so that the two cannot differ."""
    expression = KT("__".join(("document", *path)))
    return models.GeneratedField(
        expression=expression, output_field=models.CharField(max_length=longest), db_persist=True
    )


def _bound(name: str, condition: Holds) -> Bound:
    return Bound(condition=condition, name=f"policy_{name}")


class PolicyVersion(models.Model):
    """One version of a retry policy. The published version of a name is in force; the others are its history.

    Versions of a name count from 1. A version's content never changes; another version replaces it.
    """

    # In the format of `core.policy.document`.
    document = models.JSONField()
    name = _document_column("name", longest=LONGEST_NAME)
    version = models.PositiveIntegerField()
    mode = _document_column("mode", longest=10)
    match_source = _document_column("match", "source")
    match_queue = _document_column("match", "queue")
    match_task = _document_column("match", "task")
    is_published = models.BooleanField(default=True)
    published_at = models.DateTimeField()
    published_by = models.CharField(max_length=150)
    reason = models.CharField(max_length=LONGEST_REASON, blank=True, help_text="Why this version.")
    expires_at = models.DateTimeField(null=True, blank=True)
    # A version of this name; null: the name is withdrawn on expiry.
    reverts_to = models.PositiveIntegerField(null=True, blank=True, help_text="In force again when this one expires.")
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["name", "version"], name="one_row_per_policy_version"),
            models.UniqueConstraint(fields=["name"], condition=Q(is_published=True), name="one_published_version"),
            models.UniqueConstraint(
                fields=["match_source", "match_queue", "match_task"],
                condition=Q(is_published=True),
                name="no_two_policies_match_equally",
            ),
            models.CheckConstraint(condition=Q(version__gte=1), name="policy_versions_count_from_1"),
            models.CheckConstraint(
                condition=Q(is_published=True, ended_at__isnull=True) | Q(is_published=False, ended_at__isnull=False),
                name="policy_is_in_force_or_ended",
            ),
            models.CheckConstraint(condition=Q(reverts_to__lt=F("version")), name="policy_reverts_to_one_before"),
            # The limits of core/policy/shape.py, under the same names.
            *(_bound(f"has_{path.replace('.', '_')}", text(path)) for path in _NEEDED),
            _bound("has_backoff_kind", unless_false("retries", text("backoff.kind"))),
            _bound("mode", choice("mode", shape.MODES)),
            _bound("native", choice("native", shape.NATIVE)),
            _bound("max_attempts", number("max_attempts", 1, shape.MOST_ATTEMPTS, integer=True)),
            _bound("backoff_kind", choice("backoff.kind", shape.BACKOFFS)),
            _bound("backoff_first_delay_s", number("backoff.first_delay_s", 0, shape.LONGEST_S)),
            _bound("backoff_factor", number("backoff.factor", shape.LEAST_FACTOR, shape.MOST_FACTOR)),
            _bound("backoff_power", number("backoff.power", 0, shape.MOST_POWER)),
            _bound("backoff_plus_s", number("backoff.plus_s", 0, shape.LONGEST_S)),
            _bound("backoff_delays", at_most("backoff.delays_s", shape.MOST_DELAYS)),
            _bound("backoff_delays_s", number("backoff.delays_s[*]", 0, shape.LONGEST_S, longest=shape.MOST_DELAYS)),
            _bound("cap_s", number("cap_s", shape.LEAST_CAP_S, shape.LONGEST_S)),
            _bound("cap_s_not_below_first_delay_s", not_below("cap_s", "backoff.first_delay_s")),
            _bound("cap_s_not_below_plus_s", not_below("cap_s", "backoff.plus_s")),
            _bound("cap_s_not_below_first_of_delays_s", not_below("cap_s", "backoff.delays_s[0]")),
            _bound("jitter_kind", choice("jitter.kind", shape.JITTERS)),
            _bound("jitter_fraction", number("jitter.fraction", 0, 1)),
            _bound("jitter_seconds", number("jitter.seconds", 0, shape.LONGEST_S)),
            _bound("retry_after_jitter", number("retry_after.jitter", 0, 1)),
            _bound("retry_after_cap_s", number("retry_after.cap_s", 0, shape.LONGEST_S)),
            _bound("classes", at_most("classes", shape.MOST_CLASSES)),
            _bound("classes_as", choice("classes[*].as", shape.CLASSES, longest=shape.MOST_CLASSES)),
            _bound("budget_per_minute", number("budget.per_minute", 0, shape.MOST_PER_MINUTE)),
            _bound("budget_per_minute_least", not_between("budget.per_minute", 0, shape.LEAST_PER_MINUTE)),
            _bound("budget_burst", number("budget.burst", 0, shape.MOST_BURST, integer=True)),
            _bound("poison_crashes", number("poison.crashes", 1, shape.MOST_CRASHES, integer=True)),
            _bound("poison_window_s", number("poison.window_s", 1, shape.LONGEST_WINDOW_S)),
            _bound("concurrency_limit", number("concurrency.limit", 1, shape.MOST_AT_ONCE, integer=True)),
            _bound("rate_limit_max", number("rate_limit.max", 1, shape.MOST_STARTS, integer=True)),
            _bound("rate_limit_per_s", number("rate_limit.per_s", shape.SHORTEST_PER_S, shape.LONGEST_PER_S)),
            _bound("exhausted", choice("exhausted", shape.EXHAUSTED)),
        ]

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def policy(self) -> core.Policy:
        """Return the policy. Raises Refused for a document that no service wrote."""
        return core.parse(self.document)
