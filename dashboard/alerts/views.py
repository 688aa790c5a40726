"""Alerts: the list, the page of one, and the acts on it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode, urlsplit

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from dashboard.alerts import page as alert_page
from dashboard.alerts import picture as alert_picture
from dashboard.alerts import strip as alert_strip
from dashboard.alerts import words as alert_words
from dashboard.alerts.channels import words as channel_words
from dashboard.alerts.silences import screens as silence_screens
from dashboard.holds import breaker_page
from dashboard.holds import notes as pause_notes
from dashboard.web import links, moments, time_range
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from dashboard.web.time_range import RANGES
from dashboard.web.toasts import add_toast
from jobs_admin import alerts, config, notices, replays
from jobs_admin.alerts import silencing
from jobs_admin.core.alert_metrics import Link
from jobs_admin.core.refused import Refused
from jobs_admin.desk import overview
from jobs_admin.models import Alert
from jobs_admin.models.access import ADMIN, EVERY_SOURCE, OPERATOR, VIEWER, Viewer
from jobs_admin.models.alert import AlertState
from jobs_admin.queues import depths, liveness
from jobs_admin.replays import prognosis

NOW_SHOWN = 12
MOST_COUNTED = 200
LIMIT = 50
MOST_STRIP = 2_000
RULES_NAMED = 3
TIMES_DAYS = 30
OTHERS_SHOWN = 20
MOST_DELIVERIES = 200
MOST_READ = 20_000  # dead jobs read for the number on the button
AROUND = timedelta(minutes=5)  # margin around an alert in its incident
NOT_NOTIFIED = "No notifications were sent: the rule has no channel."
READ_ONLY = "The desk is read-only: alerts cannot be acknowledged or silenced, and jobs cannot be replayed."


# --- the list ----------------------------------------------------------------------------------------------------


@require_safe
@can(VIEWER, by_source=True)
def index(request: HttpRequest) -> HttpResponse:
    viewer, now = request.viewer, timezone.now()
    chosen = {name: request.GET.get(name, "").strip()[:255] for name in alert_words.FILTERS}
    chosen = {name: value for name, value in chosen.items() if value}
    span = time_range.chosen(request, alert_strip.SPANS, usual=alert_strip.SPAN)
    span_words = time_range.words(span)
    filters = {**chosen, time_range.PARAMETER: span}
    after = request.GET.get("after")
    page = alerts.listing(viewer, **chosen, after=after, limit=LIMIT)
    rules = alerts.rules(viewer, with_channels=False)
    since = now - RANGES[span]
    episodes = alerts.episodes(
        viewer, since, source=chosen.get("source", ""), queue=chosen.get("queue", ""), rule=chosen.get("rule", ""), limit=MOST_STRIP + 1
    )  # fmt: skip
    strip = alert_strip.picture(episodes[:MOST_STRIP], since, now)
    firing = alerts.firing(viewer, limit=MOST_COUNTED + 1)
    may_act = alert_words.may_act(viewer, [*firing, *page.rows])
    silenced = silencing.find_ends(viewer, [one for one in (*firing, *page.rows) if one.is_open], now)
    now_lines = alert_words.folded_lines(firing, now, may_act, silenced)
    watching = [rule.name for rule in rules if rule.enabled]
    context = {
        "now": now,
        "stale": liveness.find_stale(now),
        "silent": channel_words.disabled_channels(overview.silent_channels(), sees=viewer.may(ADMIN, EVERY_SOURCE)),
        "title": _title(firing),
        "rules_on": len(watching),
        "rules_named": ", ".join(watching[:RULES_NAMED]),
        "more_rules": max(0, len(watching) - RULES_NAMED),
        "rules_url": links.url_of("redrive:alert-rules"),
        "watched_words": f"{len(watching)} active rule{'' if len(watching) == 1 else 's'}.",
        "times": alerts.times(viewer, now - timedelta(days=TIMES_DAYS)),
        "times_days": TIMES_DAYS,
        "now_lines": now_lines[:NOW_SHOWN],
        "more_now": len(firing) - sum(line.count for line in now_lines[:NOW_SHOWN]),
        "open_url": alert_words.address({"state": alerts.OPEN}) + "#all",
        "strip": strip,
        "strip_is_capped": len(episodes) > MOST_STRIP,
        "strip_empty": f"No {'matching ' if chosen else ''}alerts in the last {span_words}.",
        "more_strips": f"See the list below for {strip.more:,} more.",
        "many_sources": len({one.source for one in strip.strips}) > 1,
        "span_words": span_words,
        "time_range": time_range.picker(request, alert_strip.SPANS, span),
        "states": alert_words.states(filters),
        "chosen": chosen,
        "span": span,
        "rules": [_RuleChoice(str(rule.pk), rule.name, str(rule.pk) == chosen.get("rule")) for rule in rules],
        "sources": viewer.unfocused.sources() or sorted({one.source for one in strip.strips}),
        "page": page,
        "lines": alert_words.lines(page.rows, now, may_act, silenced),
        "next_url": alert_words.address(filters, after=page.next) + "#all" if page.next else "",
        "first_url": alert_words.address(filters) + "#all",
        "is_first": not after,
        "all_url": alert_words.address({}),
        "self_url": (here := alert_words.address(filters, after=after or "")),
        "back": here,
    }
    return render_page(request, "redrive/alerts/list.html", context, part="alerts")


@dataclass(frozen=True, slots=True)
class _RuleChoice:
    pk: str
    name: str
    is_chosen: bool


def _title(firing: list[Alert]) -> str:
    calling = sum(alert.state == AlertState.FIRING for alert in firing)
    if calling:
        many = f"More than {MOST_COUNTED}" if calling > MOST_COUNTED else f"{calling:,}"
        if calling < len(firing):
            return f"{many} firing alert{'s' if calling > 1 else ''} not acknowledged"
        return f"{many} alert{'s' if calling > 1 else ''} firing, {'none' if calling > 1 else 'not'} acknowledged"
    if firing:
        return f"{len(firing):,} open alert{'s, all' if len(firing) > 1 else ','} acknowledged"
    return "No alerts firing"


# --- one alert ---------------------------------------------------------------------------------------------------


def _get_alert(request: HttpRequest, pk: int) -> Alert:
    return alerts.get(request.viewer, pk)


@require_safe
@can(VIEWER)
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    """Show one alert, the target of links in notices."""
    return _page(request, _get_alert(request, pk))


def _page(request: HttpRequest, alert: Alert, *, status: int = 200) -> HttpResponse:
    viewer, now, here = request.viewer, timezone.now(), reverse("redrive:alert-detail", args=[alert.pk])
    may_act = alert_words.may_act(viewer, [alert])[alert.source]
    led = alerts.links(alert, now)
    span_name, picker = _time_range(request, alert, now)
    since, until = (now - RANGES[span_name], now) if span_name else alert_picture.span(alert, now)
    deliveries = notices.deliveries(request.viewer, alert=alert.told_with_id or alert.pk, limit=MOST_DELIVERIES).rows
    why = _why(viewer, alert, led.replay_query, now, may_act=may_act)
    may_acknowledge = may_act and alert.state in (AlertState.FIRING, AlertState.SILENCED)
    opened = alerts.bundle(alert).exclude(state=AlertState.RESOLVED).select_related("rule")
    bundled = list(opened) if may_act and alert.is_open else []
    context = {
        **_words(alert, now),
        **why,
        **_others(viewer, alert, now, may_act=may_act),
        "stale": liveness.find_stale(now),
        "may_act": may_act,
        **_pauses(viewer, alert, now, may_act=may_act),
        "may_acknowledge": may_acknowledge,
        "together": alerts.count_calling([alert])[alert.pk] if may_acknowledge else alerts.Calling(),
        "bundled": len(bundled),
        "presets": silence_screens.presets(now),
        "undoable": alerts.count_undoable(viewer, alert) if may_act and alert.state == AlertState.ACKNOWLEDGED else 0,
        "is_acknowledging_primary": alert.state == AlertState.FIRING and not (why["act"] and why["act"].is_primary),
        "may_silence": may_act and alert.is_open,
        "why_not": "" if may_act or not alert.is_open else _why_not(alert),
        "silences": _silences(viewer, alert, now, may_act=may_act) if alert.is_open else [],
        "matcher_fields": silence_screens.fields(_matchers(alert)),
        "coverage_sentence": silence_screens.coverage_sentence(bundled),
        "until": moments.as_field(now + timedelta(hours=8)),
        "until_min": moments.as_field(now),
        "replay_url": _path_of(led.replay_url),
        "failures_url": _path_of(led.failures_url),
        "incident_url": _incident(alert, now),
        "queue_url": links.queue_page(alert.source, alert.subject) if alert_picture.is_of_queue(alert) else "",
        "picture": _picture(request, alert, since, until),
        "time_range": picker,
        "chart_words": f"last {time_range.words(span_name)}" if span_name else "before and after",
        "is_of_queue": alert_picture.is_of_queue(alert),
        "has_history": alert_picture.has_history(alert),
        "quarantine_url": links.url_of("redrive:quarantine-list"),
        "wider_than_rule": alert_picture.wider_than_rule(alert),
        "not_notified": "" if deliveries or alert.fired_at is None else NOT_NOTIFIED,
        "rule_url": "" if alert.rule.deleted_at else links.url_of("redrive:alert-rule-detail", alert.rule_id),
        "deliveries_url": _deliveries_page(alert) if deliveries else "",
        "steps": alert_page.steps(alert, alerts.events(viewer, alert), deliveries, now),
        "earlier": alert_page.before(alerts.earlier(viewer, alert)),
        "all_like_url": alert_words.address(
            {"rule": str(alert.rule_id), "source": alert.source, "queue": alert.subject}
        ),
        "self_url": f"{here}?{time_range.PARAMETER}={span_name}" if span_name else here,
    }
    return render_page(request, "redrive/alerts/detail.html", context, part="alert", status=status)


def _pauses(viewer: Viewer, alert: Alert, now: datetime, *, may_act: bool) -> dict[str, Any]:
    if not alert.is_open or not alert_picture.is_of_queue(alert):
        return {"pauses": [], "breakers": [], "may_pause": False}
    pauses = pause_notes.of_queue(viewer, alert.source, alert.subject, now)
    return {
        "pauses": pauses,
        "breakers": breaker_page.of_queue(viewer, alert.source, alert.subject, now),
        "may_pause": may_act and pause_notes.may_pause(viewer, alert.source, alert.subject, pauses),
        "lengths": pause_notes.LENGTHS,
    }


def _words(alert: Alert, now: datetime) -> dict[str, Any]:
    """Return the alert as text."""
    return {
        "now": now,
        "alert": alert,
        "condition": alert_words.condition(alert),
        "sentence": alert_page.sentence(alert, now),
        "severity_tone": alert_words.SEVERITY_TONES.get(alert.severity, "discarded"),
        "peak": alert_words.in_unit(alert.peak, alert.rule.metric),
    }


def _why(viewer: Viewer, alert: Alert, replay_query: str, now: datetime, *, may_act: bool) -> dict[str, Any]:
    """Return the cause of the alert: failing jobs with their replay, crashes, or a source."""
    has_failures = alerts.has_failures_behind(alert)
    is_of_quarantine = alert.rule.measure.link is Link.QUARANTINE
    risen = alerts.groups_behind(alert) if is_of_quarantine else []
    outcomes, ready = None, None
    if has_failures and not alert.is_open:
        counts, risen = alerts.count_outcomes(viewer, alert, now)
        outcomes = alert_page.outcomes(counts)
        ready = replays.read_ready(viewer, replay_query, now) if outcomes.dead and may_act else None
    found = alerts.find_causes(viewer, alert, now, prognosis.predict) if has_failures and alert.is_open else None
    act = None
    if found:
        outlook = replays.read_outlook(viewer, replay_query, now, MOST_READ) if found.dead and may_act else None
        act = alert_page.act(found, alert, now, outlook, may_act=may_act)
    runbook = alerts.runbook_of(alert, [one.group for one in found.leading] if found else risen)
    return {
        "has_failures": has_failures,
        "is_of_quarantine": is_of_quarantine,
        "errors": alert_page.errors(found, alert, now) if found else [],
        "more_errors": found.others if found else 0,
        "release": found.release if found else None,
        "act": act,
        "risen": alert_page.grown_groups(risen),
        "outcomes": outcomes,
        "ready": ready,
        "dead_url": links.list_url(replay_query) if has_failures else "",
        "meaning": alert.rule.measure.meaning.format(source=alert.source),
        "source": overview.source(viewer, alert.source, now) if not has_failures and not is_of_quarantine else None,
        "sources_url": links.url_of("redrive:source-list"),
        "runbook": runbook if links.is_web(runbook) else "",
    }


def _others(viewer: Viewer, alert: Alert, now: datetime, *, may_act: bool) -> dict[str, Any]:
    """Return the other alerts of its notification, and links for all of their queues."""
    others = list(alerts.bundle(alert).exclude(pk=alert.pk).select_related("rule")[: OTHERS_SHOWN + 1])
    covered = [one.subject for one in (alert, *others) if one.is_open and one.subject]
    shared = None
    if others and alert.is_open and len(covered) > 1:
        led = alerts.links(alert, now, queues=covered)
        ready = replays.read_ready(viewer, led.replay_query, now) if led.replay_url and may_act else None
        shared = alert_page.shared(covered, _path_of(led.failures_url), _path_of(led.replay_url), ready)
    return {
        "shared": shared,
        "others": [alert_words.line(one, now) for one in others[:OTHERS_SHOWN]],
        "more_others": max(0, len(others) - OTHERS_SHOWN),
    }


def _time_range(request: HttpRequest, alert: Alert, now: datetime) -> tuple[str, time_range.Picker | None]:
    """Return the requested range, "" for the time around the alert, and the picker. Every range contains the alert.

    A range stored by another page does not apply here, because the page is about the alert.
    """
    if not alert_picture.has_history(alert):
        return "", None
    known = time_range.with_data(depths.sampled_since(alert.source, alert.subject), now)
    offered = [one for one in known if RANGES[one] >= now - alert.opened_at]
    name = time_range.requested(request)
    name = name if name in offered else ""
    url = reverse("redrive:alert-detail", args=[alert.pk])  # the response to an act has a different URL
    around = time_range.Choice("Around the alert", url, not name)
    return name, time_range.picker(request, offered, name, around, url=url)


def _picture(request: HttpRequest, alert: Alert, since: datetime, until: datetime) -> alert_picture.Picture:
    """Draw the history of the alert's queue; empty without a queue or history."""
    if not alert_picture.has_history(alert):
        return alert_picture.picture(alert, [], [], [], since, until)
    history = depths.history(request.viewer, alert.source, alert.subject, since, until, most=alert_picture.MOST_POINTS)
    marks = depths.marks(request.viewer, alert.source, alert.subject, since, until)
    return alert_picture.picture(alert, history.points, marks, history.gaps, since, until)


