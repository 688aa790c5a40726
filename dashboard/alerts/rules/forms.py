"""A rule while somebody edits it: a text for each part of its document, and what is refused beside it.

An input is called as the part is in the document (`for_s`), and so is what the engine refuses.
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
# Where a refusal can stand.
PLACES = (*KINDS, *LISTS)
_THRESHOLDS = {Unit.NUMBER: NUMBER, Unit.SECONDS: SECONDS, Unit.SHARE: SHARE}
# What is left in inputs that say nothing of the metric, which are not shown then, is no part of the rule.
_EVERY_SCOPE = frozenset(name for metric in METRICS.values() for name in metric.scope)
_LONGEST = 2_000
MOST_CHOSEN = 50


@dataclass(slots=True)
class Draft:
    """What stands in the inputs. `document` is what it says; `errors` what was refused, by input."""

    texts: dict[str, str] = field(default_factory=dict)
    chosen: dict[str, list[str]] = field(default_factory=dict)  # names of channels, by list
    enabled: bool = True
    errors: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, rule: Rule) -> Draft:
        """A rule as inputs."""
        metric = rule.metric
        texts = {}
        for name in KINDS:
            value = rule.view_id if name == "view" else getattr(rule, name)
            if value is not None:
                texts[name] = kind_of(name, metric).write(_whole(value))
        chosen = {name: sorted(one.name for one in getattr(rule, name).all()) for name in LISTS}
        return cls(texts, chosen, rule.enabled)

    @classmethod
    def given(cls, given: QueryDict) -> Draft:
        """What a browser sent."""
        texts = {name: given.get(name, "")[:_LONGEST].strip() for name in KINDS}
        chosen = {name: [one[:_LONGEST] for one in given.getlist(name)][:MOST_CHOSEN] for name in LISTS}
        return cls(texts, chosen, ENABLED in given)

    @property
    def metric(self) -> str:
        return self.texts.get("metric") or "dead"

    def document(self) -> dict[str, Any]:
        """Return the alert rule as the API takes it. Empty fields are left out, and have their defaults."""
        found: dict[str, Any] = {ENABLED: self.enabled}
        looked_at = scope_of(self.metric)
        for name in KINDS:
            text = self.texts.get(name, "")
            if text and (name not in _EVERY_SCOPE or name in looked_at):
                found[name] = kind_of(name, self.metric).read(text)
        return found | {name: list(self.chosen.get(name, [])) for name in LISTS}

    def refuse(self, refused: Refused) -> None:
        """Put each thing that is refused beside its input; what has none stands under `""`."""
        for name, message in (refused.details.get("problems") or {refused.field or "": refused.message}).items():
            place = name if name in PLACES else ""
            said = message.removeprefix(f"{name} ")  # its label says which it is
            self.errors.setdefault(place, []).append(message if said == message else f"This {said}")


def scope_of(metric: str) -> tuple[str, ...]:
    """The inputs that say what this metric looks at."""
    return METRICS[metric].scope if metric in METRICS else ("source", "queue")


def kind_of(name: str, metric: str) -> Kind:
    if name in ("threshold", "clear"):
        return _THRESHOLDS[METRICS[metric].unit] if metric in METRICS else NUMBER
    return KINDS[name]


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value
