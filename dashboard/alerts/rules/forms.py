"""An alert rule in the editor: a text for each field of its document, and the errors of each input.

An input has the name of its field in the document (`for_s`), and so have the engine's refusals.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.http import QueryDict

from dashboard.web.quantities import NUMBER, SECONDS, SHARE, TEXT, Kind
from jobs_admin.core.alert_metrics import METRICS, Unit
from jobs_admin.core.refused import Refused
from jobs_admin.models.alert import Rule

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
CONFIRM = "without_channel"  # the hidden input of the second submit
# The inputs that can have errors.
PLACES = (*KINDS, *LISTS)
_THRESHOLDS = {Unit.NUMBER: NUMBER, Unit.SECONDS: SECONDS, Unit.SHARE: SHARE}
# Texts left in the hidden inputs of other metrics are no part of the rule.
_EVERY_SCOPE = frozenset(name for metric in METRICS.values() for name in metric.scope)
_LONGEST = 2_000
MOST_CHOSEN = 50


@dataclass(slots=True)
class Draft:
    """The texts of the inputs. `document` is the rule that they describe; `errors` the refusals by input."""

    texts: dict[str, str] = field(default_factory=dict)
    chosen: dict[str, list[str]] = field(default_factory=dict)  # names of channels, by list
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
        """Return the inputs as a form sends them: `from_form` reads the same draft."""
        chosen = [(name, one) for name in LISTS for one in self.chosen.get(name, ())]
        return [*self.texts.items(), *chosen, *([(ENABLED, "1")] if self.enabled else [])]

    @property
    def metric(self) -> str:
        return self.texts.get("metric") or "dead"

    def document(self) -> dict[str, Any]:
        """Return the alert rule as the API takes it. Empty fields are left out, and have their defaults."""
        found: dict[str, Any] = {ENABLED: self.enabled}
        scope = scope_of(self.metric)
        for name in KINDS:
            text = self.texts.get(name, "")
            if text and (name not in _EVERY_SCOPE or name in scope):
                found[name] = kind_of(name, self.metric).read(text)
        return found | {name: list(self.chosen.get(name, [])) for name in LISTS}

    def refuse(self, refused: Refused) -> None:
        """Add each refusal to the errors of its input, those without an input under `""`."""
        for name, message in (refused.details.get("problems") or {refused.field or "": refused.message}).items():
            place = name if name in PLACES else ""
            text = message.removeprefix(f"{name} ")  # its label names the field
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
