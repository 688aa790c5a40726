"""Preview of a replay: jobs, queues, pace, changes of a patch in each job, and workers of the last hour."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.urls import reverse

from dashboard.replays import forms as replay_forms
from dashboard.replays import outlook as replay_outlook
from dashboard.replays import paces as replay_paces
from dashboard.replays import page as replay_page
from dashboard.web import links
from dashboard.web.differences import Difference, of_values
from dashboard.web.text import part_first
from jobs_admin.core import figures, pacing
from jobs_admin.core import query as language
from jobs_admin.core.pacing.text import pace_text
from jobs_admin.db import abilities
from jobs_admin.groups.group_finder import Place
from jobs_admin.models import Failure
from jobs_admin.replays import GroupChoice, PatchedJob, PatchedPage, explain_nothing, prognosis
from jobs_admin.replays.obstacles import LEFT_OUT


@dataclass(frozen=True, slots=True)
class Column:
    """Number of jobs by the values of one field."""

    title: str
    rows: list[Share]
    others: int  # values that are not listed
    counted_over: int | None = None  # only this many latest jobs were counted; None: all


@dataclass(frozen=True, slots=True)
class Share:
    value: str
    title: str
    count: int
    part: float  # 0 to 100, of the replayed jobs
    place: str = ""  # place in the code of an error, because two groups may have one title


MOST_VALUES = 5
MOST_LISTED = 12  # recommended groups listed at once; the others are folded
MOST_UNFOLDED = 6  # if more groups of a kind are not recommended, they are folded
_KINDS = (
    ("recommended", "Recommended"),
    ("failing", "Failing or failed again"),
    ("permanent", "Usually permanent"),
)


@dataclass(frozen=True, slots=True)
class Choices:
    """Groups of the scope, by whether they are likely to fail again."""

    kinds: list[Kind]
    known: str  # all fingerprints, for the form; "" if there is no choice
    counted_over: int | None  # only this many latest jobs were counted; None: all
    queue: str  # whether other jobs of the queue succeed, if it is the same for all groups
    queue_since: datetime | None


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    title: str
    rows: list[Choice]
    more: list[Choice]  # folded groups
    groups: int
    jobs: int
    summary: str  # summary of the folded groups
    is_open: bool  # some folded groups are on


@dataclass(frozen=True, slots=True)
class Choice:
    group: GroupChoice
    error: str  # class of the error, never truncated
    message: str
    title: str
    place: str
    tenants: str
    failing: str  # failure rate of the last 5 minutes, as text; "" if failures have ended or are not counted
    kind: str  # name of its `Kind`
    queue: str  # whether other jobs of its queue succeed; "" if `Choices` has it
    queue_since: datetime | None  # time of the latest success, if it is not now
    url: str


def plan(preview, pace: replay_forms.Pace, options: replay_forms.Options) -> dict[str, Any]:
    """Return the context of the pace, the options and their effect."""
    style = preview.pace["style"]
    saw = shown_numbers(preview)
    left_out = _left_out(preview, options.cleaned_data.get("accept") or ())
    is_refused = bool(pace.errors or options.errors)
    return {
        "pace": pace,
        "options": options,
        "style": style,
        "careful": _careful(preview),
        "has_careful": not preview.unreported,
        "leave_out": _leave_out(preview),
        "not_offered": {name: _lacking(preview, ability) for name, ability in _NEEDS.items()},
        "amount": pace.data.get("amount", "50"),
        "unit": pace.data.get("unit") or "rate",
        "pace_words": _pace_words(preview),
        "endings": replay_outlook.endings(preview),
        "assumptions": preview.simulation.assumptions,
        "is_refused": is_refused,
        "is_single": preview.matched == preview.replayable == 1,
        "is_advanced": pace.has_advanced or options.has_advanced,
        "is_advanced_refused": any(name not in {"amount", "__all__"} for name in (*pace.errors, *options.errors)),
        "places": replay_forms.places(pace, preview.pace),
        "days": [(day, day in (pace.cleaned_data.get("window_days") or ())) for day in replay_forms.DAYS],
        "attempts": options.data.get("attempts") or "reset",
        "attempts_choices": options.fields["attempts"].choices,
        "left_out": left_out,
        "left_out_jobs": sum(row.get("count", 0) for row in left_out),
        "left_out_words": ", ".join(row["reason"] for row in left_out[:2]) + (" …" if len(left_out) > 2 else ""),
        "coverage": _coverage(preview),
        "target": target(preview, options),
        "button": button(preview, options),
        "likely": _likely_to_fail(preview),
        "nothing": "" if preview.replayable else explain_nothing(preview),
        "needs_approval": preview.needs_approval,
        "arrived": preview.arrived_since,
        "needs_number": style == "at_once" and preview.replayable > 1,
        "needs_reason": preview.replayable > 1,
        "seen": json.dumps(saw),
    }


def _likely_to_fail(preview) -> str:
    """Return the warning about groups that are on and muted, failing or likely to fail again; "" without such groups."""
    on = [one for one in preview.choices if one.is_on]
    warned = [one for one in on if _kind_of(one) != "recommended"]
    if len(warned) > 1:
        kinds = {
            "muted" if one.code == prognosis.MUTED else "likely to fail again" if one.code else "still failing"
            for one in warned
        }
        return f"{len(warned):,} of {_number_of(len(on), 'group')} are {' or '.join(sorted(kinds))}."
    if not warned:
        return ""
    which, one = "This group" if len(on) == 1 else f"1 of {len(on):,} groups", warned[0]
    if one.code:
        return prognosis.Prognosis(one.code, one.reason).sentence(which)
    return f"{which} is still failing: {_failing(one)}."


def _coverage(preview) -> str:
    off = sum(row["count"] for row in preview.blocked if row["code"] == LEFT_OUT)
    others = preview.matched - preview.replayable - off
    return replay_page.coverage(preview.matched, preview.replayable, (off, len(preview.set_aside)), others)


def _left_out(preview, accepted) -> list[dict[str, Any]]:
    """Return the exclusions other than of groups, accepted ones first, so that their boxes can be unticked."""
    taken_in = [
        {"accept": name, "reason": replay_forms.acceptance_offer(name), "is_accepted": True} for name in accepted
    ]
    others = [row for row in preview.blocked if row["code"] != LEFT_OUT]
    return taken_in + [row for row in others if row.get("accept") not in accepted]


def _careful(preview) -> str:
    """Return the Careful pace for these jobs as text, whichever pace is selected."""
    if preview.unreported:
        names = " and ".join(preview.unreported)
        do = "does" if len(preview.unreported) == 1 else "do"
        return f"Not available: {names} {do} not report outcomes."
    pace = preview.pace
    if pace["style"] != "careful":
        median = preview.throughput_per_s
        careful = pacing.Pace("careful")
        known = {"median_per_s": median, "workers_per_s": preview.workers_per_s}
        pace = pacing.settled(careful, jobs=preview.replayable, **known).as_dict()
    to = (pace.get("ramp") or {}).get("to")
    return replay_paces.careful_in_words(pace, is_of_last_hour=to is not None and to == preview.throughput_per_s)


# Option -> ability that all sources of the replay must have.
_NEEDS = {"to_queue": "redirect", "same_job_id": "same_id", "attempts": "attempts", "patch": "edit"}


def _lacking(preview, ability: str) -> str:
    """Return a sentence on why the ability is not available; "" if all sources have it."""
    return next(filter(None, (abilities.missing_ability(source, ability) for source in preview.sources)), "")


def _leave_out(preview) -> dict[str, str] | None:
    """Return the replay without sources that report no outcomes; None if none remains, or jobs were selected by hand."""
    if preview.selection or not preview.unreported or len(preview.unreported) == len(preview.sources):
        return None
    names = " and ".join(preview.unreported)
    text = " ".join(
        [preview.query, *(f"-{language.qualifier('source', name, exact=True)}" for name in preview.unreported)]
    )
    return {"names": names, "url": links.new_replay(text.strip())}


def columns(preview, places: dict[str, Place]) -> list[Column]:
    """Return the counts. `places`: of groups, by fingerprint."""
    shown = []
    for name, counts in (
        ("source", preview.by_source if len(preview.by_source) > 1 else []),
        ("queue", preview.by_queue),
        ("task", preview.by_task),
        ("group", [] if getattr(preview, "choices", ()) else preview.by_group),
        ("tenant", preview.by_tenant),
    ):
        over = preview.counted_over.get(name)
        rows = [_share(value, count, over or preview.replayable) for value, count in counts[:MOST_VALUES]]
        if counts is preview.by_group:
            rows = [_placed(row, places.get(name)) for row, (name, _, _) in zip(rows, preview.groups, strict=False)]
        if rows:
            title = "Error" if name == "group" else name.capitalize()
            shown.append(Column(title, rows, max(0, len(counts) - MOST_VALUES), over))
    return shown


def choices(preview) -> Choices | None:
    """Return the groups; None if the preview has none. A single group is not a choice."""
    if not preview.choices:
        return None
    queues = {_queue_words(one) for one in preview.choices}
    queue, queue_since = queues.pop() if len(queues) == 1 and len(preview.choices) > 1 else ("", None)
    kinds = []
    for name, title in _KINDS:
        rows = [_choice(one, has_queue=not queue) for one in preview.choices if _kind_of(one) == name]
        rows.sort(key=lambda row: (-row.group.count, row.group.fingerprint))
        if rows:
            kinds.append(_kind(name, title, rows))
    known = ",".join(one.fingerprint for one in preview.choices) if len(preview.choices) > 1 else ""
    return Choices(kinds, known, preview.choices_over, queue, queue_since)


def _kind(name: str, title: str, rows: list[Choice]) -> Kind:
    jobs = sum(row.group.count for row in rows)
    listed = MOST_LISTED if name == "recommended" else len(rows) if len(rows) <= MOST_UNFOLDED else 0
    more = rows[listed:]
    on = sum(row.group.is_on for row in more)
    some = f"{len(more):,} more groups" if listed else _number_of(len(more), "group")
    state = "on" if on == len(more) else "off" if not on else f"({on:,} on)"
    summary = f"{some} {state}, {_number_of(sum(row.group.count for row in more), 'job')}"
    summary += "" if listed else f": {title.lower()}"
    return Kind(name, title, rows[:listed], more, len(rows), jobs, summary, on > 0 and name != "recommended")


def _number_of(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _choice(one: GroupChoice, *, has_queue: bool) -> Choice:
    least = "" if one.is_tenants_all else "at least "
    queue, queue_since = _queue_words(one) if has_queue else ("", None)
    return Choice(
        group=one,
        error=one.error_type,
        message=part_first(one.message),
        title=one.title,
        place=one.place,
        tenants=f"{least}{_number_of(one.tenants, 'tenant')}" if one.tenants else "",
        failing=_failing(one),
        kind=_kind_of(one),
        queue=queue,
        queue_since=queue_since,
        url=reverse("redrive:group-detail", args=[one.fingerprint]),
    )


def _kind_of(one: GroupChoice) -> str:
    if one.code in (prognosis.PERMANENT, prognosis.POISON, prognosis.MUTED):
        return "permanent"
    return "failing" if one.code or _failing(one) else "recommended"


def _failing(one: GroupChoice) -> str:
    return figures.per_minute(one.failed_per_min) if one.is_failing and one.failed_per_min else ""


def _queue_words(one: GroupChoice) -> tuple[str, datetime | None]:
    """Return whether jobs of the group's queue succeed, and the latest success if not; it is not counted by task."""
    if not one.queue:
        return "", None
    if one.queue_succeeded_per_min:
        return f"{one.queue} succeeding: {figures.per_minute(one.queue_succeeded_per_min)}", None
    if one.queue_succeeded_at:
        return f"{one.queue}: last success", one.queue_succeeded_at
    return f"{one.queue}: no success recorded", None


