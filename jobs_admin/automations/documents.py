"""Conversion of an automation's document to columns and back. Raises Refused with the field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from jobs_admin import alerts
from jobs_admin.core import pacing, pauses
from jobs_admin.core import query as language
from jobs_admin.core.automation import DAY_S, MOST_AT_ONCE, Conditions
from jobs_admin.core.query import Query
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable
from jobs_admin.models import Automation, Channel, Rule
from jobs_admin.models.access import EVERY_SOURCE, VIEWER, Viewer
from jobs_admin.models.automation import ACTS
from jobs_admin.models.failure import FailureState
from jobs_admin.replays.previewing import parse_pace
from jobs_admin.rights import people
from jobs_admin.search import scope

FIELDS = (
    "source", "q", "rule", "min_jobs", "quiet_s", "cooldown_s", "cap_per_hour", "act", "note", "expires_at",
)  # fmt: skip
LONGEST_QUERY, LONGEST_NOTE = 2_000, 500
LONGEST_PAUSE_S = 7 * DAY_S
MOST_CHANNELS = 20
CAPPED = ("replay", "discard")  # acts that change jobs
# Field of an act -> the acts that have it.
_PARAMETERS = {
    "pace": ("replay",), "delay_s": ("replay",), "assignee": ("assign",), "channels": ("notify",), "queue": ("pause",),
    "for_s": ("pause",),
}  # fmt: skip
# Field -> default, least and largest value.
_NUMBERS = {
    "min_jobs": (1, 1, 1_000_000),
    "quiet_s": (600, 0, 7 * DAY_S),
    "cooldown_s": (1_800, 60, 7 * DAY_S),
    "cap_per_hour": (1_000, 1, MOST_AT_ONCE),
}
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
TAKEN = ("new", "stop-all", "preview", "save")  # taken by other URLs


def parse_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.match(name) or name in TAKEN:
        message = (
            "A name has at most 63 lower-case letters, digits, dots, dashes and underscores, such as partner-is-back."
        )
        raise invalid("name", message)
    return name


def parse(viewer: Viewer, document: object) -> dict[str, Any]:
    """Return the columns of an `Automation` for a document, with defaults for omitted fields."""
    if not isinstance(document, Mapping):
        raise invalid("", "An automation is a JSON object.")
    for name in document:
        if name not in FIELDS:
            raise invalid(str(name)[:40], f"An automation has no {str(name)[:40]!r}; it has {', '.join(FIELDS)}.")
    source = _source(viewer, document.get("source"))
    act, parameters = _act(viewer, source, document.get("act"))
    return {
        "source": source,
        "query": parse_search(document.get("q", "")),
        "rule": _rule(viewer, document.get("rule")),
        **{name: _number(name, document.get(name), *bounds) for name, bounds in _NUMBERS.items()},
        "act": act,
        "parameters": parameters,
        "note": _text(document.get("note") or "", "note", LONGEST_NOTE),
        "expires_at": _end(document.get("expires_at")),
    }


def render(automation: Automation) -> dict[str, Any]:
    """Return the document of an automation, in the form that `parse` accepts."""
    numbers = {name: getattr(automation, name) for name in _NUMBERS}
    return {
        "source": automation.source,
        "q": automation.query,
        "rule": automation.rule.name if automation.rule else None,
        **numbers,
        "act": {"kind": automation.act, **automation.parameters},
        "note": automation.note,
        "expires_at": automation.expires_at,
    }


def conditions(automation: Automation) -> Conditions:
    return Conditions(
        automation.min_jobs,
        automation.quiet_s,
        automation.cooldown_s,
        automation.cap_per_hour if automation.act in CAPPED else None,
        automation.rule_id is not None,
    )


def read_query(automation: Automation) -> Query:
    """Return the search with states removed: an automation acts on dead jobs."""
    read = language.parse(automation.query, timezone.now())
    return Query(tuple(term for term in read.terms if not scope.is_state(term)), now=read.now)


def invalid(field: str, message: str) -> Refused:
    return Refused("invalid", f"{message} Nothing was changed.", field or None)


def _source(viewer: Viewer, value: object) -> str:
    name = value if isinstance(value, str) else ""
    if not 0 < len(name) <= 63 or representable(name) != name or not viewer.may(VIEWER, name):
        raise invalid("source", "Name a source that you can view, or * for every source.")
    return name


def parse_search(value: object) -> str:
    """Return the search as it is stored. Raises Refused if an automation cannot repeat it."""
    text = _text(value, "q", LONGEST_QUERY)
    now = timezone.now()
    read = language.parse(text, now)
    if why := language.unfit_for_acts(read):
        raise invalid("q", why)
    if read.hints:
        raise invalid("q", read.hints[0])
    if read.names_state and tuple(scope.states_of(read)) != (FailureState.DEAD,):
        raise invalid("q", "An automation acts on dead jobs: remove the state from the search.")
    if any(isinstance(term, language.Time | language.Age) for term in language.leaves(read.terms)):
        raise invalid("q", "An automation repeats the search: remove the time from it, and use quiet_s.")
    return text


def _rule(viewer: Viewer, value: object) -> Rule | None:
    if value is None or value == "":
        return None
    found = next((one for one in alerts.rules(viewer, with_channels=False) if one.name == value), None)
    if found is None:
        raise invalid("rule", "No alert rule has this name, or you cannot view it.")
    return found


def _number(name: str, value: object, default: int, least: int, most: int) -> int:
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise invalid(name, f"{name} must be a whole number from {least:,} to {most:,}.")
    return value


def _act(viewer: Viewer, source: str, value: object) -> tuple[str, dict[str, Any]]:
    given = {"kind": value} if isinstance(value, str) else {"kind": "replay"} if value is None else value
    if not isinstance(given, Mapping) or given.get("kind") not in ACTS:
        raise invalid("act", f'act is an object such as {{"kind": "replay"}}; its kind is {", ".join(ACTS)}.')
    kind = given["kind"]
    fields = {name: field for name, field in given.items() if name != "kind" and field is not None}
    for name in fields:
        if kind not in _PARAMETERS.get(name, ()):
            raise invalid("act", f"{kind} has no {str(name)[:40]!r}.")
    return kind, _OF_ACT[kind](viewer, source, fields)


def _of_replay(viewer: Viewer, source: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    pace = fields.get("pace") or {"style": pacing.CAREFUL}
    parse_pace(pace)
    delay_s = _number("delay_s", fields.get("delay_s"), 0, 0, DAY_S)
    return {"pace": dict(pace), **({"delay_s": delay_s} if delay_s else {})}


def _of_discard(viewer: Viewer, source: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _of_assign(viewer: Viewer, source: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    name = fields.get("assignee")
    field = people.users(viewer).model.USERNAME_FIELD
    if not isinstance(name, str) or not people.users(viewer).filter(Q(**{field: representable(name)})).exists():
        raise invalid("assignee", "Name a user of this desk to assign groups to.")
    return {"assignee": name}


def _of_notify(viewer: Viewer, source: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    names = fields.get("channels")
    is_list = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    if not is_list or len(names) > MOST_CHANNELS:  # type: ignore[arg-type]
        raise invalid("channels", f"Name one to {MOST_CHANNELS} channels.")
    wanted = sorted({representable(name) for name in names})  # type: ignore[arg-type]
    known = set(Channel.objects.filter(name__in=wanted).values_list("name", flat=True))
    if missing := [name for name in wanted if name not in known]:
        raise invalid("channels", f"There is no channel {representable(missing[0])[:100]!r}.")
    return {"channels": wanted}


def _of_pause(viewer: Viewer, source: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    queue = fields.get("queue")
    if source == EVERY_SOURCE:
        raise invalid("source", "Pausing a queue needs one source, not every source.")
    if not isinstance(queue, str) or not 0 < len(queue.strip()) <= pauses.LONGEST_NAME or representable(queue) != queue:
        raise invalid("queue", f"Name the queue to pause, with at most {pauses.LONGEST_NAME} characters.")
    return {"queue": queue.strip(), "for_s": _number("for_s", fields.get("for_s"), 3_600, 60, LONGEST_PAUSE_S)}


_OF_ACT = {
    "replay": _of_replay, "discard": _of_discard, "assign": _of_assign, "notify": _of_notify, "pause": _of_pause,
}  # fmt: skip


def _end(value: object) -> datetime | None:
    if value is None or value == "":
        return None
    try:
        end = parse_datetime(value) if isinstance(value, str) else value
    except ValueError:
        end = None
    now = timezone.now()
    if not isinstance(end, datetime) or end.tzinfo is None or not now < end <= now + timedelta(days=3_660):
        raise invalid("expires_at", "expires_at must be a future time with a time zone.")
    return end


def _text(value: object, field: str, most: int) -> str:
    if not isinstance(value, str) or len(value) > most:
        raise invalid(field, f"{field} is a text of at most {most:,} characters.")
    return representable(value).strip()