def _why_not(alert: Alert) -> str:
    if config.is_read_only():
        return READ_ONLY
    return f"Acknowledging, silencing and replaying need the role operator on {alert.source or 'every source'}."


def _matchers(alert: Alert) -> dict[str, str]:
    """Return the default matchers of a silence from this page: the alert's rule and queue."""
    return {"rule": alert.rule.name, "source": alert.source, "queue": alert.subject}


def _chosen_matchers(request: HttpRequest, alert: Alert) -> dict[str, Any]:
    """Return the matchers of the form. An unedited default that contains `*` matches exactly that name."""
    chosen: dict[str, Any] = silence_screens.chosen_matchers(request.POST)
    exact = [name for name, own in _matchers(alert).items() if "*" in own and chosen.get(name) == own.strip()]
    return chosen | {"exact": exact} if exact else chosen


def _deliveries_page(alert: Alert) -> str:
    page = links.url_of("redrive:delivery-list")
    return f"{page}?alert={alert.told_with_id or alert.pk}" if page else ""


def _silences(viewer: Viewer, alert: Alert, now: datetime, *, may_act: bool) -> list[tuple[silence_screens.Line, str]]:
    """Return the silences in force that cover the alert, each with its end."""
    found = silencing.find_silences_of(viewer, alert, now)
    lines = silence_screens.lines(viewer, found, now, may_act=may_act)
    return [(line, moments.dated(line.silence.ends_at, now)) for line in lines]