def _share(value, count: int, total: int) -> Share:
    text = str(value if value not in (None, "") else "none")
    return Share(text, text, count, round(count / total * 100, 2) if total else 0)


def _placed(row: Share, place: Place | None) -> Share:
    return replace(row, value=part_first(row.value), place=place.words if place else "")


def target(preview, options: replay_forms.Options) -> str:
    """Return a short target: `webhooks`, or `webhooks and 2 other queues`."""
    if other := options.document.get("to_queue"):
        return str(other)
    queues = [queue for queue, _ in preview.by_queue]
    if not queues:
        return ""
    if len(queues) == 1:
        return str(queues[0])
    rest = len(queues) - 1
    many = f", in {len(preview.sources)} sources" if len(preview.sources) > 1 else ""
    return f"{queues[0]} and {rest} other queue{'s' if rest > 1 else ''}{many}"


def button(preview, options: replay_forms.Options) -> str:
    """Return the label of the button: "Replay 12,304 jobs to webhooks"."""
    jobs = "1 job" if preview.replayable == 1 else f"{preview.replayable:,} jobs"
    act = "Request approval to replay" if preview.needs_approval else "Replay"
    where = target(preview, options)
    return f"{act} {jobs} to {where}" if where else f"{act} {jobs}"


def reading(query: str) -> str:
    """Return a search with OR, with parentheses around joined terms; "" for a search without OR."""
    read = language.parse(query)
    return language.reading(read) if any(isinstance(term, language.Any) for term in read.terms) else ""


