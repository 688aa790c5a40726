"""Alert rule in the editor: one text per field of its document, the inputs in order, and the errors of each.

An input has the name of its field in the document (`for_s`), as have the engine's refusals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django.http import QueryDict

from dashboard.alerts.rules.words import NO_DATA
from dashboard.policies.fields import Field, slot
from dashboard.web.figures import duration
from dashboard.web.quantities import NUMBER, SECONDS, SHARE, TEXT, Kind
from jobs_admin.alerts.checking import LARGEST_OF_TENANT
from jobs_admin.core.alert_metrics import METRICS, Metric, Unit
from jobs_admin.core.refused import Refused
from jobs_admin.models import SavedView
from jobs_admin.models.alert import LONGEST_FOR_S, Rule
from jobs_admin.notices import ChannelRow

KINDS: dict[str, Kind] = {
    "name": TEXT,
    "metric": TEXT,
    "view": NUMBER,
    "source": TEXT,
    "queue": TEXT,
    "task": TEXT,
    "group": TEXT,
    "tenant": TEXT,
    "threshold": NUMBER,
    "clear": NUMBER,
    "for_s": SECONDS,
    "keep_firing_s": SECONDS,
    "renotify_s": SECONDS,
    "escalate_s": SECONDS,
    "no_data": TEXT,
    "severity": TEXT,
    "runbook_url": TEXT,
}
LISTS = ("channels", "escalate_to")
ENABLED = "enabled"
CONFIRM = "without_channel"  # hidden input of the second submission
# Inputs that can have errors.
PLACES = (*KINDS, *LISTS)
_THRESHOLDS = {Unit.NUMBER: NUMBER, Unit.SECONDS: SECONDS, Unit.SHARE: SHARE}
# Hidden inputs of other metrics are not part of the rule.
_EVERY_SCOPE = frozenset(name for metric in METRICS.values() for name in metric.scope)
_LONGEST = 2_000
MOST_CHOSEN = 50


@dataclass(slots=True)
class Draft:
    """Texts of the inputs. `document`: the resulting rule; `errors`: refusals by input."""

    texts: dict[str, str] = field(default_factory=dict)
    chosen: dict[str, list[str]] = field(default_factory=dict)  # names of channels, per list
    enabled: bool = True
    errors: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def from_rule(cls, rule: Rule) -> Draft:
        """Return a rule as inputs."""
        metric = rule.metric
        texts = {}
        for name in KINDS:
            value = rule.view_id if name == "view" else getattr(rule, name)
            if value is not None:
                texts[name] = kind_of(name, metric).write(_as_integer(value))
        chosen = {name: sorted(one.name for one in getattr(rule, name).all()) for name in LISTS}
        return cls(texts, chosen, rule.enabled)

    @classmethod
    def from_form(cls, given: QueryDict) -> Draft:
        """Return the inputs of a submitted form."""
        texts = {name: given.get(name, "")[:_LONGEST].strip() for name in KINDS}
        chosen = {name: [one[:_LONGEST] for one in given.getlist(name)][:MOST_CHOSEN] for name in LISTS}
        return cls(texts, chosen, ENABLED in given)

    def fields(self) -> list[tuple[str, object]]:
        """Return the inputs as submitted by a form, so that `from_form` reads the same draft."""
        chosen = [(name, one) for name in LISTS for one in self.chosen.get(name, ())]
        return [*self.texts.items(), *chosen, *([(ENABLED, "1")] if self.enabled else [])]

    @property
    def metric(self) -> str:
        return self.texts.get("metric") or "dead"

    def document(self) -> dict[str, Any]:
        """Return the alert rule as the API accepts it. Empty fields are omitted and have their defaults."""
        found: dict[str, Any] = {ENABLED: self.enabled}
        scope = scope_of(self.metric)
        for name in KINDS:
            text = self.texts.get(name, "")
            if text and (name not in _EVERY_SCOPE or name in scope):
                found[name] = kind_of(name, self.metric).read(text)
        return found | {name: list(self.chosen.get(name, [])) for name in LISTS}

    def refuse(self, refused: Refused) -> None:
        """Add each refusal to its input; those without an input are under `""`."""
        for name, message in (refused.details.get("problems") or {refused.field or "": refused.message}).items():
            place = name if name in PLACES else ""
            text = message.removeprefix(f"{name} ")  # the label already names the field
            self.errors.setdefault(place, []).append(message if text == message else f"This {text}")


def scope_of(metric: str) -> tuple[str, ...]:
    """Return the inputs that set the scope of this metric."""
    return METRICS[metric].scope if metric in METRICS else ("source", "queue")


def kind_of(name: str, metric: str) -> Kind:
    if name in ("threshold", "clear"):
        return _THRESHOLDS[METRICS[metric].unit] if metric in METRICS else NUMBER
    return KINDS[name]


def _as_integer(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value


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
# Inputs completed from stored values: input -> qualifier of the search.
SUGGESTED = {name: name for name in ("source", "queue", "task", "tenant")}
_LONG = {"name", "source", "queue", "task", "group", "tenant", "runbook_url"}
_LONGEST_SPAN = duration(LONGEST_FOR_S)
_UNITS = {
    "for_s": f"0 to {_LONGEST_SPAN}",
    "keep_firing_s": f"0 to {_LONGEST_SPAN}",
    "clear": "or below; at most the threshold",
    "tenant": f"counts up to {LARGEST_OF_TENANT + 1:,} jobs",
    "renotify_s": f"1 min to {_LONGEST_SPAN}",
    "escalate_s": f"1 min to {_LONGEST_SPAN}",
}
_SCOPE = ("source", "queue", "task", "group", "tenant")
_WHEN = ("for_s", "clear", "keep_firing_s", "no_data")


@dataclass(frozen=True, slots=True)
class Choice:
    """Channel that can be selected."""

    name: str
    kind: str
    is_chosen: bool
    is_disabled: bool  # receives nothing until it is enabled again


def slots(draft: Draft) -> list[tuple[str, list[str]]]:
    """Return the errors of every input, including empty ones, so that htmx clears them."""
    return [(slot(name), draft.errors.get(name, [])) for name in PLACES]


def what(draft: Draft, views: Sequence[SavedView]) -> list[Field]:
    metrics = [(name, metric.label) for name, metric in METRICS.items()]
    found = [_field(draft, "metric", metrics)]
    choices = [("", "Select a view…"), *((str(view.pk), view.name) for view in views)]
    return [*found, _field(draft, "view", choices, of="view")]


def scope(draft: Draft) -> list[Field]:
    return [_field(draft, name, of=_metrics_of(name)) for name in _SCOPE]


def _metrics_of(name: str) -> str:
    """Return the metrics to which an input applies, separated by blanks."""
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
    """Return the desk's channels, and selected names that do not exist, which are refused."""
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