def _incident(alert: Alert, now: datetime) -> str:
    """Return the alert's incident: from shortly before the condition was met until shortly after its end.

    Without an end while the alert is open: the page also shows what happens after its link was rendered.
    """
    page = links.url_of("redrive:incident")
    until = min(now, alert.resolved_at + AROUND) if alert.resolved_at else None
    given = {"source": alert.source, "queue": alert.subject, "since": _iso(alert.opened_at - AROUND)}
    given |= {"until": _iso(until)} if until else {}
    return (
        f"{page}?{urlencode({name: value for name, value in given.items() if value})}" if page and alert.source else ""
    )


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _path_of(url: str) -> str:
    """Return a URL of a notice without its host: the desk may be open under another name."""
    return urlsplit(url)._replace(scheme="", netloc="").geturl() if url else ""


# --- acts --------------------------------------------------------------------------------------------------------


@require_POST
@can(OPERATOR)
def acknowledge(request: HttpRequest, pk: int) -> HttpResponse:
    url = links.back(request, otherwise=reverse("redrive:alert-detail", args=[pk]))
    only_this = request.POST.get("only_this") == "1"
    try:
        done = alerts.acknowledge(request.viewer, pk, request.POST.get("comment", ""), only_this=only_this)
    except Refused as refused:
        add_toast(request, refused.message, level="error")
        return go(request, url)
    left = alerts.count_calling([done.alert])[pk].changed if only_this else 0
    add_toast(
        request,
        alert_page.acknowledged(done, left),
        undo=reverse("redrive:alert-unacknowledge", args=[pk]),
        undo_fields=[("back", url)],
    )
    return go(request, url)