def _pace_words(preview) -> str:
    """Return the pace with one maximum: its own rate, otherwise the most jobs in any second.

    For a ramp that ends before reaching its rate, both are named.
    """
    ramp = preview.pace.get("ramp") or {}
    if ramp.get("to"):  # it may end before reaching the rate
        reached = max(preview.peak_per_second, ramp.get("from") or 0)
        words = pace_text(preview.pace)
        return words if reached >= 0.95 * ramp["to"] else f"{words}; reaches {figures.rate(reached)}"
    words = pace_text(preview.pace)
    if preview.pace.get("rate") or preview.pace.get("every"):
        return words
    return f"{words}, at most {rounded(preview.peak_per_second)} in any second"


def rounded(per_second: float) -> str:
    """Return the most jobs in any one second: jobs are indivisible, so 2.5 becomes 3."""
    return f"{math.ceil(per_second):,}"


def changed_since(before: str, preview) -> list[str]:
    """Return the changes since the page was shown, as text. `before`: the numbers submitted with the form."""
    try:
        saw = json.loads(before)
    except ValueError:
        return []
    if not isinstance(saw, dict):
        return []
    now = shown_numbers(preview)
    names = {"matched": "match", "replayable": "can be replayed", "blocked": "are blocked"}
    return [
        f"{now[name]:,} {words}, {saw[name]:,} before"
        for name, words in names.items()
        if isinstance(saw.get(name), int) and saw[name] != now[name]
    ]


