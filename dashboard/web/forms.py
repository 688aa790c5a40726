"""Forms of acts: scopes, reasons, edited arguments. A refusal is shown beside its field."""

from __future__ import annotations

import json
from typing import Any

from django import forms

from jobs_admin.core import query
from jobs_admin.core.text import whole_number

MOST_SELECTED = 10_000


class IdList(forms.Field):
    """Failures selected by hand: one field repeated (checkboxes), or ids separated by commas."""

    widget = forms.MultipleHiddenInput

    def clean(self, value: Any) -> list[int]:
        words = [word.strip() for text in value or () for word in str(text).split(",") if word.strip()]
        numbers = {whole_number(word) for word in words}
        if None in numbers:
            raise forms.ValidationError("The selection contains an invalid failure number. Nothing was changed.")
        if len(words) > MOST_SELECTED:
            raise forms.ValidationError(
                f"More than {MOST_SELECTED:,} failures are selected. Nothing was changed. Select all that match a "
                "search instead."
            )
        return sorted(numbers)


class Scope(forms.Form):
    """Failures of an act: those selected by hand, or all that match a search."""

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


class JsonText(forms.CharField):
    """JSON of one shape, as text in a textarea."""

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
                f"Invalid JSON: {error.msg} at line {error.lineno}, column {error.colno}. Nothing was sent."
            ) from error
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(f"Invalid JSON: {error}. Nothing was sent.") from error
        if not isinstance(parsed, self.shape):
            raise forms.ValidationError(f"{self.what} Nothing was sent.")
        return parsed


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


class Edit(forms.Form):
    """The arguments of one job, edited."""

    args = JsonText(shape=list, what="Positional arguments must be a JSON list: [ … ].")
    kwargs = JsonText(shape=dict, what="Keyword arguments must be a JSON object: { … }.")
    reason = forms.CharField(required=False, max_length=500, strip=True)