@require_POST
@can(OPERATOR)
def unacknowledge(request: HttpRequest, pk: int) -> HttpResponse:
    """Undo the viewer's own acknowledgement."""
    url = links.back(request, otherwise=reverse("redrive:alert-detail", args=[pk]))
    try:
        done = alerts.unacknowledge(request.viewer, pk)
    except Refused as refused:
        add_toast(request, refused.message, level="error")
        return go(request, url)
    add_toast(request, alert_page.unacknowledged(done))
    return go(request, url)


@require_POST
@can(OPERATOR)
def silence(request: HttpRequest, pk: int) -> HttpResponse:
    """Silence the alerts of its notification, or by the form's matchers: by default this rule on this queue."""
    alert, now = _get_alert(request, pk), timezone.now()
    url, is_for_all = reverse("redrive:alert-detail", args=[pk]), request.POST.get("scope") == "notification"
    matchers = {"alert": alert.pk} if is_for_all else _chosen_matchers(request, alert)
    try:
        made = alerts.silence(
            request.viewer, matchers, ends_at=silence_screens.ends_at(request.POST, now),
            comment=request.POST.get("comment", ""), now=now,
        )  # fmt: skip
    except Refused as refused:
        add_toast(request, str(refused), level="error")
        return go(request, url)
    covered = alert_words.where(alert)
    if is_for_all:
        covered = "all alerts of this notification. A new alert sends notifications"
    add_toast(
        request,
        f"Silenced until {moments.dated(made.ends_at, now)}: {covered}.",
        undo=reverse("redrive:silence-end", args=[made.pk]),
        undo_fields=[("back", url)],
    )
    return go(request, url)
