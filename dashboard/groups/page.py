"""One group as a page shows it: its states, whom it hits, its picture over time, what happened to it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from dashboard.groups.listing import came_back_after, muted_until, since
from dashboard.web import charts, links, tracebacks
from dashboard.web.figures import ago, clock, number, percent
from dashboard.web.moments import local, zone_name
from dashboard.web.pictures import state
from dashboard.web.text import visible, visible_text
from jobs_admin.failures import GroupDetail
from jobs_admin.groups.group_history import Event
from jobs_admin.models import Failure, Group
from jobs_admin.models.group import GroupState
from jobs_admin.models.group_rule import GroupRuleKind

MOST_NAMED = 5  # values shown of queues, tenants …; the rest are one row
DAYS = "30d"


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of a group over the values of one field."""

    name: str
    lines: SafeString
    others: str  # how many values are not named; empty for none
    others_words: str
    over: str  # what they were counted over


@dataclass(frozen=True, slots=True)
class Trend:
    title: str
    words: str
    levels: list[str]  # words of the axis: top, half, ground
    bars: str  # path of the picture, a step each, the oldest first
    chart: str  # what is read out
    rows: SafeString  # of the table, the newest first
    marks: list[str]
    unit: str  # of the table's first column
    is_days: bool
    urls: tuple[str, str]  # of the hours, of the days


# The most urgent first; as failures go through them.
_ORDER = ("dead", "retrying", "replaying", "quarantined", "recovered", "discarded", "gone")


def states(by_state: dict[str, int], group: str) -> list[tuple[SafeString, str, str]]:
    """(state, jobs in it, their list)"""
    counts = [(name, by_state[name]) for name in _ORDER if by_state.get(name)]
    return [(state(name), number(n), links.failures_of(group=group, state=name)) for name, n in counts]


def standing(group: Group, now: datetime) -> SafeString:
    """Return the state in a line, with its cause, end, person and start."""
    parts = [state(group.state), since(group, now)]
    if group.state == GroupState.MUTED and group.state_by:
        parts.append(format_html("by {}", visible(group.state_by)))
    if group.state == GroupState.ONGOING and group.state_by:
        parts.append(format_html("reopened by {}", visible(group.state_by)))
    if group.state_since:
        parts.append(format_html('<span class="dot">·</span> {}', ago(group.state_since, now)))
    return format_html_join(" ", "{}", ((part,) for part in parts if part))


def spreads(found: GroupDetail) -> list[Spread]:
    all_ = "open jobs" if found.is_open else "jobs, none open"
    some = f"the latest {found.counted_over:,} {all_}" if found.counted_over else all_
    is_complete = found.counted_over is None
    counted = [
        _spread("Queues", "queue", found.queues, found, all_),
        _spread("Tasks", "task", found.tasks, found, all_),
        _spread("Tenants", "tenant", found.tenants, found, some, is_complete=is_complete),
        _spread("Releases", "release", _latest_named(found.releases), found, some, is_complete=is_complete),
        _spread("Hosts", "host", found.hosts, found, some, is_complete=is_complete),
        _spread("Sources", "source", found.sources, found, all_),
    ]
    return [spread for spread in counted if spread.lines]


