"""A rescheduling of retries on its page: the preview, and the progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dashboard.web import charts, links
from dashboard.web.figures import duration, number
from jobs_admin.models import Reschedule
from jobs_admin.models.reschedule import RescheduleState
from jobs_admin.retries.rescheduling import Herd, Preview

_KINDS = {"exponential": "exponential", "linear": "linear", "fixed": "fixed"}


@dataclass(frozen=True, slots=True)
class Row:
    attempts: str
    jobs: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Picture:
    """Both herds, over each other on one scale: the paths of two outlines."""

    before: str
    after: str
    end: str
    words: str
    chart: str  # what is read out


def rows(preview: Preview) -> list[Row]:
    return [
        Row(f"{line.attempts:,}", number(line.jobs), _range(line.before), _range(line.after)) for line in preview.lines
    ]


def _range(waits: tuple[float, float] | None) -> str:
    if waits is None:
        return "–"
    least, most = (duration(max(0.0, round(wait))) for wait in waits)
    return least if least == most else f"{least} to {most}"


def picture(preview: Preview) -> Picture:
    top = max([1, *preview.before.counts, *preview.after.counts])
    words = f"current: {_herd(preview.before)}; new: {_herd(preview.after)}"
    each = preview.span_s / max(len(preview.before.counts), 1)
    chart = charts.reading(
        {"now": preview.before.counts, "then": preview.after.counts},
        labels=[f"in {duration(round(n * each))}" for n in range(len(preview.before.counts))],
    )
    end = duration(round(preview.span_s))
    return Picture(_outline(preview.before, top), _outline(preview.after, top), end, words, chart)


def _herd(herd: Herd) -> str:
    due = f"{number(herd.at_once)} due" if herd.at_once else "none due"
    return f"{due}, peak {number(herd.busiest)}/s"


def _outline(herd: Herd, top: int) -> str:
    wide, heights = charts.SIZE / len(herd.counts), charts.Heights(top)
    return charts.outline((n * wide, (n + 1) * wide, heights.y(count)) for n, count in enumerate(herd.counts))


def herds(preview: Preview) -> tuple[str, str]:
    return _herd(preview.before), _herd(preview.after)


def in_words(change: dict[str, Any]) -> str:
    """Return the requested change, as a sentence without its end."""
    parts = []
    if change.get("due_at"):
        parts.append("all due at one time")
    if curve := change.get("curve"):
        backoff, jitter = curve.get("backoff") or {}, (curve.get("jitter") or {}).get("kind", "none")
        kind, first = backoff.get("kind", "exponential"), backoff.get("first_delay_s")
        parts.append(
            f"waits {_KINDS.get(kind, kind)}"
            + (f" from {duration(first)}" if isinstance(first, int | float) else "")
            + (f", at most {duration(curve['cap_s'])}" if isinstance(curve.get("cap_s"), int | float) else "")
            + (f", jitter {jitter.replace('_', ' ')}" if jitter != "none" else "")
        )
    if most := change.get("max_attempts"):
        parts.append(f"at most {most:,} attempts")
    return "; ".join(parts) or "previous schedule"


@dataclass(frozen=True, slots=True)
class Summary:
    sentence: str
    scope: str
    scope_url: str
    change: str
    is_live: bool
    may_undo: bool


def summary(planned: Reschedule, *, may_act: bool, undone: bool) -> Summary:
    jobs = number(planned.changed)
    if planned.state == RescheduleState.PLANNED:
        sentence = f"{jobs} of {number(planned.matched)} retries rescheduled so far"
    elif planned.state == RescheduleState.STOPPED:
        sentence = f"Stopped, after {jobs} of {number(planned.matched)} retries"
    else:
        sentence = f"{jobs} retr{'y' if planned.changed == 1 else 'ies'} rescheduled"
    if planned.undo_of_id is not None:
        sentence = sentence.replace("rescheduled", "restored")
    chosen = len(planned.selection)
    return Summary(
        sentence,
        f"{number(chosen)} selected" if chosen else planned.query or "all waiting retries",
        "" if chosen else links.list_url(_with(planned.query, f"source:{planned.source}", "state:retrying")),
        in_words(planned.change),
        planned.state == RescheduleState.PLANNED,
        may_act and bool(planned.changed) and planned.undo_of_id is None and not undone,
    )


def _with(query: str, *terms: str) -> str:
    words = query.split()
    return " ".join([query, *(term for term in terms if term not in words)]).strip()
