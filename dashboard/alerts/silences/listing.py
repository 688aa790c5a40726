"""Silences in words: what each keeps quiet, and whether it is at work, coming or over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.urls import reverse

from jobs_admin.models import Silence

# The fields of a form, in its order; `alert` is given by an alert's own page only.
FIELDS = (("rule", "Rule"), ("source", "Source"), ("queue", "Queue"), ("severity", "Severity"))
NOT_BEGUN, AT_WORK, OVER = "scheduled", "active", "ended"
_TONES = {AT_WORK: "silenced", NOT_BEGUN: "waiting", OVER: "gone"}


@dataclass(frozen=True, slots=True)
class Line:
    silence: Silence
    matchers: list[tuple[str, str]]  # name, glob
    status: str
    tone: str  # for {% state %}
    end_url: str  # "" where it is over or the viewer may not end it


def line(silence: Silence, now: datetime, may_end: bool) -> Line:
    status = OVER if silence.ends_at <= now else NOT_BEGUN if silence.starts_at > now else AT_WORK
    url = reverse("redrive:silence-end", args=[silence.pk]) if may_end and status != OVER else ""
    return Line(silence, matchers(silence.matchers), status, _TONES[status], url)


def lines(silences: Iterable[Silence], now: datetime, may_end: bool) -> list[Line]:
    return [line(one, now, may_end) for one in silences]


def matchers(given: Any) -> list[tuple[str, str]]:
    """Return the matchers to show, `everything` if there is none."""
    values = given if isinstance(given, Mapping) else {}
    exact = values.get("exact") or ()
    named = [
        (f"{name}, exactly" if name in exact else name, str(values[name])) for name, _ in FIELDS if values.get(name)
    ]
    if values.get("alert"):
        named.append(("alert", f"#{values['alert']}"))
    return named or [("everything", "*")]


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    label: str
    value: str


def fields(given: Mapping[str, Any]) -> list[Field]:
    return [Field(name, label, str(given.get(name, "") or "")) for name, label in FIELDS]


def chosen_matchers(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the matchers of a form: the fields that are filled in."""
    texts = {name: str(given.get(name, "")).strip()[:255] for name, _ in FIELDS}
    return {name: value for name, value in texts.items() if value}
