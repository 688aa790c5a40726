"""Links of an alert: its page, its failures, and the draft of their replay.

A link is a search with absolute times, so that it finds the same failures later, whatever their state: a replayed job
has succeeded, or failed again at a later time; a discarded one is no longer dead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import quote, urlencode

from jobs_admin import config
from jobs_admin.core import query as language
from jobs_admin.core.alert_metrics import Link, Subject
from jobs_admin.core.query import All, Any, Match, Numbers, Query, Term, Time, Value
from jobs_admin.models import Alert, DepthSample, Rule

MOST_QUEUES = 20  # in one search
_BEFORE = timedelta(hours=1)  # if no sample has the time of the oldest dead job
_ENDED = ("dead", "discarded", "gone")


@dataclass(frozen=True, slots=True)
class Links:
    url: str  # of the alert's page
    failures_query: str
    failures_url: str
    replay_query: str  # finds those that are still dead
    replay_url: str  # the replay's draft form; starts nothing. Empty if the suitable act is to readmit.


def links(alert: Alert, now: datetime, *, queues: Sequence[str] = (), longest: int | None = None) -> Links:
    """Return the links of an alert, as of now or of its end; with `queues`, those of its entire bundle.

    `longest`: limit for the length of each address in characters. It then includes as many queues as fit; if none fits,
    it is the alert's page, which has both links.
    """
    until = min(now, alert.resolved_at) if alert.resolved_at is not None else now
    ends = Time("until", at=until.replace(microsecond=0) + timedelta(seconds=1))
    named = list(queues)[:MOST_QUEUES] or [alert.subject]
    begins = Time("since", at=since(alert, named).replace(microsecond=0))
    while True:
        failures, draft = _queries(alert, named, begins, ends, now)
        urls = _search_page("failures/", failures), _search_page("replays/new/", draft, reason=_reason(alert))
        if longest is None or max(map(len, urls)) <= longest:
            break
        if len(named) == 1:
            urls = alert_page(alert.pk), alert_page(alert.pk)
            break
        named.pop()
    failures_url, replay_url = urls
    if alert.rule.measure.link is Link.QUARANTINE:
        replay_url = ""
    return Links(alert_page(alert.told_with_id or alert.pk), failures, failures_url, draft, replay_url)


def _queries(alert: Alert, queues: Sequence[str], begins: Time, ends: Time, now: datetime) -> tuple[str, str]:
    """Return the searches for the failures, and for those that are still dead."""
    rule, within = alert.rule, place_terms(alert, queues)
    link = rule.measure.link
    again = Numbers("replay", ((1, None),))
    if link is Link.VIEW and rule.view is not None:
        failures = draft = [*language.pin(language.parse(rule.view.query, now), now).terms, *within]
    elif link is Link.QUARANTINE:
        failures = draft = [*within, state_term("quarantined")]  # quarantined jobs stay there until an operator acts
    elif link is Link.DIED:
        failures = [*within, begins, Any((All((ends, state_term(*_ENDED))), again))]
        draft = [*within, begins, Any((ends, again)), state_term("dead")]
    else:
        failures = [*within, begins, ends, state_term("any")]  # includes recovered failures
        draft = [*within, begins, ends, state_term("dead")]
    return _text(failures), _text(draft)


def replay_query(alert: Alert) -> str:
    """Return the search for the dead jobs that the alert counts now."""
    return _text([*place_terms(alert, [alert.subject]), state_term("dead")])


def since(alert: Alert, queues: Sequence[str] = ()) -> datetime:
    """Return when the oldest job died that was dead in these queues, or in the alert's own, when the alert fired.

    If one of them has no sample with that time, return an hour before the alert.
    """
    at = alert.fired_at or alert.opened_at
    oldest = [alert.opened_at]
    unknown = set(queues) or {alert.subject}
    samples = DepthSample.objects.filter(source=alert.source, at__lte=at + timedelta(seconds=10))
    for step in (10, 60, 3600):
        if not unknown:
            break
        known = samples.filter(queue__in=unknown, step=step, at__gte=at - timedelta(seconds=6 * step))
        rows = known.exclude(oldest_dead_at=None).order_by("at").values_list("queue", "oldest_dead_at")
        latest = dict(rows)
        oldest += latest.values()
        unknown -= latest.keys()
    if unknown:
        oldest.append(alert.opened_at - _BEFORE)
    return min(oldest)


def alert_page(pk: int) -> str:
    return config.page_at(f"alerts/{pk}/")


def group_page(fingerprint: str) -> str:
    return config.page_at(f"groups/{quote(fingerprint)}/")


def place_terms(alert: Alert, queues: Sequence[str]) -> list[Term]:
    rule: Rule = alert.rule
    terms: list[Term] = []
    if alert.source:
        terms.append(Match("source", (Value(alert.source),)))
    if named := [queue for queue in queues if queue and rule.measure.subject is not Subject.VIEW]:
        terms.append(Match("queue", tuple(Value(queue) for queue in named)))
    terms += [
        Match(name, (Value(glob, glob="*" in glob),))
        for name, glob in (("task", rule.task), ("group", rule.group), ("tenant", rule.tenant))
        if glob != "*"
    ]
    return terms


def state_term(*states: str) -> Match:
    return Match("state", tuple(Value(one) for one in states))


def _text(terms: Iterable[Term]) -> str:
    return language.format(Query(tuple(terms)))


def _reason(alert: Alert) -> str:
    """Return the reason for a replay drafted from the alert, so that an operator need not type one."""
    return f"Alert #{alert.pk}: {alert.rule.name}"


def _search_page(page: str, text: str, **more: str) -> str:
    return config.page_at(f"{page}?{urlencode({'q': text, **more})}")