def _latest_named(releases: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """In the order of their appearance; where there are too many the latest are those that matter."""
    return releases if len(releases) <= MOST_NAMED else releases[-MOST_NAMED:] + releases[:-MOST_NAMED]


def _spread(
    title: str, field: str, ranked: list[tuple[str, int]], found: GroupDetail, over: str, *, is_complete: bool = True
) -> Spread:
    """Return one spread. `is_complete`: the counts are of all jobs, else of a sample, and only the shares are right."""
    named, others = ranked[:MOST_NAMED], ranked[MOST_NAMED:]
    total = sum(n for _, n in ranked) or 1
    most = max((n for _, n in named), default=1)
    # The list without `state:` shows the open ones only: where none is open, every state was counted.
    given = {"group": found.group.fingerprint} | ({} if found.is_open else {"state": "*"})

    def words(n: int) -> str:
        return number(n) if is_complete else percent(n / total)

    lines = [
        _line(
            value,
            words(n),
            percent(n / total) if is_complete and len(ranked) > 1 else "",
            links.failures_of(**given, **{field: value}),
            round(n / most * 100, 1),
        )
        for value, n in named
    ]
    left = sum(n for _, n in others)
    return Spread(
        title, SafeString("".join(lines)), number(len(others)) if others else "", words(left) if others else "", over
    )


def _line(value: str, words: str, part_words: str, url: str, part: float) -> SafeString:
    """`words`: how many, or what part where only some were counted; `part_words`: what part, beside how many; `part`: 0
    to 100, of the longest bar. Written here: in a template these few lines took as long as the rest of the page.
    """
    beside = format_html(' <span class="muted">{}</span>', part_words) if part_words else ""
    return format_html(
        '<li><a class="clip" href="{}" title="{}"><code>{}</code></a><span class="number">{}{}</span><svg class="bar" '
        'aria-hidden="true" viewBox="0 0 100 4" preserveAspectRatio="none"><rect width="{}" height="4"></rect></svg></li>',
        url, visible_text(value), visible(value), words, beside, part,
    )  # fmt: skip


def trend(counts: list[int], now: datetime, *, is_days: bool, urls: tuple[str, str]) -> Trend:
    """A picture of failed attempts per hour or day, the oldest first, the last one the step that runs."""
    most = max(counts, default=0)
    each = timedelta(days=1) if is_days else timedelta(hours=1)
    last = now.replace(minute=0, second=0, microsecond=0)
    last = last.replace(hour=0) if is_days else last
    zone = "UTC" if is_days else zone_name(now)  # the counters are of days in UTC
    labels, rows, marks = [], [], []
    for n, count in enumerate(counts):
        at = last - each * (len(counts) - 1 - n)
        when = f"{at:%a} {at.day} {at:%b}" if is_days else f"{local(at):%H:%M}"
        labels.append(f"{when} {zone}")
        rows.append(f'<tr><td>{when}</td><td class="number">{count:,}</td></tr>')
        if n % (5 if is_days else 6) == 0:
            marks.append(f"{at.day} {at:%b}" if is_days else when)
    per, over = ("day", "last 30 days") if is_days else ("hour", "last 24 h")
    title = f"Failed attempts per {per}, {over}"
    words = f"{title}: {sum(counts):,} total, peak {most:,}"
    unit = f"Day ({zone})" if is_days else f"Hour ({zone})"
    # They contain no text of jobs.
    markup = SafeString("".join(reversed(rows)))
    top = charts.round_up(most or 1)
    drawn = charts.bars(counts, charts.Heights(top, filled=1), wide=0.92)
    chart = charts.reading({"failed attempts": counts}, labels=labels)
    return Trend(title, words, charts.levels(top), drawn, chart, markup, marks, unit, is_days, urls)


def trace(failure: Failure | None) -> tracebacks.Shown | None:
    if failure is None or failure.traceback is None:
        return None
    return tracebacks.parse(failure.traceback.text)


def page_url(fingerprint: str, **parameters: object) -> str:
    given = {name: value for name, value in parameters.items() if value}
    return links.group_page(fingerprint) + (f"?{urlencode(given)}" if given else "")


def digest_of(*parts: object) -> str:
    """Return a digest of `parts`. A page refreshes an open form only when the digest changes."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


# -- what happened to it ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EventLine:
    when: SafeString
    words: SafeString | str
    why: str


def story(events: list[Event], group: Group, now: datetime) -> list[EventLine]:
    return [EventLine(ago(event.at, now), _words(event, group), event.why) for event in events]


def _words(event: Event, group: Group) -> SafeString | str:
    who = visible(event.who) or "Redrive"
    if event.kind == "seen":
        return format_html("First seen in {}", visible(event.what)) if event.what else "First seen"
    if event.kind == "regressed":
        after = came_back_after(Group(regressed_after=event.what))
        return format_html("{} {}", state("regressed", "Came back"), after)
    if event.kind == "replay" and event.replay:
        of = event.replay
        link = reverse("redrive:replay-detail", args=[of.pk])
        text = 'Replayed by {} in <a href="{}">replay #{}</a>: {} of {} succeeded, {} failed again'
        return format_html(text, who, link, of.pk, number(of.succeeded), number(of.total), number(of.failed_again))
    if event.kind == "state":
        until = _until(event)
        return format_html("{} by {}{}", state(event.what), who, format_html(" {}", until) if until else "")
    if event.kind == "assignee":
        return format_html("Assigned to {} by {}", visible(event.what) or "no one", who)
    if event.kind == "rule":
        text = _of_rule(event.details or {})
        return format_html("{}{}, by {}", "Rule withdrawn: " if event.what == "rule.withdraw" else "", text, who)
    return format_html("{} changed by {}", {"note": "Note", "runbook_url": "Runbook"}[event.kind], who)


def _of_rule(rule: dict[str, Any]) -> SafeString | str:
    if rule.get("kind") == GroupRuleKind.IGNORE:
        return format_html("frame <code>{}</code> ignored", visible(rule["frame"]))
    if rule.get("kind") == GroupRuleKind.SPLIT:
        return f"split by {rule['by']}" if rule["is_about_it"] else f"created by a split by {rule['by']}"
    if not rule.get("is_about_it"):
        return "merged into another group"
    n = rule["groups"]
    return f"{number(n)} {'group' if n == 1 else 'groups'} merged into this one"


def _until(event: Event) -> SafeString | str:
    if event.what != GroupState.MUTED or not event.details:
        return ""
    try:
        until = datetime.fromisoformat(event.details["muted_until"]) if event.details.get("muted_until") else None
    except (TypeError, ValueError):
        until = None
    count = event.details.get("muted_until_count")
    if until:
        return format_html("until {}", clock(until))
    return f"until {number(count)} failed attempts" if isinstance(count, int) else muted_until(Group())
