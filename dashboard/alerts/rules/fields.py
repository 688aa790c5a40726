"""The inputs of a rule's editor, in the order of the form: condition, firing and recovery, notifications."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.alerts.rules.forms import PLACES, Draft, scope_of
from dashboard.alerts.rules.words import NO_DATA
from dashboard.policies.fields import Field, slot
from dashboard.web.figures import duration
from jobs_admin.alerts.checking import LARGEST_OF_TENANT
from jobs_admin.core.alert_metrics import METRICS, Metric, Unit
from jobs_admin.models import SavedView
from jobs_admin.models.alert import LONGEST_FOR_S
from jobs_admin.notices import ChannelRow

LABELS = {
    "name": "Name",
    "metric": "Metric",
    "view": "View",
    "source": "Source",
    "queue": "Queue",
    "task": "Task",
    "group": "Group",
    "tenant": "Tenant",
    "threshold": "Fires above",
    "for_s": "For at least",
    "clear": "Clears at",
    "keep_firing_s": "Recovers after",
    "no_data": "If data is missing",
    "severity": "Severity",
    "renotify_s": "Remind every",
    "escalate_s": "Escalate after",
    "runbook_url": "Runbook",
    "channels": "Notify",
    "escalate_to": "Escalate to",
}
_USUAL = {
    "name": "Webhook failures",
    "source": "* (every source)",
    "queue": "* (every queue)",
    "task": "* (every task)",
    "group": "* (every group)",
    "tenant": "* (every tenant)",
    "for_s": "1 min",
    "keep_firing_s": "2 min",
    "clear": "the threshold",
    "renotify_s": "never",
    "escalate_s": "never",
    "runbook_url": "https://…",
}
# Inputs whose stored values are offered as completions: input -> qualifier of the search.
SUGGESTED = {name: name for name in ("source", "queue", "task", "tenant")}
_LONG = {"name", "source", "queue", "task", "group", "tenant", "runbook_url"}
_LONGEST = duration(LONGEST_FOR_S)
_UNITS = {
    "for_s": f"0 to {_LONGEST}",
    "keep_firing_s": f"0 to {_LONGEST}",
    "clear": "or below; at most the threshold",
    "tenant": f"counts up to {LARGEST_OF_TENANT + 1:,} jobs",
    "renotify_s": f"1 min to {_LONGEST}",
    "escalate_s": f"1 min to {_LONGEST}",
}
_SCOPE = ("source", "queue", "task", "group", "tenant")
_WHEN = ("for_s", "clear", "keep_firing_s", "no_data")


@dataclass(frozen=True, slots=True)
class Choice:
    """A channel to tick."""

    name: str
    kind: str
    is_chosen: bool
    is_disabled: bool  # nothing is sent to it until it is enabled again


def slots(draft: Draft) -> list[tuple[str, list[str]]]:
    """Return the errors of every input, empty ones too, so that htmx clears them."""
    return [(slot(name), draft.errors.get(name, [])) for name in PLACES]


def what(draft: Draft, views: Sequence[SavedView]) -> list[Field]:
    metrics = [(name, metric.label) for name, metric in METRICS.items()]
    found = [_field(draft, "metric", metrics)]
    choices = [("", "Select a view…"), *((str(view.pk), view.name) for view in views)]
    return [*found, _field(draft, "view", choices, of="view")]


def scope(draft: Draft) -> list[Field]:
    return [_field(draft, name, of=_metrics_of(name)) for name in _SCOPE]


def _metrics_of(name: str) -> str:
    """The metrics for which an input means something, between blanks."""
    return " ".join(metric for metric in METRICS if name in scope_of(metric))


def when(draft: Draft) -> list[Field]:
    return [_field(draft, name, list(NO_DATA.items()) if name == "no_data" else []) for name in _WHEN]


def units() -> list[tuple[str, str]]:
    """Return the units of thresholds: (metrics, separated by blanks; unit with its bound)."""
    found: dict[str, list[str]] = {}
    for name, metric in METRICS.items():
        found.setdefault(_unit_of_threshold(metric), []).append(name)
    return [(" ".join(metrics), words) for words, metrics in found.items()]


def severity(draft: Draft) -> Field:
    return _field(draft, "severity", [(name, name) for name in ("info", "warning", "critical")])


def reminders(draft: Draft) -> list[Field]:
    return [_field(draft, name) for name in ("renotify_s", "escalate_s")]


def one(draft: Draft, name: str) -> Field:
    return _field(draft, name)


def channels(draft: Draft, name: str, known: Sequence[ChannelRow]) -> list[Choice]:
    """Return the channels of the desk, and the chosen names that do not exist, which are refused."""
    chosen = draft.chosen.get(name, [])
    there = [Choice(one.name, one.kind, one.name in chosen, one.is_disabled) for one in known]
    return there + [Choice(text, "unknown", True, False) for text in chosen if text not in {one.name for one in known}]


def _field(draft: Draft, name: str, choices: Sequence[tuple[str, str]] = (), *, of: str = "") -> Field:
    value = draft.texts.get(name, "")
    listed = list(choices)
    if listed and value not in dict(listed):
        listed += [(value, value)] if value else []
        value = value or ("warning" if name == "severity" else listed[0][0])
    unit = _UNITS.get(name, "")
    usual = _USUAL.get(name, "")
    errors = draft.errors.get(name, [])
    return Field(name, LABELS[name], unit, value, usual, errors, listed, of, name in _LONG, SUGGESTED.get(name, ""))


def _unit_of_threshold(metric: Metric) -> str:
    if metric.unit is Unit.SECONDS:
        return "e.g. 90 s, 10 min, 1 h; up to 1 year"
    if metric.unit is Unit.SHARE:
        return "%; 0 to below 100"
    return f"{metric.noun}; 0 to {metric.largest:,.0f}".removeprefix("; ")
