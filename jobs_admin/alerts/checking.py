"""Validation of alert rules: every limit, with its message."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import URLValidator

from jobs_admin.alerts.measuring import MOST_ONE_BY_ONE
from jobs_admin.core.alert_metrics import METRICS, Subject, Unit
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable
from jobs_admin.models import Channel, SavedView
from jobs_admin.models.access import Viewer
from jobs_admin.models.alert import LARGEST_THRESHOLD, LONGEST_FOR_S, LONGEST_URL, NoData, Severity
from jobs_admin.rights import view_sight

LONGEST_NAME = 100
MOST_CHANNELS = 20
SHORTEST_REMINDER_S = 60
LARGEST_OF_TENANT = MOST_ONE_BY_ONE - 1

GLOBS = {"source": 200, "queue": 200, "task": 255, "group": 40, "tenant": 200}

FIELDS = (
    "name", "metric", *GLOBS, "view", "threshold", "clear", "for_s", "keep_firing_s", "renotify_s", "escalate_s",
    "no_data", "severity", "runbook_url", "channels", "escalate_to", "enabled",
)  # fmt: skip
DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(GLOBS, "*"),
    "view": None, "clear": None, "for_s": 60, "keep_firing_s": 120, "renotify_s": None, "escalate_s": None,
    "no_data": NoData.KEEP.value, "severity": Severity.WARNING.value, "runbook_url": "", "channels": [], "escalate_to": [],
    "enabled": True,
}  # fmt: skip
is_web = URLValidator(schemes=["http", "https"])  # it becomes a link: no javascript: address


class _Wrong(Exception):
    pass


def parse_rule(viewer: Viewer, document: object) -> dict[str, Any]:
    """Parse a document with its defaults into column values; `channels` and `escalate_to` as rows.

    Raises Refused with all problems.
    """
    if not isinstance(document, Mapping):
        raise Refused("invalid", "Send a rule as an object with name, metric and threshold. Nothing was changed.")
    problems: dict[str, str] = {}
    found: dict[str, Any] = {}
    for name in document:
        if name not in FIELDS:
            problems[str(name)[:60]] = f"Unknown field {str(name)[:60]!r}. Known: {', '.join(FIELDS)}."
    for name in FIELDS:
        given = document.get(name)
        try:
            found[name] = _READERS[name](viewer, name, DEFAULTS.get(name) if given is None else given)
        except _Wrong as wrong:
            problems[name] = str(wrong)
    if "metric" not in problems:
        problems |= {k: v for k, v in _check_metric(found, problems).items() if k not in problems}
    if problems:
        field, first = next(iter(problems.items()))
        raise Refused("invalid", f"{first} Nothing was changed.", field, problems=problems)
    return found


def _check_metric(found: Mapping[str, Any], problems: Mapping[str, str]) -> dict[str, str]:
    """Return problems: fields that do not apply to the metric, and contradictory numbers."""
    metric, wrong = found["metric"], {}
    measure = METRICS[metric]
    for name in ("task", "group", "tenant"):
        if name not in measure.scope and found.get(name, "*") != "*":
            narrowed = " and ".join(one.name for one in METRICS.values() if one.is_narrowed)
            wrong[name] = f"{metric} is measured per queue: {name} applies only to {narrowed}."
    if "queue" not in measure.scope and found.get("queue", "*") != "*":
        wrong["queue"] = f"{metric} has no queue: omit the field."
    counts_view = measure.subject is Subject.VIEW
    if counts_view and found.get("view") is None and "view" not in problems:
        wrong["view"] = "Select a saved view."
    if not counts_view and found.get("view") is not None:
        wrong["view"] = f"{metric} has no view: omit the field."
    threshold, clear = found.get("threshold"), found.get("clear")
    if threshold is not None:
        largest, words = bound(metric, found.get("tenant", "*"))
        if threshold > largest or (measure.unit is Unit.SHARE and threshold == largest):
            wrong["threshold"] = f"The threshold of {metric} is {words}."
        elif clear is not None and clear > threshold:
            wrong["clear"] = f"clear is {clear:g}, above the threshold of {threshold:g}. Use the threshold or less."
    return wrong


def bound(metric: str, tenant: str = "*") -> tuple[float, str]:
    """Return the largest threshold, and the range as text."""
    if METRICS[metric].is_narrowed and tenant != "*":
        return LARGEST_OF_TENANT, (
            f"from 0 to {LARGEST_OF_TENANT:,} where it is of a tenant: up to {MOST_ONE_BY_ONE:,} jobs are counted"
        )
    return METRICS[metric].bound()


# -- single values -----------------------------------------------------------------------------------------------


def parse_line(given: object, longest: int, what: str) -> str:
    """Return the text as one line. Raises ValueError with a message."""
    if not isinstance(given, str):
        raise ValueError(f"{what} must be text.")
    line = " ".join(representable(given).split())
    if len(line) > longest:
        raise ValueError(f"{what} has {len(line):,} characters; the limit is {longest}.")
    return line


def parse_url(given: object) -> str:
    """Return an http or https address, or empty. Raises ValueError with a message."""
    line = parse_line(given, LONGEST_URL, "A runbook's address")
    try:
        if line:
            is_web(line)
    except ValidationError as error:
        raise ValueError("Enter an http or https address.") from error
    return line


def _sentence(read: Callable[[object], str]) -> Callable[[Viewer, str, object], str]:
    def reader(viewer: Viewer, name: str, given: object) -> str:
        try:
            return read(given)
        except ValueError as error:
            raise _Wrong(str(error)) from error

    return reader


def _name(given: object) -> str:
    line = parse_line(given, LONGEST_NAME, "A name") if given is not None else ""
    if not line:
        raise ValueError(f"Enter a name of 1 to {LONGEST_NAME} characters.")
    return line


def _glob(viewer: Viewer, name: str, given: object) -> str:
    if not isinstance(given, str):
        raise _Wrong(f"{name} must be a name, or a pattern with the wildcard *.")
    line = representable(given).strip() or "*"  # no other change: names are compared exactly
    if len(line) > GLOBS[name]:
        raise _Wrong(f"{name} has {len(line):,} characters; the limit is {GLOBS[name]}.")
    return line


def _one_of(choices: tuple[str, ...]) -> Callable[[Viewer, str, object], str]:
    def reader(viewer: Viewer, name: str, given: object) -> str:
        if given not in choices:
            raise _Wrong(f"{name} must be one of {', '.join(choices)}.")
        return str(given)

    return reader


def _number(viewer: Viewer, name: str, given: object) -> float | None:
    if given is None and name == "clear":
        return None
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not -1e15 < given < 1e15 or not math.isfinite(given):
        raise _Wrong(f"{name} must be a number from 0 to {LARGEST_THRESHOLD:,.0f}.")
    if given < 0 or given > LARGEST_THRESHOLD:
        raise _Wrong(f"{name} must be a number from 0 to {LARGEST_THRESHOLD:,.0f}; got {given:g}.")
    return float(given)


def _seconds(shortest: int, is_optional: bool) -> Callable[[Viewer, str, object], int | None]:
    def reader(viewer: Viewer, name: str, given: object) -> int | None:
        if given is None and is_optional:
            return None
        is_integer = isinstance(given, int | float) and not isinstance(given, bool) and given == given
        if not is_integer or abs(given) > 1e15 or given != int(given):
            raise _Wrong(
                f"{name} must be a whole number of seconds from {shortest} to {LONGEST_FOR_S:,}, a day; "
                "the form also accepts 90 s, 10 min or 1 h."
            )
        if not shortest <= given <= LONGEST_FOR_S:
            raise _Wrong(f"{name} must be from {shortest} to {LONGEST_FOR_S:,} seconds, a day; got {int(given):,}.")
        return int(given)

    return reader


def _view(viewer: Viewer, name: str, given: object) -> SavedView | None:
    if given is None:
        return None
    is_id = isinstance(given, int) and not isinstance(given, bool) and 0 < given < 2**63
    found = SavedView.objects.filter(pk=given).first() if is_id else None
    if found is None or not view_sight.sees(viewer, found):
        raise _Wrong("No such saved view, or you cannot view it.")
    return found


def _channels(viewer: Viewer, name: str, given: object) -> list[Channel]:
    if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
        raise _Wrong(f"{name} must be a list of channel names.")
    wanted = list(dict.fromkeys(given))
    if len(wanted) > MOST_CHANNELS:
        raise _Wrong(f"{name} has {len(wanted)} channels; the limit is {MOST_CHANNELS}.")
    found = {one.name: one for one in Channel.objects.filter(name__in=[representable(one) for one in wanted])}
    if unknown := [one for one in wanted if one not in found]:
        raise _Wrong(f"No channel {representable(unknown[0])[:100]!r}.")
    return [found[one] for one in wanted]


def _enabled(viewer: Viewer, name: str, given: object) -> bool:
    if not isinstance(given, bool):
        raise _Wrong("enabled must be true or false.")
    return given


_READERS: dict[str, Callable[[Viewer, str, Any], Any]] = {
    "name": _sentence(_name),
    "metric": _one_of(tuple(METRICS)),
    **dict.fromkeys(GLOBS, _glob),
    "view": _view,
    "threshold": _number,
    "clear": _number,
    "for_s": _seconds(0, False),
    "keep_firing_s": _seconds(0, False),
    "renotify_s": _seconds(SHORTEST_REMINDER_S, True),
    "escalate_s": _seconds(SHORTEST_REMINDER_S, True),
    "no_data": _one_of(tuple(NoData.values)),
    "severity": _one_of(tuple(Severity.values)),
    "runbook_url": _sentence(parse_url),
    "channels": _channels,
    "escalate_to": _channels,
    "enabled": _enabled,
}