def scope_words(columns: list[Column]) -> str:
    """Return the scope in one line: `emails · 4 tasks · 8 tenants`."""
    words = []
    for column in columns:
        count = len(column.rows) + column.others
        words.append(column.rows[0].value if count == 1 else _number_of(count, column.title.lower()))
    return " · ".join(words)


def shown_numbers(preview) -> dict[str, int]:
    return {
        "matched": preview.matched,
        "replayable": preview.replayable,
        "blocked": sum(one["count"] for one in preview.blocked),
    }


_NAMES = {"args": "Arguments", "kwargs": "Keyword arguments"}


@dataclass(frozen=True, slots=True)
class Changed:
    failure: Failure
    differences: list[tuple[str, Difference]]  # only fields with differences
    why_not: str

    @property
    def is_same(self) -> bool:
        return not self.differences


def changes(page: PatchedPage) -> list[Changed]:
    return [Changed(row.failure, _differences(row), "" if row.before else row.why) for row in page.rows]


def _differences(row: PatchedJob) -> list[tuple[str, Difference]]:
    if row.before is None or row.after is None:
        return []
    pairs = ((name, of_values(getattr(row.before, key), getattr(row.after, key))) for key, name in _NAMES.items())
    return [(name, one) for name, one in pairs if not one.is_same]
