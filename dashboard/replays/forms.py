"""Forms of starting and steering a replay. A refusal is shown beside its field."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from django import forms

from jobs_admin import replays
from jobs_admin.core import pacing
from jobs_admin.core.pacing.pace import DAYS
from jobs_admin.core.refused import Refused
from jobs_admin.replays.options import ACCEPTABLE

CHECKBOX = forms.CheckboxInput
STYLES = (("careful", "Careful"), ("steady", "Steady"), ("at_once", "All at once"))
UNITS = (("rate", "jobs/s"), ("every", "seconds between jobs"))


def _text(label: str, hint: str = "", *, most: int = 40) -> forms.CharField:
    """Return a field for a number or a name, which the engine validates."""
    return forms.CharField(required=False, max_length=most, strip=True, label=label, help_text=hint)


class Share(forms.CharField):
    """A share, typed in per cent: 80 -> 0.8. What is no number is left to the engine to refuse."""

    def __init__(self, label: str) -> None:
        super().__init__(required=False, max_length=40, strip=True, label=label)

    def clean(self, value: Any) -> float | str:
        text = super().clean(value).removesuffix("%").strip()
        try:
            return round(float(text) / 100, 6)
        except ValueError:
            return text


class Refusing(forms.Form):
    """A form that also shows what the engine refuses, each beside the field that is to blame."""

    # The engine's name for a part -> the field; those that are not named here are called the same.
    FIELDS: dict[str, str] = {}

    def refuse(self, part: str, message: str) -> None:
        """`part` as the engine names it, such as `canary.jobs`."""
        field = self.FIELDS.get(part, part.replace(".", "_"))
        text = message.removeprefix(f"{part} ")
        if text != message:  # "canary.jobs must be a whole number …": the label names the part
            text = f"This {text}"
        self.add_error(field if field in self.fields else None, text)

    @property
    def refusals(self) -> Iterator[str]:
        """Return the refusals that belong to no field."""
        return iter(self.non_field_errors())


class Pace(Refusing):
    """The pace of a replay, with the API's names. Empty fields have the default of the style."""

    FIELDS = {"every": "amount", "rate": "amount", "per_key": "per_key_key", "canary": "canary_jobs", "ramp": "ramp_to"}

    style = forms.ChoiceField(choices=STYLES, required=False)
    amount = forms.CharField(required=False, max_length=40, strip=True)
    unit = forms.ChoiceField(choices=UNITS, required=False)

    canary_jobs = _text("Canary", "jobs")
    canary_success = Share("Required success rate")
    canary_within = _text("Hold if no outcomes for", "seconds")
    ramp_from = _text("Ramp from", "jobs/s")
    ramp_to = _text("Ramp to", "jobs/s")
    over = _text("Or spread over", "seconds")
    jitter = Share("Vary gaps by")
    in_flight = _text("Max in flight", "jobs")
    queue_cap = _text("Max queue length", "jobs")
    per_key_key = _text("For each", most=200)
    per_key_concurrency = _text("max concurrent", "jobs")
    per_key_rate = _text("max rate", "jobs/s")
    stop_failed = Share("Hold if clearly more fail than")
    stop_of_last = _text("of the last", "jobs")
    stop_new_groups = forms.ChoiceField(required=False, choices=(("", "yes"), ("no", "no")), label="Hold on new errors")
    window_from = _text("Send only from", "UTC")
    window_to = _text("until", "UTC")
    window_days = forms.MultipleChoiceField(required=False, choices=[(day, day) for day in DAYS])
    priority = _text("Priority", "0 to 9, or high")
    shuffle = forms.BooleanField(required=False, label="Random order (default: oldest first)")

    PARTS = {
        "canary": ("jobs", "success", "within"),
        "ramp": ("from", "to"),
        "per_key": ("key", "concurrency", "rate"),
        "stop": ("failed", "of_last"),
        "window": ("from", "to", "days"),
    }
    ALONE = ("over", "jitter", "in_flight", "queue_cap", "priority")

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if not cleaned.get("style") and "amount" in self.data:
            cleaned["style"] = "steady"
        if cleaned.get("style") == "steady" and not cleaned.get("over"):
            cleaned["unit"] = cleaned.get("unit") or "rate"
            self._check_amount(cleaned.get("amount", ""), cleaned["unit"])
        return cleaned

    def _check_amount(self, text: str, unit: str) -> None:
        """Return the fields with defaults only for a form that was not submitted: a field sent empty is no number."""
        if "amount" not in self.data:
            return
        try:
            pacing.parse({"style": "steady", unit: text})
        except Refused:
            least, most = (
                (pacing.SLOWEST, pacing.FASTEST) if unit == "rate" else (1 / pacing.FASTEST, 1 / pacing.SLOWEST)
            )
            words = "jobs/s" if unit == "rate" else "seconds between jobs"
            self.add_error("amount", f"Give a number from {f'{least:.5f}'.rstrip('0')} to {most:,.0f} {words}.")

    @property
    def document(self) -> dict[str, Any] | None:
        """The requested pace, with the API's names; None for the default by size, if nothing was chosen.

        Only the style if the form is invalid.
        """
        if not self.is_valid():
            style = self.cleaned_data.get("style")
            return {"style": style} if style else None
        cleaned = self.cleaned_data
        pace: dict[str, Any] = {"style": cleaned["style"]} if cleaned["style"] else {}
        if cleaned["style"] == "steady" and not cleaned["over"]:
            pace[cleaned["unit"]] = _number(cleaned["amount"] or pacing.DEFAULT["rate"])
        pace |= {name: _number(cleaned[name]) for name in self.ALONE if cleaned[name] not in ("", [])}
        for name, parts in self.PARTS.items():
            given = {part: cleaned[f"{name}_{part}"] for part in parts}
            if part := {key: _number(value) for key, value in given.items() if value not in ("", [])}:
                pace[name] = part
        if cleaned["stop_new_groups"] == "no":
            pace.setdefault("stop", {})["new_groups"] = False
        if cleaned["shuffle"]:
            pace["shuffle"] = True
        return pace or None

    @classmethod
    def fields_of(cls, pace: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return the fields that `document` reads as this pace, given as by `pacing.Pace.as_dict`."""
        found = [("style", str(pace.get("style", "")))]
        if rate := pace.get("rate"):
            found += [("amount", _typed(rate)), ("unit", "rate")]
        parts = {name: pace[name] for name in cls.ALONE if name in pace}
        for name, names in cls.PARTS.items():
            part = pace.get(name) or {}
            parts |= {f"{name}_{key}": part[key] for key in names if key in part}
        for name, value in parts.items():
            if isinstance(value, list):
                found += [(name, str(one)) for one in value]
            else:
                is_share = isinstance(cls.base_fields[name], Share)
                found.append((name, _typed(round(value * 100, 4)) if is_share else _typed(value)))
        if (pace.get("stop") or {}).get("new_groups") is False:
            found.append(("stop_new_groups", "no"))
        return [*found, ("shuffle", "on")] if pace.get("shuffle") else found

    @property
    def has_advanced(self) -> bool:
        """Return whether a field beyond style and rate is set or invalid."""
        fields = [name for name in self.fields if name not in {"style", "amount", "unit"}]
        return any(self.data.get(name) for name in fields) or any(name in self.errors for name in fields)


def _number(value: Any) -> Any:
    """Text as the number it is: whole where it is whole. Other text stays, for the engine to refuse or take."""
    try:
        number = float(value)
        return int(number) if number == int(number) else number
    except (TypeError, ValueError, OverflowError):
        return value


def _typed(value: Any) -> str:
    """A number as a person types it, to its last digit; text as it is."""
    return f"{value:.15g}" if isinstance(value, int | float) else str(value)


class Options(Refusing):
    """The options of a replay: attempts, queue, id, arguments, and the accepted exclusions."""

    FIELDS = {"attempts": "attempts_number"}

    attempts = forms.ChoiceField(
        required=False,
        choices=(("reset", "all attempts"), ("kept", "remaining attempts"), ("number", "fixed number")),
    )
    attempts_number = _text("Attempts")
    to_queue = _text("To another queue", most=200)
    same_job_id = forms.BooleanField(required=False)
    patch = forms.CharField(required=False, strip=True, max_length=200_000, label="Argument changes")
    accept = forms.MultipleChoiceField(required=False, choices=[(name, name) for name in ACCEPTABLE])
    # The fingerprints that were listed, between commas; a comma alone lists none, so none is left out.
    groups = forms.CharField(required=False, max_length=30_000)
    # All groups at once; "" ticks those that are ticked.
    tick = forms.ChoiceField(required=False, choices=[(name, name) for name in ("all", "none", "recommended")])

    def clean_patch(self) -> Any:
        text = self.cleaned_data["patch"]
        if not text:
            return None
        try:
            return json.loads(text, parse_constant=_refuse_constant)
        except json.JSONDecodeError as error:
            raise forms.ValidationError(
                f"This is not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
            ) from error
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(f"This is not JSON: {error}.") from error

    @property
    def document(self) -> dict[str, Any]:
        """The chosen options as `replays.Options.read` takes them, without defaults."""
        if not self.is_valid():
            return {}
        cleaned = self.cleaned_data
        found = {name: cleaned[name] for name in ("to_queue", "same_job_id", "patch", "accept") if cleaned[name]}
        if cleaned["groups"] and cleaned["tick"] != "recommended":
            listed = set(cleaned["groups"].split(",")) - {""}
            on = listed if cleaned["tick"] == "all" else set() if cleaned["tick"] == "none" else set(self.ticked)
            found["without_groups"] = sorted(listed - on)
        if cleaned["attempts"] == "number":
            return found | {"attempts": cleaned["attempts_number"] or "0"}
        return found | ({"attempts": "kept"} if cleaned["attempts"] == "kept" else {})

    @classmethod
    def fields_of(cls, options: replays.Options, left_out: Collection[str]) -> list[tuple[str, str]]:
        """Return the fields that `document` reads as these options; `left_out`: fingerprints of the excluded groups."""
        found = [("accept", name) for name in options.accept] + [("groups", ",".join(left_out) or ",")]
        if isinstance(options.attempts, int):
            found += [("attempts", "number"), ("attempts_number", str(options.attempts))]
        else:
            found.append(("attempts", options.attempts))
        found += [("to_queue", options.to_queue)] if options.to_queue else []
        found += [("same_job_id", "on")] if options.same_job_id else []
        return found + ([("patch", json.dumps(options.patch, ensure_ascii=False))] if options.patch else [])

    @property
    def ticked(self) -> list[str]:
        """The groups that are on, by fingerprint."""
        return self.data.getlist("group") if hasattr(self.data, "getlist") else list(self.data.get("group", ()))

    @property
    def has_advanced(self) -> bool:
        fields = ("to_queue", "same_job_id", "patch")
        return self.data.get("attempts") in {"kept", "number"} or any(map(self.data.get, fields)) or bool(self.errors)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


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
            raise forms.ValidationError("Enter a reason for this replay.")
        return reason

    def clean_confirm(self) -> str:
        typed = self.cleaned_data["confirm"].replace(",", "").replace(" ", "")
        if self.is_at_once and self.jobs > 1 and typed != str(self.jobs):
            raise forms.ValidationError(f"To send all jobs at once, enter the number of jobs: {self.jobs}.")
        return typed
