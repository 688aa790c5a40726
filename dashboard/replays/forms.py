"""Forms that start and steer a replay: accepted exclusions, and the inputs under Advanced."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
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
    """Return a field for a number or name that the engine validates."""
    return forms.CharField(required=False, max_length=most, strip=True, label=label, help_text=hint)


class Share(forms.CharField):
    """A share, typed in per cent: 80 -> 0.8. The engine refuses anything that is not a number."""

    def __init__(self, label: str) -> None:
        super().__init__(required=False, max_length=40, strip=True, label=label)

    def clean(self, value: Any) -> float | str:
        text = super().clean(value).removesuffix("%").strip()
        try:
            return round(float(text) / 100, 6)
        except ValueError:
            return text


class Refusing(forms.Form):
    """Form that also shows refusals of the engine, each at the field that caused it."""

    # The engine's name for a part -> the field; other fields have the engine's names.
    FIELDS: dict[str, str] = {}

    def refuse(self, part: str, message: str) -> None:
        """Show a refusal. `part` is the engine's name, such as `canary.jobs`."""
        field = self.FIELDS.get(part, part.replace(".", "_"))
        text = message.removeprefix(f"{part} ")
        if text != message:  # "canary.jobs must be a whole number …": the label already names the part
            text = f"This {text}"
        self.add_error(field if field in self.fields else None, text)

    @property
    def refusals(self) -> Iterator[str]:
        """Return the refusals that belong to no field."""
        return iter(self.non_field_errors())


class Pace(Refusing):
    """Pace of a replay, with the API's names. Empty fields have the default of the style."""

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
        if self.is_default:
            cleaned["style"] = ""
        elif not cleaned.get("style") and "amount" in self.data:
            cleaned["style"] = "steady"
        if cleaned.get("style") == "steady" and not cleaned.get("over"):
            cleaned["unit"] = cleaned.get("unit") or "rate"
            self._check_amount(cleaned.get("amount", ""), cleaned["unit"])
        return cleaned

    def _check_amount(self, text: str, unit: str) -> None:
        """Fill in defaults only for a form that was not submitted: a field submitted empty is not a number."""
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
    def is_default(self) -> bool:
        """Return whether style and rate are the default: not given, or shown and not chosen (`pace=default`)."""
        return self.data.get("pace") == "default" or not {"style", "amount"} & self.data.keys()

    @property
    def document(self) -> dict[str, Any] | None:
        """Return the requested pace, with the API's names; None for the default by size, if nothing was selected.

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
        """Return the fields that `document` reads as this pace, given in the form of `pacing.Pace.as_dict`."""
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
    """Return the text as a number, an integer if possible; other text unchanged, for the engine to accept or refuse."""
    try:
        number = float(value)
        return int(number) if number == int(number) else number
    except (TypeError, ValueError, OverflowError):
        return value


def _typed(value: Any) -> str:
    """Return a number as a person types it, with all digits; text unchanged."""
    return f"{value:.15g}" if isinstance(value, int | float) else str(value)


class Options(Refusing):
    """Options of a replay: attempts, queue, id, arguments, and accepted exclusions."""

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
    # Fingerprints of the displayed groups, separated by commas; a single comma means none, so that none is excluded.
    groups = forms.CharField(required=False, max_length=30_000)
    # Selects groups at once; "" leaves the boxes as they are.
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
        """Return the selected options as `replays.Options.read` accepts them, without defaults."""
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
        """Return the fields that `document` reads as these options; `left_out`: fingerprints of excluded groups."""
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
        """The fingerprints of the selected groups."""
        return self.data.getlist("group") if hasattr(self.data, "getlist") else list(self.data.get("group", ()))

    @property
    def has_advanced(self) -> bool:
        fields = ("to_queue", "same_job_id", "patch")
        return self.data.get("attempts") in {"kept", "number"} or any(map(self.data.get, fields)) or bool(self.errors)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


class Start(forms.Form):
    """Confirmation of a start."""

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


# name -> (which jobs, what may happen to them)
_ACCEPTED = {
    "unguarded": ("queues with unguarded workers", "outcomes may stay unknown"),
    "chord": ("headers of chords that have ended", "the jobs run again, the chord bodies do not"),
    "expired": ("expired jobs", "the jobs run despite being expired"),
    "unknown_task": ("tasks that no active worker has registered", "no worker may run them"),
}


def accepted_jobs(name: str) -> str:
    """Return the text about jobs that are replayed because their exclusion was accepted."""
    return _ACCEPTED[name][0] if name in _ACCEPTED else name


def acceptance_offer(name: str) -> str:
    """Return the same as a sentence, with the expected result."""
    jobs, means = _ACCEPTED[name]
    return f"{jobs[0].upper()}{jobs[1:]}: {means}"


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
    usual: str  # default while empty
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


def places(form: Pace, pace: dict[str, Any]) -> list[Place]:
    """Return the inputs. `pace` has a number for every limit, as in a preview."""
    return [Place(title, [_field(form, name, pace) for name in names]) for title, names in _PLACES.items()]


def _field(form: Pace, name: str, pace: dict[str, Any]) -> Field:
    field = form.fields[name]
    choices = [(str(value), str(words)) for value, words in getattr(field, "choices", ())]
    kind = "choice" if choices else "check" if isinstance(field.widget, CHECKBOX) else "text"
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
    for part in Pace.PARTS:
        if name.startswith(f"{part}_"):
            return part, name.removeprefix(f"{part}_")
    return (name,)
