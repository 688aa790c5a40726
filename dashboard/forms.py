"""What people type into acts: reasons, paces, edited arguments. A refusal stands beside its field."""

from __future__ import annotations

import json
from typing import Any

from django import forms

from jobs_admin.core import pacing, query
from jobs_admin.core.text import whole_number

MOST_SELECTED = 10_000


class IdList(forms.Field):
    """Failures chosen by hand: the same field many times (checkboxes), or ids between commas."""

    widget = forms.MultipleHiddenInput

    def clean(self, value: Any) -> list[int]:
        words = [word.strip() for text in value or () for word in str(text).split(",") if word.strip()]
        numbers = {whole_number(word) for word in words}
        if None in numbers:
            raise forms.ValidationError("The selection holds something that is not a failure's number.")
        if len(words) > MOST_SELECTED:
            raise forms.ValidationError(
                f"More than {MOST_SELECTED:,} failures are selected. Nothing was done. "
                "Choose all that match a search instead."
            )
        return sorted(numbers)


class Scope(forms.Form):
    """Which failures an act is about: those chosen by hand, or all that match a search."""

    q = forms.CharField(
        required=False,
        strip=True,
        max_length=query.MAX_CHARS,
        error_messages={
            "max_length": f"The search is longer than {query.MAX_CHARS:,} characters. Shorten it. Nothing was changed."
        },
    )
    selection = IdList(required=False)
    everything = forms.BooleanField(required=False)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if cleaned.get("everything"):
            cleaned["selection"] = []
        return cleaned

    @property
    def is_empty(self) -> bool:
        return not self.cleaned_data.get("everything") and not self.cleaned_data.get("selection")


class Reason(forms.Form):
    reason = forms.CharField(required=False, max_length=500, strip=True)


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


class JsonText(forms.CharField):
    """JSON of one shape, as text in a box."""

    widget = forms.Textarea

    def __init__(self, *, shape: type, what: str, **kwargs: Any) -> None:
        super().__init__(strip=True, required=False, max_length=4_000_000, **kwargs)
        self.shape, self.what = shape, what

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        try:
            parsed = json.loads(text, parse_constant=_refuse_constant)
        except json.JSONDecodeError as error:
            raise forms.ValidationError(
                f"This is not JSON: {error.msg} at line {error.lineno}, column {error.colno}. Nothing was sent."
            ) from error
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(f"This is not JSON: {error}. Nothing was sent.") from error
        if not isinstance(parsed, self.shape):
            raise forms.ValidationError(f"{self.what} Nothing was sent.")
        return parsed


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


class Edit(forms.Form):
    """The arguments of one job, edited."""

    args = JsonText(shape=list, what="Positional arguments are a JSON list: [ … ].")
    kwargs = JsonText(shape=dict, what="Keyword arguments are a JSON object: { … }.")
    reason = forms.CharField(required=False, max_length=500, strip=True)
