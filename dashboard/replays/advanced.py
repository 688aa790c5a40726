"""The inputs under Advanced: every part of the pace and of the options, each with its default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dashboard.replays import forms as replay_forms
from jobs_admin.core.pacing.pace import DAYS

__all__ = ["DAYS", "Field", "Place", "places"]

_PLACES: dict[str, tuple[str, ...]] = {
    "Canary": ("canary_jobs", "canary_success", "canary_within"),
    "Ramp": ("ramp_from", "ramp_to", "over", "jitter"),
    "Limits": ("in_flight", "queue_cap", "per_key_key", "per_key_concurrency", "per_key_rate"),
    "Stop rule": ("stop_failed", "stop_of_last", "stop_new_groups"),
    "Hours and order": ("window_from", "window_to", "priority", "shuffle"),
}
_IN_PER_CENT = {"canary_success": ("canary", "success"), "stop_failed": ("stop", "failed"), "jitter": ("jitter",)}
_UNITS = {"canary_success": "%", "stop_failed": "%", "jitter": "%"}
_NONE = "no limit"
_EMPTY = {
    "in_flight": _NONE,
    "queue_cap": _NONE,
    "per_key_key": "tenant, kwargs.customer_id …",
    "priority": "unchanged",
    "window_from": "any time",
}


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    label: str
    unit: str
    value: str
    usual: str  # what counts while it is empty
    kind: str  # text, check, choice
    errors: list[str]
    choices: list[tuple[str, str]]
    is_long: bool = False

    @property
    def is_on(self) -> bool:
        return bool(self.value)


@dataclass(frozen=True, slots=True)
class Place:
    title: str
    fields: list[Field]


def places(form: replay_forms.Pace, pace: dict[str, Any]) -> list[Place]:
    """`pace` with a number for everything that it bounds, as a preview gives it."""
    return [Place(title, [_field(form, name, pace) for name in names]) for title, names in _PLACES.items()]


def _field(form: replay_forms.Pace, name: str, pace: dict[str, Any]) -> Field:
    field = form.fields[name]
    choices = [(str(value), str(words)) for value, words in getattr(field, "choices", ())]
    kind = "choice" if choices else "check" if isinstance(field.widget, replay_forms.CHECKBOX) else "text"
    return Field(
        name,
        str(field.label),
        _UNITS.get(name, str(field.help_text)),
        str(form.data.get(name, "")),
        _usual(name, pace),
        kind,
        form.errors.get(name, []),
        choices,
        is_long=name == "per_key_key",
    )


def _usual(name: str, pace: dict[str, Any]) -> str:
    found: Any = pace
    for part in _IN_PER_CENT.get(name) or _path(name):
        found = found.get(part) if isinstance(found, dict) else None
    if found is None or isinstance(found, bool):
        return _EMPTY.get(name, "")
    if name in _IN_PER_CENT:
        return f"{found * 100:g}"
    return f"{found:g}" if isinstance(found, float) else str(found)


def _path(name: str) -> tuple[str, ...]:
    for part in replay_forms.Pace.PARTS:
        if name.startswith(f"{part}_"):
            return part, name.removeprefix(f"{part}_")
    return (name,)
