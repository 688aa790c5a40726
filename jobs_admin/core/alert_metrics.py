"""Metrics of alert rules, one record each. Evaluation, notices, links, previews, forms and pages read these records.

docs/how-to/add-an-alert-metric.md lists the steps of adding one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from jobs_admin.core import figures

LARGEST = 1e12  # of any threshold
A_YEAR_S = 365 * 86_400
LEAST_ENDED = 10  # minimum number of jobs, or attempts, for a meaningful share
WINDOW_S = 300  # window of growth and shares

# A sample of a queue: time, dead jobs, failure time of the oldest, deaths and successes per minute, source reachable.
Row = tuple[float, int | None, float | None, float | None, float | None, bool]
Values = list[float | None]
Ended = tuple[int, int, int]  # dead jobs, attempts to be retried, succeeded jobs


class Unit(Enum):
    NUMBER = "number"
    SECONDS = "seconds"
    SHARE = "share"  # 0 to 1; entered and shown in per cent


class Subject(Enum):
    """Subject of an alert. An alert rule has one value per subject."""

    QUEUE = "queue"
    SOURCE = "source"
    VIEW = "view"


class Link(Enum):
    """Failures that an alert leads to."""

    DIED = "died"  # died during the alert, including failures replayed or discarded since
    FAILED = "failed"  # any failure during the alert
    QUARANTINE = "quarantine"  # in quarantine now: they are readmitted, not replayed
    VIEW = "view"  # results of the view's search


@dataclass(frozen=True)
class Metric:
    """Metric of an alert rule.

    Placeholders in texts: `{subject}`, `{value}`, `{noun}` of an alert; `{source}`, `{view}` of a rule.
    """

    name: str  # in the API and in the database; at most 20 characters
    label: str  # in lists of choices and above charts
    unit: Unit
    subject: Subject
    condition: str  # start of a rule's sentence: "dead jobs"; a queue's name is appended
    now: str  # sentence about an open alert
    past: str  # sentence about a resolved alert, with its peak
    link: Link
    above: str = "above"
    noun: str = ""  # plural noun of what is counted, or the rest of the unit: "jobs", "a minute"
    any_source: str = ""  # value of `{source}` for a rule on all sources
    no_source: str = ""  # value of `{subject}` for an alert without a source, which everyone can see
    named_subjects: Mapping[str, str] = field(
        default_factory=dict
    )  # subject without a source -> name instead of `no_source`
    meaning: str = ""  # of one that is not about failing jobs: what its alert means, in a sentence with `{source}`
    largest: float = LARGEST  # maximum threshold
    largest_because: str = ""
    # Only for a number of jobs: states of the failures to count, so that task, group and tenant narrow the rule.
    # `retrying_replays`: also count jobs that wait for the next attempt of a replay.
    states: tuple[str, ...] = ()
    retrying_replays: bool = False
    ratio: Callable[[Ended], tuple[int, int]] | None = None  # for shares: part and total of the attempts that ended
    absent: float | None = None  # value of a subject without a row; None: no data
    needs_source: bool = False  # unknown while the source cannot be reached
    ends_with_source: bool = False  # no value once the source is removed from the configuration
    moves_with_replays: bool = False  # a replay changes the value: the alert is blocked meanwhile
    is_of_dead: bool = False  # the alert is blocked while jobs are on hold: the breaker or pause is the news
    # Values at a queue's samples, for a rule's preview and an alert's chart; None: not stored, for the reason in
    # `no_history`.
    history: Callable[[Sequence[Row]], Values] | None = None
    no_history: str = ""
    history_note: str = ""  # difference between history and evaluation
    peak_of: str = "dead"  # column of the samples that ranks queues in the preview

    @property
    def is_narrowed(self) -> bool:
        return bool(self.states)

    @property
    def counts_jobs(self) -> bool:
        """Return whether the value is a number of jobs, where more is worse."""
        return self.is_narrowed or self.subject is Subject.VIEW

    @property
    def scope(self) -> tuple[str, ...]:
        """Return the fields of a rule that select what it watches."""
        if self.subject is Subject.QUEUE:
            return ("source", "queue", "task", "group", "tenant") if self.is_narrowed else ("source", "queue")
        return ("view", "source") if self.subject is Subject.VIEW else ("source",)

    def noun_for(self, value: float) -> str:
        """Return the noun for this value: "job" for 1."""
        return self.noun.removesuffix("s") if value == 1 else self.noun

    def bound(self) -> tuple[float, str]:
        """Return the maximum threshold, and the range in words. For a share, the maximum is excluded."""
        if self.unit is Unit.SHARE:
            return 1, "a share from 0 to below 1: 50 % is 0.5"
        if self.unit is Unit.SECONDS:
            return A_YEAR_S, f"from 0 to {A_YEAR_S:,} seconds, a year"
        because = f": {self.largest_because}" if self.largest_because else ""
        return self.largest, f"from 0 to {self.largest:,.0f}{because}"


# -- history ------------------------------------------------------------------------------------------------------


def _dead(rows: Sequence[Row]) -> Values:
    return [dead for _, dead, *_ in rows]


def _oldest_dead(rows: Sequence[Row]) -> Values:
    return [
        (0.0 if oldest is None else max(0.0, at - oldest)) if reached else None for at, _, oldest, _, _, reached in rows
    ]


def _growth(rows: Sequence[Row]) -> Values:
    found: Values = []
    first = 0
    for n, (at, dead, *_) in enumerate(rows):
        while first < n - 1 and rows[first + 1][0] <= at - WINDOW_S:
            first += 1
        then, before = rows[first][:2]
        is_known = dead is not None and before is not None and at - then >= 60
        found.append((dead - before) * 60 / (at - then) if is_known else None)  # type: ignore[operator]
    return found


def _failure_share(rows: Sequence[Row]) -> Values:
    """Return the failure share of the latest minutes. A rate covers the time since the previous row."""
    found: Values = []
    window: deque[tuple[float, float, float]] = deque()
    before = rows[0][0] - 60 if rows else 0.0
    for at, _, _, failed, succeeded, _ in rows:
        minutes = min(60.0, (at - before) / 60)
        before = at
        window.append((at, (failed or 0) * minutes, (succeeded or 0) * minutes))
        while len(window) > 1 and window[0][0] <= at - WINDOW_S:
            window.popleft()
        died, ran = sum(one[1] for one in window), sum(one[2] for one in window)
        found.append(died / (died + ran) if died + ran >= LEAST_ENDED else None)
    return found


def _unreachable(rows: Sequence[Row]) -> Values:
    found: Values = []
    since: float | None = None
    for at, *_, reached in rows:
        since = None if reached else at if since is None else since
        found.append(0.0 if since is None else at - since)
    return found


# -- records, in the order of the form -----------------------------------------------------------------------------

_ALL = (
    Metric(
        name="dead",
        label="Dead jobs",
        unit=Unit.NUMBER,
        noun="jobs",
        subject=Subject.QUEUE,
        condition="dead jobs",
        now="{subject} has {value} dead {noun}",
        past="{subject} had up to {value} dead {noun}",
        link=Link.DIED,
        states=("dead", "replaying"),
        retrying_replays=True,
        absent=0.0,
        needs_source=True,
        is_of_dead=True,
        history=_dead,
        history_note="While a replay ran, samples counted fewer dead jobs than the rule does.",
    ),
    Metric(
        name="growth_per_minute",
        label="New dead jobs per minute",
        unit=Unit.NUMBER,
        noun="per minute",
        subject=Subject.QUEUE,
        condition="new dead jobs per minute",
        now="{subject} gains {value} dead jobs per minute",
        past="{subject} gained up to {value} dead jobs per minute",
        link=Link.DIED,
        needs_source=True,
        moves_with_replays=True,
        is_of_dead=True,
        history=_growth,
    ),
    Metric(
        name="oldest_dead_s",
        label="Age of the oldest dead job",
        unit=Unit.SECONDS,
        subject=Subject.QUEUE,
        condition="the oldest dead job",
        above="older than",
        now="{subject} has a job that has been dead for {value}",
        past="{subject} had a job that was dead for {value}",
        link=Link.DIED,
        needs_source=True,
        is_of_dead=True,
        history=_oldest_dead,
    ),
    Metric(
        name="failure_rate",
        label="Share of jobs that died",
        unit=Unit.SHARE,
        subject=Subject.QUEUE,
        condition="share of jobs that died",
        now="{subject} loses {value} of its jobs",
        past="{subject} lost up to {value} of its jobs",
        link=Link.DIED,
        ratio=lambda ended: (ended[0], ended[0] + ended[2]),
        needs_source=True,
        history=_failure_share,
        peak_of="failed_per_min",
    ),
    Metric(
        name="retry_rate",
        label="Share of attempts retried",
        unit=Unit.SHARE,
        subject=Subject.QUEUE,
        condition="share of attempts retried",
        now="{subject} retries {value} of its attempts",
        past="{subject} retried up to {value} of its attempts",
        link=Link.FAILED,
        ratio=lambda ended: (ended[1], sum(ended)),
        needs_source=True,
        no_history="Retries are not recorded in the history.",
    ),
    Metric(
        name="quarantined",
        label="Quarantined jobs",
        unit=Unit.NUMBER,
        noun="jobs",
        subject=Subject.QUEUE,
        condition="quarantined jobs",
        now="{subject} has {value} {noun} in quarantine",
        past="{subject} had up to {value} {noun} in quarantine",
        link=Link.QUARANTINE,
        states=("quarantined",),
        absent=0.0,
        no_history="Quarantine counts are not recorded in the history.",
    ),
    Metric(
        name="unreachable",
        label="Unreachable source",
        unit=Unit.SECONDS,
        subject=Subject.SOURCE,
        condition="no connection to {source}",
        any_source="any source",
        above="for longer than",
        now="{subject} has been unreachable for {value}",
        past="{subject} was unreachable for {value}",
        meaning="While {source} does not answer, its queues are not sampled and nothing can be replayed there.",
        link=Link.FAILED,
        absent=0.0,
        ends_with_source=True,
        history=_unreachable,
    ),
    Metric(
        name="stalled_s",
        label="Stalled source or step",
        unit=Unit.SECONDS,
        subject=Subject.SOURCE,
        condition="no progress of {source}",
        any_source="any source or step",
        above="for longer than",
        no_source="step {subject} of watch",
        named_subjects={"audit": "the audit (its end cannot be verified)"},
        now="{subject} has made no progress for {value}",
        past="{subject} made no progress for {value}",
        meaning="A step makes no progress: failures may not be filed, and replays may not be sent.",
        link=Link.FAILED,
        absent=0.0,
        ends_with_source=True,
        no_history="Progress of readers and steps is not recorded in the history.",
    ),
    Metric(
        name="ingest_lag_s",
        label="Delay of worker reports",
        unit=Unit.SECONDS,
        subject=Subject.SOURCE,
        condition="reports from {source} delayed by",
        any_source="workers",
        above="more than",
        no_source="guards of an earlier version",
        now="reports from {subject} have been waiting for {value}",
        past="reports from {subject} waited for up to {value}",
        meaning="Failed jobs are captured, but not filed yet: the numbers on this desk are too low.",
        link=Link.FAILED,
        no_history="Delays of reports are not recorded in the history.",
    ),
    Metric(
        name="view",
        label="Results of a saved view",
        unit=Unit.NUMBER,
        noun="failures",
        subject=Subject.VIEW,
        condition="failures in {view}",
        now="the view “{subject}” has {value} {noun}",
        past="the view “{subject}” had up to {value} {noun}",
        link=Link.VIEW,
        largest=9_999,
        largest_because="matches are counted up to 10,000",
        no_history="Results of a view are not recorded in the history.",
    ),
)
METRICS = {one.name: one for one in _ALL}


def figure(metric: str, value: float) -> str:
    """Return a value or a threshold of this metric, with its unit."""
    unit = METRICS[metric].unit
    if unit is Unit.SHARE:
        return figures.exact_percent(value)
    if unit is Unit.SECONDS:
        return figures.exact_duration(round(value))
    return figures.count(value)
