"""A replay before it is started: what it holds, where it goes, how fast, and what the workers did in the last hour."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

from django.urls import reverse

from dashboard.replays import accepted as replay_accepted
from dashboard.replays import advanced as replay_advanced
from dashboard.replays import forms as replay_forms
from dashboard.replays import outlook as replay_outlook
from dashboard.replays import paces as replay_paces
from dashboard.replays import page as replay_page
from dashboard.web import links
from dashboard.web.text import part_first
from jobs_admin.core import pacing
from jobs_admin.core import query as language
from jobs_admin.db import abilities
from jobs_admin.groups.group_places import Place
from jobs_admin.replays.obstacles import LEFT_OUT


@dataclass(frozen=True, slots=True)
class Column:
    """Counts of what is replayed, by one thing."""

    title: str
    rows: list[Share]
    others: int  # values beyond those shown
    counted_over: int | None = None  # only so many, the newest, were looked at; None: all


@dataclass(frozen=True, slots=True)
class Share:
    value: str
    title: str
    count: int
    part: float  # 0..100, of what is replayed
    place: str = ""  # of an error: where it fails; two groups may have one title


MOST_VALUES = 5
MOST_PLACED = 40  # groups that are told apart by where they fail
MOST_ON = 12  # groups that are on and are listed at once; the others are folded


@dataclass(frozen=True, slots=True)
class Choices:
    """The groups of the scope: which are on, and which are off and why."""

    on: list[Choice]
    more: list[Choice]  # on too, folded
    off: list[Choice]
    known: str  # all fingerprints, for the form
    counted_over: int | None  # only so many, the newest, were looked at; None: all
    off_jobs: int
    more_count: int


@dataclass(frozen=True, slots=True)
class Choice:
    fingerprint: str
    value: str
    title: str
    place: str
    count: int
    is_on: bool
    reason: str
    url: str


def plan(preview, pace: replay_forms.Pace, options: replay_forms.Options) -> dict[str, Any]:
    """Return the context of the pace, the options and their outcome."""
    style = preview.pace["style"]
    saw = shown_numbers(preview)
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
        "is_advanced": pace.has_advanced or options.has_advanced,
        "is_advanced_refused": any(name not in {"amount", "__all__"} for name in (*pace.errors, *options.errors)),
        "places": replay_advanced.places(pace, preview.pace),
        "days": [(day, day in (pace.cleaned_data.get("window_days") or ())) for day in replay_advanced.DAYS],
        "attempts": options.data.get("attempts") or "reset",
        "attempts_choices": options.fields["attempts"].choices,
        "left_out": _left_out(preview, options.cleaned_data.get("accept") or ()),
        "blocked": saw["blocked"],
        "coverage": _coverage(preview),
        "target": target(preview, options),
        "button": button(preview, options),
        "needs_approval": preview.needs_approval,
        "arrived": preview.arrived_since,
        "needs_number": style == "at_once" and preview.replayable > 1,
        "needs_reason": preview.replayable > 1,
        "seen": json.dumps(saw),
    }


def _coverage(preview) -> str:
    off = sum(row["count"] for row in preview.blocked if row["code"] == LEFT_OUT)
    others = preview.matched - preview.replayable - off
    return replay_page.coverage(preview.matched, preview.replayable, (off, len(preview.set_aside)), others)


def _left_out(preview, accepted) -> list[dict[str, Any]]:
    """Return the exclusions, the accepted ones first, whose box can be unticked again."""
    taken_in = [{"accept": name, "reason": replay_accepted.offer(name), "is_accepted": True} for name in accepted]
    return taken_in + [row for row in preview.blocked if row.get("accept") not in accepted]


def _careful(preview) -> str:
    """Return the Careful pace for these jobs in words, whichever pace is chosen."""
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


# Option -> the ability that every source of the replay must have for it.
_NEEDS = {"to_queue": "redirect", "same_job_id": "same_id", "attempts": "attempts", "patch": "edit"}


def _lacking(preview, ability: str) -> str:
    """Return why the ability is not offered, in a sentence; "" if all sources have it."""
    return next(filter(None, (abilities.missing_ability(source, ability) for source in preview.sources)), "")


def _leave_out(preview) -> dict[str, str] | None:
    """Return the replay without sources that report no outcomes; None if no job would remain, or jobs were selected by hand."""
    if preview.selection or not preview.unreported or len(preview.unreported) == len(preview.sources):
        return None
    names = " and ".join(preview.unreported)
    text = " ".join(
        [preview.query, *(f"-{language.qualifier('source', name, exact=True)}" for name in preview.unreported)]
    )
    return {"names": names, "url": links.new_replay(text.strip())}


def columns(preview, places: dict[str, Place]) -> list[Column]:
    """`places`: of groups, by fingerprint."""
    shown = []
    for name, counts in (
        ("source", preview.by_source if len(preview.by_source) > 1 else []),
        ("queue", preview.by_queue),
        ("task", preview.by_task),
        ("group", preview.by_group if len(getattr(preview, "choices", ())) < 2 else []),
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


def choices(preview, places: dict[str, Place]) -> Choices | None:
    """None where there is nothing to choose: one group, or none."""
    if len(preview.choices) < 2:
        return None
    rows = [
        Choice(
            one.fingerprint,
            part_first(one.title),
            one.title,
            places[one.fingerprint].words if one.fingerprint in places else one.culprit,
            one.count,
            one.is_on,
            one.reason,
            reverse("redrive:group-detail", args=[one.fingerprint]),
        )
        for one in preview.choices
    ]
    on, off = [row for row in rows if row.is_on], [row for row in rows if not row.is_on]
    # Those that something speaks against are never folded away.
    on.sort(key=lambda row: not row.reason)
    most = max(MOST_ON, sum(bool(row.reason) for row in on))
    return Choices(
        on[:most],
        on[most:],
        off,
        ",".join(row.fingerprint for row in rows),
        preview.choices_over,
        sum(row.count for row in off),
        len(on[most:]),
    )


def _share(value, count: int, total: int) -> Share:
    text = str(value if value not in (None, "") else "none")
    return Share(text, text, count, round(count / total * 100, 2) if total else 0)


def _placed(row: Share, place: Place | None) -> Share:
    return replace(row, value=part_first(row.value), place=place.words if place else "")


def target(preview, options: replay_forms.Options) -> str:
    """Return the target in a few words: `webhooks`, or `webhooks and 2 other queues`."""
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
    """Return a search with OR, with parentheses around the joined terms; "" for a search without OR."""
    read = language.parse(query)
    return language.reading(read) if any(isinstance(term, language.Any) for term in read.terms) else ""


def _pace_words(preview) -> str:
    """The pace with one maximum: its own rate, else the most jobs in any second. Of a climb that ends before, both by name."""
    ramp = preview.pace.get("ramp") or {}
    if ramp.get("to"):  # it may end before it is that fast
        reached = max(preview.peak_per_second, ramp.get("from") or 0)
        words = replay_paces.in_words(preview.pace)
        return words if reached >= 0.95 * ramp["to"] else f"{words}; reaches {replay_paces.rate_in_words(reached)}"
    words = replay_paces.in_words(preview.pace)
    if preview.pace.get("rate") or preview.pace.get("every"):
        return words
    return f"{words}, at most {rounded(preview.peak_per_second)} in any second"


def rounded(per_second: float) -> str:
    """The most jobs in any one second: jobs are not cut, so 2.5 are 3."""
    return f"{math.ceil(per_second):,}"


def changed_since(before: str, preview) -> list[str]:
    """Return the changes since the page was shown, in words. `before`: the numbers that the form carried."""
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


def shown_numbers(preview) -> dict[str, int]:
    return {
        "matched": preview.matched,
        "replayable": preview.replayable,
        "blocked": sum(one["count"] for one in preview.blocked),
    }
