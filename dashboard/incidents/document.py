"""Incident as data: its span in a URL, links of its events, and the report as JSON and Markdown.

For pages and API. The demo's incident is in `dashboard/demo/incident.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from dashboard.web import links, moments
from dashboard.web.figures import duration, number
from dashboard.web.moments import clock
from jobs_admin import config, incidents
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import marked
from jobs_admin.incidents import Incident, Moment, Ref, Span
from jobs_admin.models.access import Viewer

LONGEST_NAME = 200


def span_from_query(viewer: Viewer, given: Mapping[str, str], now: datetime) -> Span | None:
    """Return the span for `source`, `queue`, `since` and `until` of a URL. Raises Refused and NotFound."""
    source, queue = given.get("source", "").strip(), given.get("queue", "").strip()
    if "\0" in source + queue or max(len(source), len(queue)) > LONGEST_NAME:
        raise NotFound()
    since, until = _moment(given, "since"), _moment(given, "until")
    return incidents.span(viewer, now, source=source, queue=queue, since=since, until=until)


def _moment(given: Mapping[str, str], name: str) -> datetime | None:
    text = given.get(name, "").strip()
    if not text:
        return None
    try:
        # An unquoted plus in the URL arrives as a blank.
        return moments.from_field(text.replace(" ", "+") if "T" in text else text)
    except ValueError:
        raise Refused("invalid", f"{name} is not a time. Use the form 2026-11-21T02:07Z.", name) from None


def shared_query(given: Mapping[str, str]) -> dict[str, str]:
    """Return the query of a URL with the same meaning for every reader, with times in UTC. Raises Refused."""
    times = {name: at for name in ("since", "until") if (at := _moment(given, name))}
    others = {name: value for name, value in given.items() if name != "time_zone"}
    return others | {name: iso(at) for name, at in times.items()}


def address(where: Span, form: str = "") -> str:
    """Return the URL of the page of this span, or of its file: `markdown` or `json`."""
    fields = {"source": where.source, "queue": where.queue, "since": iso(where.since), "until": iso(where.until)}
    page = reverse("redrive:incident-text", args=[form]) if form else reverse("redrive:incident")
    return f"{page}?{urlencode({name: value for name, value in fields.items() if value})}"


def page_of(ref: Ref | None) -> str:
    """Return the URL of the page about an event; "" for none."""
    if ref is None:
        return ""
    if ref.kind in ("alert", "replay"):
        return reverse(f"redrive:{ref.kind}-detail", args=[int(ref.name)])
    if ref.kind == "policy":
        return links.policy_version(ref.name)
    if ref.kind == "breaker":
        return reverse("redrive:breaker-detail", args=ref.name.split("/", 1))
    return links.group_page(ref.name) if ref.kind == "group" else links.failures_of(release=ref.name, state="any")


def failures(where: Span, state: str = "any") -> str:
    """Return the list of failures in the span."""
    place = {"source": where.source, "queue": where.queue, "state": state}
    named = links.query_for(**{name: value for name, value in place.items() if value})
    return links.list_url(f"{named} since:{iso(where.since)} until:{iso(where.until)}")


def iso(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def name_of(where: Span) -> str:
    return f"{where.queue} of {where.source}" if where.queue else where.source


def sentence(incident: Incident) -> str:
    """Return the incident in one sentence, without its place."""
    n, seen = incident.counts, incident.seen
    parts = [
        f"{number(n.failed)} failed attempt{'' if n.failed == 1 else 's'}",
        f"{number(n.died)} job death{'' if n.died == 1 else 's'}",
    ]
    if n.of_jobs:
        capped = " or more" if n.jobs_are_capped else ""
        back, dead = n.jobs["recovered"], n.open
        parts.append(f"of {number(n.of_jobs)}{capped} jobs, {number(back)} recovered and {number(dead)} still dead")
    begins = clock(seen.first_at, incident.where.since) if seen.first_at else ""
    ends = ", ongoing" if incident.where.is_going_on else ""
    if seen.calm_at:
        ends = f" until {clock(seen.calm_at, incident.where.since)}"
    return f"{'; '.join(parts)}{f' (failing since {begins}{ends})' if begins else ''}."


# -- JSON ---------------------------------------------------------------------------------------------------------


def document(incident: Incident) -> dict[str, Any]:
    """Return the data of the page, with absolute URLs."""
    where, n, seen = incident.where, incident.counts, incident.seen
    return {
        "source": where.source,
        "queue": where.queue,
        "since": iso(where.since),
        "until": iso(where.until),
        "is_going_on": where.is_going_on,
        "url": config.page_url(address(where)),
        "failures_url": config.page_url(failures(where)),
        "failing_since": _or_none(seen.first_at),
        "failing_until": _or_none(seen.calm_at),
        "last_back_at": _or_none(seen.back_at),
        "counts": {
            "attempts_failed": n.failed,
            "times_died": n.died,
            "attempts_recovered": n.recovered,
            "jobs": n.jobs,
            "jobs_are_capped": n.jobs_are_capped,
            "dead_most": seen.dead_most,
        },
        "tenants": [{"tenant": name, "jobs": jobs} for name, jobs in n.tenants],
        "more_tenants": n.more_tenants,
        "dependencies": [{"dependency": name, "jobs": jobs} for name, jobs in n.dependencies],
        "tenants_counted_over": n.looked_at,
        "timeline": [_as_row(one) for one in incident.timeline],
        "step_s": seen.step_s,
        "series": [[iso(p.at), p.failed, p.recovered, p.dead] for p in seen.points],
        "acts": None if incident.acts is None else [_as_act(one) for one in incident.acts],
    }


def _or_none(at: datetime | None) -> str | None:
    return iso(at) if at else None


def _as_row(one: Moment) -> dict[str, Any]:
    page = page_of(one.ref)
    url = config.page_url(page) if page else None
    return {
        "at": iso(one.at), "kind": one.kind, "what": one.what, "words": one.words, "who": one.who, "why": one.why,
        "url": url,
    }  # fmt: skip


def _as_act(one: incidents.Act) -> dict[str, Any]:
    return {
        "at": iso(one.at), "who": one.who, "act": one.act, "object": one.object, "reason": one.reason,
        "allowed": one.is_allowed,
    }  # fmt: skip


# -- Markdown -----------------------------------------------------------------------------------------------------

_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
# Where other programs would create a mention or an issue link. The word joiner is invisible.
_CALLS = re.compile(r"([@#])(?=\w)")


def plain(text: object, longest: int = 500) -> str:
    """Return untrusted text for one line or cell of Markdown: nothing in it is markup, link or mention."""
    words = marked(" ".join(str(text).split()))
    words = words if len(words) <= longest else f"{words[: longest - 1]}…"
    # CommonMark: a backslash escapes any ASCII punctuation (0.31.2, section 2.4).
    return _CALLS.sub("\\1\u2060", _PUNCTUATION.sub(r"\\\1", words))


def markdown(incident: Incident) -> str:
    """Return the draft of a post-mortem: known facts, and headings for what only people know."""
    where, n, seen = incident.where, incident.counts, incident.seen
    rows = [
        ("Failing", _from_to(seen.first_at, seen.calm_at, incident.where)),
        ("Back to previous dead jobs", _at(seen.back_at) or "not yet, or unknown"),
        ("Failed attempts", number(n.failed)),
        ("Job deaths", number(n.died)),
        ("Peak dead jobs", number(seen.dead_most)),
        *((f"Jobs now {state}", number(count)) for state, count in n.jobs.items() if count),
        ("Affected tenants", _tenants(incident)),
        *(
            [("Failed dependencies", ", ".join(f"{name} {jobs}" for name, jobs in n.dependencies))]
            if n.dependencies
            else []
        ),
    ]
    lines = [
        f"# Incident: {plain(name_of(where))}, {where.since:%Y-%m-%d %H:%M} to {clock(where.until, where.since)} UTC",
        "",
        plain(sentence(incident)),
        "",
        f"[Incident page]({config.page_url(address(where))}) · [failures]({config.page_url(failures(where))})",
        "",
        "## Key figures",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {plain(value)} |" for name, value in rows),
        "",
        "## Timeline",
        "",
        "All times are UTC.",
        "",
        "| time | event | operator | reason |",
        "|---|---|---|---|",
        *(_line(one) for one in incident.timeline),
    ]
    if incident.acts is not None:
        lines += [
            "",
            "## Operator actions",
            "",
            "| time | operator | action | object | reason |",
            "|---|---|---|---|---|",
        ]
        lines += [_act_line(one) for one in incident.acts]
        if incident.has_more_acts:
            lines += ["", f"Latest {len(incident.acts)} actions of the audit."]
    lines += ["", "## Cause", "", "", "## Lessons learned", "", "", "## Action items", "", ""]
    return "\n".join(lines)


def _line(one: Moment) -> str:
    page = page_of(one.ref)
    words = plain(one.words)
    words_with_link = f"[{words}]({config.page_url(page)})" if page else words
    return f"| {one.at:%Y-%m-%d %H:%M:%S} | {words_with_link} | {plain(one.who, 150)} | {plain(one.why)} |"


def _act_line(one: incidents.Act) -> str:
    act = plain(one.act) if one.is_allowed else f"{plain(one.act)} (refused)"
    return f"| {one.at:%Y-%m-%d %H:%M:%S} | {plain(one.who, 150)} | {act} | {plain(one.object)} | {plain(one.reason)} |"


def _at(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}" if at else ""


def _from_to(since: datetime | None, until: datetime | None, where: Span) -> str:
    if since is None:
        return "at a normal rate"
    if until is None:
        return f"since {clock(since, where.since)}{', ongoing' if where.is_going_on else ''}"
    return f"{clock(since, where.since)} to {clock(until, where.since)} ({duration(until - since)})"


def _tenants(incident: Incident) -> str:
    n = incident.counts
    named = [f"{name or '(no tenant)'} {jobs}" for name, jobs in n.tenants]
    more = f" and {n.more_tenants} more" if n.more_tenants else ""
    capped = f" (latest {number(n.looked_at)} jobs)" if n.looked_at < n.of_jobs else ""
    return f"{', '.join(named)}{more}{capped}" if named else "none"
