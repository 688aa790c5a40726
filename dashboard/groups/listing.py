"""The list of groups as displayed: filters as chips, columns, and rows prepared for display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from urllib.parse import urlencode

from django.urls import reverse
from django.utils import timezone
from django.utils.html import conditional_escape, escape, format_html, format_html_join
from django.utils.safestring import SafeString

from dashboard.web import links
from dashboard.web.figures import ago, clock, number, percent
from dashboard.web.pictures import sparkline, state
from dashboard.web.text import parted, visible, visible_text
from jobs_admin.core.text import whole_number
from jobs_admin.failures import GroupPage, GroupRow
from jobs_admin.groups import OPEN
from jobs_admin.groups.dependencies import Named
from jobs_admin.models import Group
from jobs_admin.models.group import GroupState
from jobs_admin.queues import rates
from jobs_admin.replays import ReadyJobs

ALL = "all"


@dataclass(frozen=True, slots=True)
class Heading:
    """A sortable column."""

    words: str
    url: str
    is_sorted: bool
    is_number: bool


@dataclass(frozen=True, slots=True)
class Chip:
    words: str
    count: str
    url: str
    is_on: bool


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters in the URL of the list."""

    text: str = ""
    state: str = ""  # a group state, `all`, or "" for those that need attention
    assigned: str | None = None  # `me`, a username, "" for unassigned; None for any
    order: str = "last_seen"

    @property
    def states(self) -> tuple[str, ...]:
        if self.state == ALL:
            return ()
        return (self.state,) if self.state else tuple(OPEN)

    def url(self, **changes: object) -> str:
        """Return the URL of the list with these filters changed."""
        values = {"q": self.text, "state": self.state, "assigned": self.assigned, "order": self.order, **changes}
        if values["order"] == "last_seen":
            values["order"] = ""
        pairs = {name: value for name, value in values.items() if value or (name == "assigned" and value is not None)}
        return f"{reverse('redrive:group-list')}?{urlencode(pairs)}" if pairs else reverse("redrive:group-list")


def filters_from(parameters: dict[str, str]) -> Filters:
    """Return the filters of a URL; invalid ones are dropped."""
    given, assigned = parameters.get("state", ""), parameters.get("assigned")
    return Filters(
        text=parameters.get("q", ""),
        state=given if given == ALL or given in GroupState.values else "",
        assigned=None if assigned is None or "\0" in assigned else assigned,
        order=parameters.get("order", "last_seen"),
    )


def state_chips(filters: Filters, page: GroupPage) -> list[Chip]:
    """Return a chip with the number of groups for each state, so that every group is under a chip."""
    by_state = page.by_state
    totals = {"": sum(by_state.get(name, 0) for name in OPEN), **{name: by_state.get(name, 0) for name in _CHIPS}}
    totals[ALL] = sum(by_state.values())
    on = filters.state if page.states or filters.state == ALL else None
    return [
        Chip(_CHIPS.get(name) or {"": "Open", ALL: "All"}[name], number(n), filters.url(state=name), name == on)
        for name, n in totals.items()
    ]


_CHIPS = {
    "new": "New",
    "regressed": "Regressed",
    "ongoing": "Known",
    "muted": "Muted",
    "resolved": "Resolved",
}


def people_chips(filters: Filters, page: GroupPage) -> list[Chip]:
    chips = [
        Chip(
            "Mine",
            number(page.mine),
            filters.url(assigned=None if filters.assigned == "me" else "me"),
            filters.assigned == "me",
        ),
        Chip(
            "Unassigned",
            number(page.unassigned),
            filters.url(assigned=None if filters.assigned == "" else ""),
            filters.assigned == "",
        ),
    ]
    if filters.assigned not in (None, "", "me"):
        chips.append(Chip(f"Assigned to {filters.assigned}", number(page.count), filters.url(assigned=None), True))
    return chips


def headings(filters: Filters) -> list[Heading]:
    def one(words: str, order: str, *, is_number: bool = False) -> Heading:
        return Heading(words, filters.url(order=order), filters.order == order, is_number)

    return [
        one("Dead", "dead", is_number=True),
        one("Failed attempts", "count", is_number=True),
        one("First seen", "first_seen"),
        one("Last seen", "last_seen"),
    ]


