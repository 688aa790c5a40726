"""The page of a group: states, affected values, trend, history, and open jobs by value."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypedDict
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from dashboard.groups.listing import came_back_after, muted_until, since, trend_words
from dashboard.web import charts, links, tracebacks
from dashboard.web.figures import ago, clock, number, percent
from dashboard.web.moments import local, zone_name
from dashboard.web.pictures import sparkline, state
from dashboard.web.text import visible, visible_text
from jobs_admin.core import query as language
from jobs_admin.failures import GroupDetail
from jobs_admin.failures.open_by import OpenBy, OpenRow
from jobs_admin.groups.group_history import Event
from jobs_admin.models import Failure, Group
from jobs_admin.models.group import GroupRuleKind, GroupState

MOST_NAMED = 5  # values shown of queues, tenants …; the rest share one row
DAYS = "30d"
RANGES = ["24h", DAYS]


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of a group over the values of one field."""

    name: str
    lines: SafeString
    others: str  # number of values not listed; "" for none
    others_words: str
    over: str  # what was counted


@dataclass(frozen=True, slots=True)
class Trend:
    title: str
    words: str
    levels: list[str]  # axis labels: top, half, ground
    bars: str  # SVG path, one step per period, oldest first
    chart: str  # values for charts.js, as JSON
    rows: SafeString  # rows of the table, latest first
    marks: list[str]
    unit: str  # unit of the table's first column
    is_days: bool


# Most urgent first, then in order of the lifecycle.
_ORDER = ("dead", "retrying", "replaying", "quarantined", "recovered", "discarded", "gone")


def states(by_state: dict[str, int], group: str) -> list[tuple[SafeString, str, str]]:
    """Return (state, number of jobs, link to their list)."""
    counts = [(name, by_state[name]) for name in _ORDER if by_state.get(name)]
    return [(state(name), number(n), links.failures_of(group=group, state=name)) for name, n in counts]


def standing(group: Group, now: datetime) -> SafeString:
    """Return the state in one line, with its cause, end, person and start."""
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
    """Return names in order of appearance; of too many, the latest are shown."""
    return releases if len(releases) <= MOST_NAMED else releases[-MOST_NAMED:] + releases[:-MOST_NAMED]


def _spread(
    title: str, field: str, ranked: list[tuple[str, int]], found: GroupDetail, over: str, *, is_complete: bool = True
) -> Spread:
    """Return one distribution. `is_complete`: all jobs were counted, not a sample, for which only shares are right."""
    named, others = ranked[:MOST_NAMED], ranked[MOST_NAMED:]
    total = sum(n for _, n in ranked) or 1
    most = max((n for _, n in named), default=1)
    # Without `state:` the list shows only open failures; if none is open, all states were counted.
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
    """Return a line of a distribution.

    `words`: number, or share if only a sample was counted; `part_words`: share, beside a number; `part`: 0 to 100,
    relative to the longest bar. Not a template, in which these few lines took as long as the rest of the page.
    """
    beside = format_html(' <span class="muted">{}</span>', part_words) if part_words else ""
    return format_html(
        '<li><a class="clip" href="{}" title="{}"><code>{}</code></a><span class="number">{}{}</span><svg class="bar" '
        'aria-hidden="true" viewBox="0 0 100 4" preserveAspectRatio="none"><rect width="{}" height="4"></rect></svg></li>',
        url, visible_text(value), visible(value), words, beside, part,
    )  # fmt: skip


def trend(counts: list[int], now: datetime, *, is_days: bool, shares: Sequence[str] | None = None) -> Trend:
    """Return a chart of failed attempts per hour or day, oldest first, ending with the current step.

    `shares`: text per step, its share of the total.
    """
    most = max(counts, default=0)
    each = timedelta(days=1) if is_days else timedelta(hours=1)
    last = now.replace(minute=0, second=0, microsecond=0)
    last = last.replace(hour=0) if is_days else last
    zone = "UTC" if is_days else zone_name(now)  # counters are of days in UTC
    labels, rows, marks = [], [], []
    for n, count in enumerate(counts):
        at = last - each * (len(counts) - 1 - n)
        when = f"{at:%a} {at.day} {at:%b}" if is_days else f"{local(at):%H:%M}"
        labels.append(f"{when} {zone}")
        share = "" if shares is None else f'<td class="number">{shares[n] or "–"}</td>'
        rows.append(f'<tr><td>{when}</td><td class="number">{count:,}</td>{share}</tr>')
        if n % (5 if is_days else 6) == 0:
            marks.append(f"{at.day} {at:%b}" if is_days else when)
    per, over = ("day", "last 30 d") if is_days else ("hour", "last 24 h")
    title = f"Failed attempts per {per}, {over}"
    words = f"{title}: {sum(counts):,} total, peak {most:,}"
    unit = f"Day ({zone})" if is_days else f"Hour ({zone})"
    # The rows contain no text of jobs.
    markup = SafeString("".join(reversed(rows)))
    top = charts.round_up(most or 1)
    drawn = charts.bars(counts, charts.Heights(top, filled=1), wide=0.92)
    of_attempts = {} if shares is None else {"of attempts in its queues": [share or "–" for share in shares]}
    chart = charts.reading({"failed attempts": counts, **of_attempts}, labels=labels)
    return Trend(title, words, charts.levels(top), drawn, chart, markup, marks, unit, is_days)


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


# -- history -------------------------------------------------------------------------------------------------------


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
    topics = {"note": "Note", "runbook_url": "Runbook", "issue_url": "Issue", "dependency": "Dependency"}
    return format_html("{} changed by {}", topics[event.kind], who)


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


class ByLine(TypedDict):
    value: str
    url: str  # "" if no search expresses it: jobs without a value
    open: str  # number of open jobs in the sample
    open_part: str  # their share; "" if all were counted
    dead: str
    dead_url: str
    groups: str
    groups_url: str
    worst: str
    worst_message: str
    worst_url: str
    worst_part: str  # share of its open jobs
    trend: str
    first_heard: str
    last_seen: str


_NONE = {"queue": "no queue", "tenant": "no tenant", "release": "no release"}


def lines(found: OpenBy, name: str, now: datetime) -> list[ByLine]:
    return [_open_line(row, found, name, now) for row in found.rows]


def _open_line(row: OpenRow, found: OpenBy, name: str, now: datetime) -> ByLine:
    is_complete, total = found.counted_over is None, found.open or 1

    named = {name: row.value}
    groups = (
        f"{reverse('redrive:group-list')}?{urlencode({'q': language.qualifier(name, row.value)})}"
        if name == "queue"
        else ""
    )
    return ByLine(
        value=visible(row.value) if row.value else _NONE[name],
        url=links.failures_of(**named) if row.value else "",
        open=number(row.open),
        open_part="" if is_complete else percent(row.open / total),
        dead=number(row.dead) if row.dead else "",
        dead_url=links.failures_of(**named, state="dead") if row.value else "",
        groups=number(row.groups),
        groups_url=groups,
        worst=visible(row.worst.error_type) if row.worst else "",
        worst_message=visible(row.worst.message) if row.worst else "",
        worst_url=links.group_page(row.worst.name) if row.worst else "",
        worst_part=percent(row.worst_open / row.open) if row.worst and row.open else "",
        trend=sparkline(row.trend, trend_words(row.trend)) if row.trend else "",
        first_heard=ago(row.first_heard, now) if row.first_heard else "",
        last_seen=ago(row.last_seen, now) if row.last_seen else "",
    )
