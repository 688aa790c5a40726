"""Automation as the inputs of its form, and its conditions and act as text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.http import QueryDict
from django.utils import timezone

from dashboard.web.figures import duration
from dashboard.web.quantities import NUMBER, SECONDS, Kind
from jobs_admin import automations
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import whole_number
from jobs_admin.models import Automation

KINDS: dict[str, Kind] = {
    "min_jobs": NUMBER, "quiet_s": SECONDS, "cooldown_s": SECONDS, "cap_per_hour": NUMBER, "rate": NUMBER,
    "delay_s": SECONDS, "for_s": SECONDS,
}  # fmt: skip
TEXTS = ("name", "source", "q", "rule", "kind", "style", "assignee", "queue", "note", "expires")
PLACES = (*KINDS, *TEXTS, "channels")
ACTS = (
    ("replay", "Replay"), ("discard", "Discard"), ("assign", "Assign groups"), ("notify", "Notify channels"),
    ("pause", "Pause a queue"),
)  # fmt: skip
STYLES = (("careful", "Careful"), ("steady", "Steady"), ("at_once", "All at once"))
KEEP = "keep"
# Seconds from now; "" for never.
ENDS = (("", "Never"), ("86400", "In 1 day"), ("604800", "In 7 days"), ("2592000", "In 30 days"))
DEFAULTS = {
    "min_jobs": "1", "quiet_s": "10 min", "cooldown_s": "30 min", "cap_per_hour": "1000", "kind": "replay",
    "style": "careful", "for_s": "1 h", "rate": "5",
}  # fmt: skip
_LONGEST = 3_000
_INTEGER_BOUNDS = re.compile(r"\w+ must be a whole number from ([\d,]+) to ([\d,]+)\.")
_OF_ACT = {"delay_s": "replay", "assignee": "assign", "queue": "pause", "for_s": "pause"}


@dataclass(slots=True)
class Draft:
    texts: dict[str, str] = field(default_factory=dict)
    channels: list[str] = field(default_factory=list)
    errors: dict[str, list[str]] = field(default_factory=dict)
    current: Automation | None = None

    @classmethod
    def from_form(cls, given: QueryDict, current: Automation | None = None) -> Draft:
        texts = {name: given.get(name, "")[:_LONGEST].strip() for name in (*TEXTS, *KINDS)}
        return cls(texts, [one[:200] for one in given.getlist("channels")][:50], current=current)

    @classmethod
    def from_automation(cls, one: Automation) -> Draft:
        document = automations.render(one)
        act = document.pop("act")
        pace = act.get("pace") or {}
        values = {**document, **act, "style": pace.get("style"), "rate": pace.get("rate"), "name": one.name}
        texts = {name: str(values.get(name) or "") for name in TEXTS if name != "expires"}
        for name, kind in KINDS.items():
            if values.get(name) is not None:
                texts[name] = kind.write(values[name])
        texts["expires"] = KEEP if one.expires_at else ""
        return cls(DEFAULTS | texts, list(act.get("channels", [])), current=one)

    def document(self) -> dict[str, Any]:
        """Return the automation as the API accepts it."""
        texts = self.texts
        numbers = {name: KINDS[name].read(text) for name in KINDS if (text := texts.get(name, ""))}
        kind = texts.get("kind", "")
        act: dict[str, Any] = {"kind": kind}
        for name, of in _OF_ACT.items():
            value = numbers.get(name) if name in KINDS else texts.get(name)
            if of == kind and value not in (None, ""):
                act[name] = value
        if kind == "notify":
            act["channels"] = self.channels
        if kind == "replay":
            act["pace"] = self._pace(numbers)
        found = {
            name: numbers[name] for name in ("min_jobs", "quiet_s", "cooldown_s", "cap_per_hour") if name in numbers
        }
        found |= {name: texts.get(name, "") for name in ("source", "q", "note")}
        return found | {"rule": texts.get("rule") or None, "act": act, "expires_at": self._end()}

    def _pace(self, numbers: dict[str, Any]) -> dict[str, Any]:
        style = self.texts.get("style") or "careful"
        former = self.current.parameters.get("pace") if self.current is not None else None
        if former and former.get("style") == style and (style != "steady" or former.get("rate") == numbers.get("rate")):
            return former  # includes fields that the form does not show
        return {"style": style} | ({"rate": numbers["rate"]} if style == "steady" and "rate" in numbers else {})

    def _end(self) -> Any:
        text = self.texts.get("expires", "")
        if text == KEEP and self.current is not None:
            return self.current.expires_at
        seconds = whole_number(text)
        return timezone.now() + timedelta(seconds=seconds) if seconds and seconds < 10**8 else None

    def refuse(self, refused: Refused) -> None:
        """Add the refusal to its input, or to the errors without an input."""
        place = "rate" if refused.field == "pace.rate" else (refused.field or "").partition(".")[0]
        place = {"pace": "style", "act": "kind", "expires_at": "expires"}.get(place, place)
        message = refused.message.removesuffix(" Nothing was changed.")
        if bounds := _INTEGER_BOUNDS.match(message):
            low, high = (int(text.replace(",", "")) for text in bounds.groups())
            is_time = KINDS.get(place) is SECONDS
            message = f"Enter a number from {low:,} to {high:,}."
            if is_time:
                message = f"Enter a time from {duration(low)} to {duration(high)}, such as 10 min."
        self.errors.setdefault(place if place in PLACES else "", []).append(message)


def when(one: Automation) -> str:
    """Return the conditions as a sentence."""
    where = "any source" if one.source == "*" else one.source
    is_one = one.min_jobs <= 1
    what = f" that match{'es' if is_one else ''} {one.query}" if one.query else ""
    least = "a dead job" if is_one else f"at least {one.min_jobs:,} dead jobs"
    parts = [f"{least} of {where}{what}"]
    if one.quiet_s:
        parts.append(f"no new failure for {duration(one.quiet_s)}")
    if one.rule is not None:
        parts.append(f"the alert rule {one.rule.name} has resolved")
    return f"When there {'is' if is_one else 'are'} {', and '.join(parts)}."


def then(one: Automation) -> str:
    """Return the act as a sentence."""
    of = one.parameters
    if one.act == "replay":
        style = {"careful": "carefully", "steady": "at a steady rate", "at_once": "all at once"}
        words = f"Replay these jobs {style.get(of.get('pace', {}).get('style'), 'carefully')}"
        words += f", {duration(of['delay_s'])} later" if of.get("delay_s") else ""
    elif one.act == "assign":
        words = f"Assign their groups to {of['assignee']}"
    elif one.act == "notify":
        words = f"Notify {', '.join(of['channels'])}"
    elif one.act == "pause":
        words = f"Pause the queue {of['queue']} for {duration(of['for_s'])}"
    else:
        words = "Discard these jobs"
    cap = f", at most {one.cap_per_hour:,} jobs per hour" if one.act in ("replay", "discard") else ""
    return f"{words}{cap}; not again within {duration(one.cooldown_s)}."
