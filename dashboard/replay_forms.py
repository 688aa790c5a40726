"""What people type when they start or steer a replay. A refusal stands beside its field."""

from __future__ import annotations

from typing import Any

from django import forms

from jobs_admin.core import pacing


class Pace(forms.Form):
    """How a replay is spread, in the contract's words."""

    STYLES = (("steady", "Steady"), ("at_once", "All at once"))
    UNITS = (("rate", "a second"), ("every", "seconds between two"))

    style = forms.ChoiceField(choices=STYLES, required=False)
    amount = forms.CharField(required=False, max_length=40, strip=True)
    unit = forms.ChoiceField(choices=UNITS, required=False)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        cleaned["style"] = cleaned.get("style") or "steady"
        cleaned["unit"] = cleaned.get("unit") or "rate"
        if cleaned["style"] == "steady":
            cleaned["amount"] = self._amount(cleaned.get("amount", ""), cleaned["unit"])
        return cleaned

    def _amount(self, text: str, unit: str) -> float | None:
        """The number. The default is for who was not asked yet: a field that came empty is no number."""
        if "amount" not in self.data:
            return float(pacing.DEFAULT["rate"])
        try:
            pacing.parse({"style": "steady", unit: text})
        except pacing.PaceRefused:
            least, most = (
                (pacing.SLOWEST, pacing.FASTEST) if unit == "rate" else (1 / pacing.FASTEST, 1 / pacing.SLOWEST)
            )
            words = "jobs a second" if unit == "rate" else "seconds between two jobs"
            self.add_error("amount", f"Give a number from {f'{least:.5f}'.rstrip('0')} to {most:,.0f} {words}.")
            return None
        return float(text)

    @property
    def pace(self) -> dict[str, Any]:
        """The pace asked for; the default where the form could not be read."""
        if not self.is_valid():
            return {"style": "steady", "rate": 50}
        if self.cleaned_data["style"] == "at_once":
            return {"style": "at_once"}
        amount = self.cleaned_data["amount"]
        return {"style": "steady", self.cleaned_data["unit"]: int(amount) if amount == int(amount) else amount}


class Start(forms.Form):
    """The last word before a replay starts."""

    reason = forms.CharField(required=False, max_length=500, strip=True)
    confirm = forms.CharField(required=False, strip=True)
    snapshot = forms.CharField(required=False, max_length=64)
    idempotency_key = forms.CharField(required=False, max_length=100)

    def __init__(self, *args: Any, jobs: int, is_at_once: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.jobs, self.is_at_once = jobs, is_at_once

    def clean_reason(self) -> str:
        reason = self.cleaned_data["reason"]
        if not reason and self.jobs > 1:
            raise forms.ValidationError("Say why, in a few words: the next person on call will read it.")
        return reason

    def clean_confirm(self) -> str:
        typed = self.cleaned_data["confirm"].replace(",", "").replace(" ", "")
        if self.is_at_once and self.jobs > 1 and typed != str(self.jobs):
            raise forms.ValidationError(f"To send all of them at once, type the number of jobs: {self.jobs}.")
        return typed