def rows(
    found: list[GroupRow],
    *,
    all_dead: int = 0,
    now: datetime | None = None,
    may_act: bool = False,
    ready: Mapping[int, ReadyJobs] | None = None,
    source: str = "",
) -> list[SafeString]:
    """Return the rows of the table of groups.

    `all_dead`: number of dead jobs for the shares. `ready`: adds a column of links that replay these jobs. `source`:
    the only source counted, and the target of links.
    """
    now = now or timezone.now()
    pages, failures = reverse("redrive:group-list"), reverse("redrive:failure-list")
    return [_row(row, pages, failures, all_dead, now, may_act, ready, source) for row in found]


_DOT = ' <span class="dot">·</span> '


@lru_cache(maxsize=2048)  # names and places of groups: few distinct values, none longer than 500 characters
def _name(text: str) -> SafeString:
    return conditional_escape(visible(text))


@lru_cache(maxsize=2048)
def _message(message: str) -> SafeString:
    """Return the message; for a part of a split its value comes first, because the end of a line is truncated."""
    rest, part = parted(message)
    return SafeString(f"{f' ({_name(part)})' if part else ''} <code>{_name(rest)}</code>" if message else "")


def _row(
    row: GroupRow,
    pages: str,
    failures: str,
    all_dead: int,
    now: datetime,
    may_act: bool,
    ready: Mapping[int, ReadyJobs] | None,
    source: str,
) -> SafeString:
    """Return the row. Every value is escaped explicitly: a template per row took a quarter of the page's time."""
    group, error = row.group, _name(row.group.error_type)
    fingerprint = escape(group.fingerprint)
    is_plain = fingerprint.isascii() and fingerprint.replace("-", "").isalnum()
    url = f"{pages}{fingerprint}/" if is_plain else escape(links.group_page(group.fingerprint))
    pick = (
        f'<td class="pick"><label class="pick-label"><input type="checkbox" name="groups" value="{fingerprint}" '
        f'data-select><span class="unseen-label">Select {error}</span></label></td>'
        if may_act
        else ""
    )
    message = _message(group.message)
    last_seen = ago(group.last_seen, now)
    is_failing = row.per_minute and rates.is_failing(group.last_seen, row.per_minute, now)
    per_minute = f'<p class="sub-line">{number(row.per_minute)}/min</p>' if is_failing else ""
    jobs_ready = ready.get(group.pk) if ready is not None else None
    wide_replay = "" if ready is None else f'<td class="number hide-narrow">{_replay(row, jobs_ready, source)}</td>'
    jobs = (" job" if row.count == 1 else " jobs") if row.is_partial else ""
    return SafeString(
        f'<tr data-row="{url}">{pick}<td class="grow"><a class="group-title" href="{url}"><strong>{error}</strong>'
        f'{message}</a><p class="sub-line">{_about(row, now)}<span class="show-narrow">{_DOT}{last_seen}</span></p></td>'
        f'<td class="trend hide-narrow hide-middle">{_trend(tuple(row.trend)) if row.trend else ""}</td>'
        f'<td class="number">{_dead(row, failures, all_dead, is_plain, source)}'
        f"{_replay(row, jobs_ready, source, 'show-narrow')}</td>"
        f'<td class="number hide-narrow">{number(row.count)}{jobs}{per_minute}</td>'
        f'<td class="hide-narrow hide-middle">{ago(group.first_seen, now)}</td>'
        f'<td class="hide-narrow">{last_seen}</td>'
        f"{wide_replay}</tr>\n"
    )


def _about(row: GroupRow, now: datetime) -> str:
    """Return the line below its title: state, assignee, task, queues and place in the code."""
    group, why = row.group, since(row.group, now)
    parts = [f"{state(group.state)} {conditional_escape(why)}" if why else state(group.state)]
    if group.assignee_id:
        parts.append(f'{_DOT}<span class="assignee">{_name(group.assignee.get_username())}</span>')
    if group.issue_url and links.is_web(group.issue_url):
        parts.append(_DOT + _issue(group))
    # What distinguishes groups with one error comes first, because the end of the line is truncated.
    if len(row.tasks) == 1:
        parts.append(f"{_DOT}<code>{_name(row.tasks[0])}</code>")
    parts += [_DOT + called(one) for one in row.dependencies]
    if row.queues:
        parts.append(_DOT + _name(", ".join(row.queues[:2])))
    if len(row.queues) > 2:
        parts.append(f" and {number(len(row.queues) - 2)} more")
    if group.culprit:
        parts.append(f'<span class="hide-narrow">{_DOT}<code>{_name(group.culprit)}</code></span>')
    return "".join(parts)


