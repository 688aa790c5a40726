"""Form that reschedules retries; refusals of the engine are shown at their fields."""

from __future__ import annotations

from typing import Any

from django import forms

from dashboard.web import moments
from dashboard.web.quantities import number, seconds, share

CURVE, MOMENT, KEEP = "curve", "moment", "keep"
USUAL = {"how": CURVE, "kind": "exponential", "first_delay_s": "30", "factor": "2", "jitter": "none"}
KINDS = (("exponential", "Exponential"), ("linear", "Linear"), ("fixed", "Fixed"))
JITTERS = (
    ("none", "None"),
    ("full", "Full: 0 to the wait"),
    ("equal", "Equal: half the wait to the wait"),
    ("plus_minus", "Plus and minus 20 %"),
)
_FRACTION = {"plus_minus": share("20")}
# The engine's name for parts of the document that are not inputs -> the input.
_INPUTS = {
    "curve.backoff.first_delay_s": "first_delay_s",
    "curve.backoff.factor": "factor",
    "curve.backoff.kind": "kind",
    "curve.cap_s": "cap_s",
    "curve.jitter.kind": "jitter",
    "due_at": "due_at",
    "max_attempts": "max_attempts",
    "reason": "reason",
}


class Change(forms.Form):
    """The requested change; `document` has the names of core.retry_change."""

    how = forms.ChoiceField(choices=((CURVE, ""), (MOMENT, ""), (KEEP, "")), required=False)
    kind = forms.ChoiceField(choices=KINDS, required=False)
    first_delay_s = forms.CharField(required=False, max_length=40)
    factor = forms.CharField(required=False, max_length=40)
    cap_s = forms.CharField(required=False, max_length=40)
    jitter = forms.ChoiceField(choices=JITTERS, required=False)
    due_at = forms.CharField(required=False, max_length=40)
    max_attempts = forms.CharField(required=False, max_length=10)
    reason = forms.CharField(required=False, max_length=500, strip=True)

    def __init__(self, given: Any) -> None:
        # Missing fields have their defaults.
        values = {name: given.get(name, USUAL.get(name, "")) for name in self.base_fields}
        super().__init__(values)

    @property
    def document(self) -> dict[str, Any]:
        """Return the change as a document, as far as the form is valid."""
        self.is_valid()
        cleaned = self.cleaned_data
        change: dict[str, Any] = {}
        if cleaned.get("how") == MOMENT:
            change["due_at"] = _due_at(cleaned.get("due_at") or "now")
        elif cleaned.get("how") == CURVE:
            backoff = {
                "kind": cleaned.get("kind") or "exponential",
                "first_delay_s": seconds(cleaned.get("first_delay_s") or "30"),
            }
            if backoff["kind"] == "exponential":
                backoff["factor"] = number(cleaned.get("factor") or "2")
            kind = cleaned.get("jitter") or "none"
            jitter = {"kind": kind} | ({"fraction": _FRACTION[kind]} if kind in _FRACTION else {})
            change["curve"] = {"backoff": backoff, "jitter": jitter}
            if cleaned.get("cap_s"):
                change["curve"]["cap_s"] = seconds(cleaned["cap_s"])
        if cleaned.get("max_attempts"):
            change["max_attempts"] = number(cleaned["max_attempts"])
        return change

    def refuse(self, field: str | None, message: str) -> None:
        self.add_error(_INPUTS.get(field or ""), message)

    def value(self, name: str) -> str:
        return str(self.data.get(name, ""))


def _due_at(text: str) -> str:
    """Return the time in UTC as the API accepts it; other text, such as `now`, unchanged."""
    try:
        return moments.from_field(text).isoformat()
    except ValueError:
        return text
