"""Where an alert leads: its own page, the failures it is about, and the draft of their replay.

A link is a search with absolute times, so that it shows those failures later too, whatever has become of them: a job that
was replayed ran well, or failed again and carries a later time; one that was discarded is no longer dead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import quote, urlencode

from jobs_admin import config
from jobs_admin.core import query as language
from jobs_admin.core.query import All, Any, Match, Numbers, Query, Term, Time, Value
from jobs_admin.models import Alert, DepthSample, Rule

MOST_QUEUES = 20  # named in one search
_BEFORE = timedelta(hours=1)  # where no sample tells since when the oldest is dead
_OF_JOBS = ("dead", "growth_per_minute", "oldest_dead_s", "failure_rate")
_ENDED = ("dead", "discarded", "gone")


@dataclass(frozen=True, slots=True)
class Links:
    url: str  # of the alert's page
    failures_query: str
    failures_url: str
    replay_url: str  # a draft, of what is still dead of them; nothing is started


def links(alert: Alert, now: datetime, *, queues: Sequence[str] = (), longest: int | None = None) -> Links:
    """Of an alert, as of now, or of its end where it is over; with `queues`, those of all that are told together.

    With `longest` no address is of more characters: it is about as many of the queues as fit, and where not even one does
    it leads to the page of the alert, which has both links.
    """
    until = min(now, alert.resolved_at) if alert.resolved_at is not None else now
    begins = Time("since", at=since(alert).replace(microsecond=0))
    ends = Time("until", at=until.replace(microsecond=0) + timedelta(seconds=1))
    named = list(queues)[:MOST_QUEUES] or [alert.subject]
    while True:
        failures, draft = _queries(alert, named, begins, ends, now)
        addresses = _asked("failures/", failures), _asked("replays/new/", draft, reason=_reason(alert))
        if longest is None or max(map(len, addresses)) <= longest:
            break
        if len(named) == 1:
            addresses = page_of(alert.pk), page_of(alert.pk)
            break
        named.pop()
    return Links(page_of(alert.told_with_id or alert.pk), failures, *addresses)


def _queries(alert: Alert, queues: Sequence[str], begins: Time, ends: Time, now: datetime) -> tuple[str, str]:
    """Of the failures, and of what is still dead of them."""
    rule, where = alert.rule, _where(alert, queues)
    again = Numbers("replay", ((1, None),))
    if rule.metric == "view" and rule.view is not None:
        failures = draft = [*language.pin(language.parse(rule.view.query, now), now).terms, *where]
    elif rule.metric == "quarantined":
        failures = [*where, begins, ends, _states("quarantined")]
        draft = [*where, begins, _states("quarantined", "dead"), ends]
    elif rule.metric in _OF_JOBS:
        failures = [*where, begins, Any((All((ends, _states(*_ENDED))), again))]
        draft = [*where, begins, Any((ends, again)), _states("dead")]
    else:
        failures = [*where, begins, ends]
        draft = [*failures, _states("dead")]
    return _text(failures), _text(draft)


def since(alert: Alert) -> datetime:
    """Since when the oldest job was dead that the alert counted as it fired; an hour before it where nobody knows."""
    at = alert.fired_at or alert.opened_at
    looks = DepthSample.objects.filter(source=alert.source, queue=alert.subject, at__lte=at + timedelta(seconds=10))
    for step in (10, 60, 3600):
        newest = looks.filter(step=step, at__gte=at - timedelta(seconds=6 * step)).order_by("-at")
        known = newest.exclude(oldest_dead_at=None).values_list("oldest_dead_at", flat=True).first()
        if known is not None:
            return min(known, alert.opened_at)
    return alert.opened_at - _BEFORE


def page_of(pk: int) -> str:
    return config.page_at(f"alerts/{pk}/")


def group_page(fingerprint: str) -> str:
    return config.page_at(f"groups/{quote(fingerprint)}/")


def _where(alert: Alert, queues: Sequence[str]) -> list[Term]:
    rule: Rule = alert.rule
    terms: list[Term] = []
    if alert.source:
        terms.append(Match("source", (Value(alert.source),)))
    if named := [queue for queue in queues if queue and rule.metric != "view"]:
        terms.append(Match("queue", tuple(Value(queue) for queue in named)))
    terms += [
        Match(name, (Value(glob, glob="*" in glob),))
        for name, glob in (("task", rule.task), ("group", rule.group), ("tenant", rule.tenant))
        if glob != "*"
    ]
    return terms


def _states(*states: str) -> Match:
    return Match("state", tuple(Value(one) for one in states))


def _text(terms: Iterable[Term]) -> str:
    return language.format(Query(tuple(terms)))


def _reason(alert: Alert) -> str:
    """The reason of a replay that is drafted from the alert: an operator can start it without typing one."""
    return f"Alert #{alert.pk}: {alert.rule.name}"


def _asked(page: str, text: str, **more: str) -> str:
    return config.page_at(f"{page}?{urlencode({'q': text, **more})}")