def _issue(group: Group) -> SafeString:
    return format_html(
        '<a href="{}" target="_blank" rel="noopener noreferrer" title="{}">issue<span class="unseen-label"> of {}</span></a>',
        group.issue_url, visible_text(group.issue_url), visible(group.error_type),
    )  # fmt: skip


def called(dependency: Named) -> SafeString:
    """Return the text that names what the jobs of a group failed on, with the reason as title."""
    return format_html(
        '<span class="calls" title="{}">calls <a href="{}">{}</a></span>',
        visible_text(dependency.reason), links.dependency_page(dependency.name), visible(dependency.name),
    )  # fmt: skip


def _dead_fields(group: str, source: str) -> dict[str, str]:
    """Return the search fields of a group's dead jobs, of one source or of all."""
    return {**({"source": source} if source else {}), "group": group, "state": "dead"}


def _dead(row: GroupRow, failures: str, all_dead: int, is_plain: bool, source: str) -> str:
    if not row.dead:
        return '<span class="muted">0</span>'
    name = row.group.fingerprint
    url = (
        f"{failures}?q=group%3A{name}+state%3Adead"
        if is_plain and not source
        else escape(links.failures_of(**_dead_fields(name, source)))
    )
    share = (
        f'<p class="sub-line" title="share of all dead jobs">{escape(percent(row.dead / all_dead))}</p>'
        if all_dead
        else ""
    )
    return f'<a class="is-dead count-of-state" href="{url}">{number(row.dead)}</a>{share}'


def _replay(row: GroupRow, ready: ReadyJobs | None, source: str, more: str = "") -> str:
    """Return the link that replays its dead jobs, with a distinct accessible name per group."""
    if ready is None or not ready.count:
        return ""
    group = row.group
    jobs = "dead job" if ready.count == 1 else "dead jobs"
    about = ", ".join(one for one in (group.error_type, group.culprit, *row.tasks[:1], *row.queues[:1]) if one)
    url = escape(links.replay_of(**_dead_fields(group.fingerprint, source)))
    return (
        f'<a class="replay-link {more}" href="{url}">Replay {"" if ready.is_exact else "up to "}{number(ready.count)}'
        f'<span class="unseen-label"> {jobs} of {_name(about)}</span>…</a>'
    )


@lru_cache(maxsize=1024)  # most groups are unchanged from one moment to the next
def _trend(counts: tuple[int, ...]) -> SafeString:
    return sparkline(counts, trend_words(counts))


def since(group: Group, now: datetime) -> SafeString | str:
    """Return the cause of a group's state: the release or replay, the end, the person."""
    if group.state == GroupState.REGRESSED:
        return came_back_after(group)
    if group.state == GroupState.MUTED:
        return muted_until(group)
    if group.state == GroupState.RESOLVED:
        return format_html("by {}", visible(group.state_by)) if group.state_by else ""
    if group.state == GroupState.ONGOING and group.mute_ended:
        return _ENDED[group.mute_ended]
    return ""


_ENDED = {"time": "mute expired", "count": "mute limit reached"}


def came_back_after(group: Group) -> SafeString | str:
    kind, _, name = group.regressed_after.partition(":")
    if kind == "replay" and (pk := whole_number(name)) is not None:
        return format_html('after <a href="{}">replay #{}</a>', reverse("redrive:replay-detail", args=[pk]), name)
    return format_html("after release {}", visible(name)) if kind == "release" and name else ""


def muted_until(group: Group) -> SafeString | str:
    """Return the ends of a mute, whichever comes first."""
    ends = []
    if group.muted_until:
        ends.append(format_html("until {}", clock(group.muted_until)))
    if group.muted_until_count is not None:
        more = number(max(0, group.muted_until_count - group.count))
        ends.append(format_html("until {} more failed attempts ({} total)", more, number(group.muted_until_count)))
    return format_html_join(" or ", "{}", ((end,) for end in ends)) if ends else "until unmuted"


def trend_words(trend: Sequence[int]) -> str:
    return f"Failed attempts in 24 h: {sum(trend):,}, peak {max(trend, default=0):,}/h"
