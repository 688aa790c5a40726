"""Parser of policies: a JSON document becomes a policy, or the list of all its problems."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any
from unicodedata import category

from jobs_admin.core.policy import shape
from jobs_admin.core.policy.shape import (
    LONGEST_S,
    LONGEST_TEXT,
    Backoff,
    Breaker,
    Budget,
    Concurrency,
    ErrorClass,
    Jitter,
    Match,
    Poison,
    Policy,
    RateLimit,
    RetryAfter,
)
from jobs_admin.core.refused import Refused

_MOST_NAMES = 20  # of unknown fields listed


@dataclass(frozen=True, slots=True)
class Problem:
    field: str  # path, such as backoff.first_delay_s or classes.0.error; "" is the document itself
    message: str  # a complete sentence
    bound: str = ""  # valid values, such as "0 to 2,592,000 seconds"


class Reading:
    """Reader of one object in a document. Each method returns the default if the field is missing, null or invalid.

    So the document is read to the end, and all its problems are reported together.
    """

    def __init__(self, value: object, path: str, problems: list[Problem], unknown: list[str]) -> None:
        self._path, self._problems, self._unknown = path, problems, unknown
        self._is_object = isinstance(value, dict)
        self._fields: dict[Any, Any] = value if isinstance(value, dict) else {}
        if not self._is_object:
            self.refuse("", "an object")

    def has(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def is_fine(self, *names: str) -> bool:
        """Return whether these fields, and their contents, have no problems."""
        paths = [self._at(name) for name in names]
        return not any(f"{p.field}.".startswith(f"{at}.") for p in self._problems for at in paths)

    def number(self, name: str, least: float, most: float, default: float, unit: str) -> float:
        """Return a finite number within the bounds. Booleans and text are invalid."""
        value = self._take(name)
        return default if value is None else self._number(name, value, least, most, default, unit)

    def integer(self, name: str, least: int, most: int, default: int, unit: str) -> int:
        value = self._take(name)
        if value is None:
            return default
        if not _is_number(value) or not least <= value <= most or value != int(value):
            self.refuse(name, f"a whole number from {least:,} to {most:,}{unit and f' {unit}'}", value)
            return default
        return int(value)

    def numbers(self, name: str, least: float, most: float, longest: int, unit: str) -> tuple[float, ...]:
        found = self._list(name, longest)
        return tuple(self._number(f"{name}.{n}", one, least, most, least, unit) for n, one in enumerate(found))

    def parts(self, name: str, longest: int) -> list[Reading]:
        found = self._list(name, longest)
        return [Reading(one, f"{self._at(name)}.{n}", self._problems, self._unknown) for n, one in enumerate(found)]

    def part(self, name: str) -> Reading | None:
        """Return the object in this field; None if there is none."""
        value = self._take(name)
        return None if value is None else Reading(value, self._at(name), self._problems, self._unknown)

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        value = self._take(name)
        if value is None:
            return default
        if not isinstance(value, str) or value not in choices:
            self.refuse(name, f"one of {', '.join(choices)}", value)
            return default
        return value

    def truth(self, name: str, default: bool) -> bool:
        value = self._take(name)
        if value is not None and not isinstance(value, bool):
            self.refuse(name, "true or false", value)
        return value if isinstance(value, bool) else default

    def text(self, name: str, longest: int, default: str, *, lines: bool = False) -> str:
        """Return text that can be stored and shown anywhere: no control characters, no lone surrogates."""
        value = self._take(name)
        if value is None:
            return default
        bound = f"text of at most {longest:,} characters{'' if lines else ' on one line'}, without control characters"
        if not isinstance(value, str) or len(value) > longest or not _is_clean(value, lines):
            self.refuse(name, bound, value)
            return default
        return value

    def refuse(self, name: str, bound: str, value: object = None, because: str = "") -> None:
        """Report that a field is invalid."""
        field = self._at(name)
        was = "" if value is None else f" Got {_quote(value)}."
        self._problems.append(
            Problem(field, f"{field or 'A policy'} must be {bound}.{because and f' {because}'}{was}", bound)
        )

    def needs(self, name: str, bound: str) -> None:
        """Report that a field is missing."""
        if not self._is_object:
            return
        field = self._at(name)
        self._problems.append(Problem(field, f"{field} is missing: it must be {bound}.", bound))

    def note_unknown(self, names: Sequence[str]) -> None:
        """Record the object's fields that are not among the known `names`."""
        others = [name for name in self._fields if name not in names and self._fields[name] not in (None, [])]
        self._unknown.extend(self._at(repr(str(name)[:40])[1:-1]) for name in others[:_MOST_NAMES])

    def has_not(self, names: Sequence[str], kind: str) -> None:
        """Refuse fields that belong to another kind and have no effect in this one."""
        for name in names:
            if self._fields.get(name) not in (None, []):
                field = self._at(name)
                self._problems.append(
                    Problem(field, f"{field} has no effect for kind {kind}. Omit the field.", "omitted")
                )

    def _take(self, name: str) -> Any:
        return self._fields.get(name)

    def _number(self, name: str, value: Any, least: float, most: float, default: float, unit: str) -> float:
        if not _is_number(value) or not least <= value <= most:  # also false for NaN
            self.refuse(name, f"a number from {least:,g} to {most:,.10g}{unit and f' {unit}'}", value)
            return default
        return float(value)

    def _list(self, name: str, longest: int) -> list[Any]:
        value = self._take(name)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > longest:
            self.refuse(name, f"a list of at most {longest:,}", value)
            return []
        return value

    def _at(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path and name else self._path or name


def _is_number(value: Any) -> Any:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_clean(value: str, lines: bool) -> bool:
    if not lines:
        return value.isprintable()
    return all(c in "\n\r\t" or category(c) not in ("Cc", "Cs") for c in value)


def _quote(value: object) -> str:
    """Return the written value, short enough to quote. An int of a million digits cannot be converted to text."""
    if isinstance(value, str):
        return f"text of {len(value):,} characters" if len(value) > 60 else repr(value)
    if isinstance(value, list):
        return f"a list of {len(value):,}"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) >= 10**20:
        return f"a number of about {int(value.bit_length() * 0.30103) + 1:,} digits"
    return repr(value)[:60]


_FIELDS = tuple(name for name in Policy.__dataclass_fields__ if name != "unknown")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
_NAMED = "1 to 63 of a-z, 0-9, dot, - and _, the first a letter or a digit"
_TAKEN = ("new", "lint", "preview", "backtest")  # URLs of pages and API calls next to those of policies
_KEY = re.compile(r"(?:tenant|queue|task|args\.\d{1,3}(?:\.\w{1,80}){0,8}|kwargs(?:\.\w{1,80}){1,8})\Z")
_BACKOFF = ("first_delay_s", "factor", "power", "plus_s", "delays_s")
_JITTER = ("fraction", "seconds")
_UTC = timezone.utc
_YEARS = (2000, 2200)
_USUAL, _USUAL_BACKOFF, _USUAL_JITTER = Policy(), Backoff(), Jitter()


def parse(document: object, *, lenient: bool = False) -> Policy:
    """Return the policy in a JSON document. Raises only Refused, with all problems.

    A missing or null field has its default (see `Policy`); without any field of shape.OF_RETRIES, retries are left to
    the task. By default unknown fields are refused. `lenient`, for workers, stores their names in `unknown` and only
    observes: a policy that is not fully understood decides nothing.
    """
    problems: list[Problem] = []
    unknown: list[str] = []
    policy = _policy(Reading(document, "", problems, unknown))
    if unknown and not lenient:
        problems += [Problem(name, f"A policy has no field {name}.", "a field of a policy") for name in unknown]
    if problems:
        message = " ".join(problem.message for problem in problems)
        raise Refused("invalid", message, problems[0].field, problems=problems)
    if not unknown:
        return policy
    return replace(policy, mode=shape.OBSERVE, unknown=tuple(unknown))


def _policy(reading: Reading) -> Policy:
    reading.note_unknown(_FIELDS)
    named = [name for name in shape.OF_RETRIES if reading.has(name)]
    if not reading.truth("retries", bool(named)):
        return _without_retries(reading, named)
    backoff = _backoff(reading.part("backoff"))
    default_attempts = len(backoff.delays_s) + 1 if backoff.kind == "table" else _USUAL.max_attempts
    policy = Policy(
        name=_name(reading, "name") or "",
        match=_match(reading.part("match")),
        mode=reading.choice("mode", shape.MODES, shape.OBSERVE),
        native=reading.choice("native", shape.NATIVE, shape.REPLACE),
        max_attempts=reading.integer(
            "max_attempts", 1, shape.MOST_ATTEMPTS, default_attempts, "attempts, including the first"
        ),
        backoff=backoff,
        cap_s=reading.number("cap_s", shape.LEAST_CAP_S, LONGEST_S, 0, "seconds") if reading.has("cap_s") else None,
        jitter=_jitter(reading.part("jitter")),
        retry_after=_retry_after(reading.part("retry_after")),
        classes=tuple(_class(one) for one in reading.parts("classes", shape.MOST_CLASSES)),
        budget=_budget(reading.part("budget")),
        poison=_poison(reading.part("poison")),
        concurrency=_concurrency(reading.part("concurrency")),
        rate_limit=_rate_limit(reading.part("rate_limit")),
        breaker=_breaker(reading.part("breaker")),
        exhausted=reading.choice("exhausted", shape.EXHAUSTED, shape.DEAD),
        file_lost=reading.truth("file_lost", False),
        expires_at=_time(reading, "expires_at"),
        note=reading.text("note", shape.LONGEST_NOTE, "", lines=True),
    )
    _agree(reading, policy)
    return policy


def _without_retries(reading: Reading, named: list[str]) -> Policy:
    """Return a policy that only limits starts, counts crashes, files lost jobs or has a breaker."""
    for name in named:
        reading.refuse(name, "omitted", None, "A policy with retries false ignores this field.")
    return Policy(
        name=_name(reading, "name") or "",
        match=_match(reading.part("match")),
        mode=reading.choice("mode", shape.MODES, shape.OBSERVE),
        retries=False,
        max_attempts=1,
        poison=_poison(reading.part("poison")),
        concurrency=_concurrency(reading.part("concurrency")),
        rate_limit=_rate_limit(reading.part("rate_limit")),
        breaker=_breaker(reading.part("breaker")),
        file_lost=reading.truth("file_lost", False),
        expires_at=_time(reading, "expires_at"),
        note=reading.text("note", shape.LONGEST_NOTE, "", lines=True),
    )


def _agree(reading: Reading, policy: Policy) -> None:
    """Refuse fields that contradict each other."""
    backoff, first = policy.backoff, _first_delay_s(policy.backoff)
    if policy.cap_s is not None and reading.is_fine("cap_s", "backoff") and policy.cap_s < first:
        reading.refuse("cap_s", f"at least the first delay ({first:,g} seconds)", policy.cap_s)
    if backoff.kind == "decorrelated" and policy.jitter.kind != "none" and reading.is_fine("jitter"):
        because = "A decorrelated backoff is already random."
        reading.refuse("jitter.kind", "none", policy.jitter.kind, because)


def _first_delay_s(backoff: Backoff) -> float:
    if backoff.kind == "table":
        return backoff.delays_s[0] if backoff.delays_s else 0.0
    if backoff.kind == "polynomial":
        return max(backoff.plus_s, backoff.first_delay_s)  # the first delay, and the growing part
    return backoff.first_delay_s


def is_name(text: str) -> bool:
    """Return whether `text` is a valid policy name."""
    return _NAME.match(text) is not None and text not in _TAKEN


def _name(reading: Reading, field: str) -> str | None:
    name = reading.text(field, LONGEST_TEXT, "")
    if name and not _NAME.match(name):
        reading.refuse(field, _NAMED, name)
    elif name in _TAKEN:
        reading.refuse(field, f"none of {', '.join(_TAKEN)}", name, "Pages use these names.")
    return name or None


def _match(reading: Reading | None) -> Match:
    if reading is None:
        return Match()
    reading.note_unknown(tuple(Match.__dataclass_fields__))
    return Match(*(_glob(reading, name) or "*" for name in Match.__dataclass_fields__))


def _glob(reading: Reading, name: str) -> str:
    glob = reading.text(name, LONGEST_TEXT, "")
    return re.sub(r"\*+", "*", glob)


def _backoff(reading: Reading | None) -> Backoff:
    if reading is None:
        return Backoff()
    reading.note_unknown(("kind", *_BACKOFF))
    kind = reading.choice("kind", shape.BACKOFFS, _USUAL_BACKOFF.kind)
    fields = shape.BACKOFF_FIELDS[kind]
    if not reading.is_fine("kind"):
        return Backoff()
    reading.has_not([name for name in _BACKOFF if name not in fields], kind)
    values: dict[str, Any] = {}
    if "first_delay_s" in fields:
        default = 1.0 if kind == "polynomial" else _USUAL_BACKOFF.first_delay_s
        least = shape.LEAST_DRAWN_S if kind == "decorrelated" else 0
        values["first_delay_s"] = reading.number("first_delay_s", least, LONGEST_S, default, "seconds")
    if "factor" in fields:
        values["factor"] = reading.number("factor", shape.LEAST_FACTOR, shape.MOST_FACTOR, _USUAL_BACKOFF.factor, "")
    if "power" in fields:
        values["power"] = reading.number("power", 0, shape.MOST_POWER, _USUAL_BACKOFF.power, "")
        values["plus_s"] = reading.number("plus_s", 0, LONGEST_S, _USUAL_BACKOFF.plus_s, "seconds")
    if "delays_s" in fields:
        values["delays_s"] = reading.numbers("delays_s", 0, LONGEST_S, shape.MOST_DELAYS, "seconds")
        if not values["delays_s"] and reading.is_fine("delays_s"):
            reading.needs("delays_s", f"a list of 1 to {shape.MOST_DELAYS} numbers of seconds")
    return Backoff(kind, **values)


def _jitter(reading: Reading | None) -> Jitter:
    if reading is None:
        return Jitter()
    reading.note_unknown(("kind", *_JITTER))
    kind = reading.choice("kind", shape.JITTERS, _USUAL_JITTER.kind)
    if not reading.is_fine("kind"):
        return Jitter()
    fields = shape.JITTER_FIELDS.get(kind, ())
    reading.has_not([name for name in _JITTER if name not in fields], kind)
    bounds = {"fraction": (0.0, 1.0, "of the delay"), "seconds": (0.0, LONGEST_S, "seconds")}
    values = {}
    for name in fields:
        least, most, unit = bounds[name]
        if not reading.has(name):
            reading.needs(name, f"a number from {least:g} to {most:,.0f} {unit}")
        values[name] = reading.number(name, least, most, least, unit)
    return Jitter(kind, **values)


def _retry_after(reading: Reading | None) -> RetryAfter:
    if reading is None:
        return RetryAfter()
    reading.note_unknown(tuple(RetryAfter.__dataclass_fields__))
    usual = RetryAfter()
    return RetryAfter(
        respect=reading.truth("respect", usual.respect),
        jitter=reading.number("jitter", 0, 1, usual.jitter, "of the requested delay"),
        cap_s=reading.number("cap_s", 0, LONGEST_S, usual.cap_s, "seconds"),
    )


def _class(reading: Reading) -> ErrorClass:
    reading.note_unknown(("error", "as"))
    error = _glob(reading, "error")
    if not error and reading.is_fine("error"):
        reading.needs("error", "the name of an error class; * is a wildcard")
    return ErrorClass(error, reading.choice("as", shape.CLASSES, shape.TRANSIENT))


def _budget(reading: Reading | None) -> Budget | None:
    if reading is None:
        return None
    reading.note_unknown(tuple(Budget.__dataclass_fields__))
    if not reading.has("per_minute"):
        reading.needs("per_minute", f"a number from 0 to {shape.MOST_PER_MINUTE:,.0f} retries/min")
    per_minute = reading.number("per_minute", 0, shape.MOST_PER_MINUTE, 0, "retries/min")
    if 0 < per_minute < shape.LEAST_PER_MINUTE:
        # Below this, the budget's memory expires between two retries; for 1e-308 the interval overflows.
        reading.refuse("per_minute", f"0, or at least {shape.LEAST_PER_MINUTE} retries/min (one per week)", per_minute)
    usual = min(shape.MOST_BURST, max(1, round(per_minute / 10))) if per_minute else 0
    burst = reading.integer("burst", 0, shape.MOST_BURST, usual, "retries")
    if per_minute and not burst and reading.is_fine("burst"):
        reading.refuse("burst", "at least 1 if per_minute is more than 0", 0, "No retry would ever be allowed.")
    return Budget(per_minute, burst, _name(reading, "group"))


def _poison(reading: Reading | None) -> Poison | None:
    if reading is None:
        return None
    reading.note_unknown(tuple(Poison.__dataclass_fields__))
    usual = Poison()
    return Poison(
        reading.integer("crashes", 1, shape.MOST_CRASHES, usual.crashes, "crashes"),
        reading.number("window_s", 1, shape.LONGEST_WINDOW_S, usual.window_s, "seconds"),
    )


def _concurrency(reading: Reading | None) -> Concurrency | None:
    if reading is None:
        return None
    reading.note_unknown(tuple(Concurrency.__dataclass_fields__))
    for name in ("key", "limit"):
        if not reading.has(name):
            reading.needs(
                name, "a path" if name == "key" else f"a whole number from 1 to {shape.MOST_AT_ONCE:,} concurrent jobs"
            )
    key = reading.text("key", LONGEST_TEXT, "")
    if key and not _KEY.match(key):
        reading.refuse("key", "tenant, queue, task, or a path such as kwargs.customer_id or args.0.tenant", key)
    return Concurrency(key, reading.integer("limit", 1, shape.MOST_AT_ONCE, 1, "concurrent jobs"))


def _rate_limit(reading: Reading | None) -> RateLimit | None:
    if reading is None:
        return None
    reading.note_unknown(tuple(RateLimit.__dataclass_fields__))
    if not reading.has("max"):
        reading.needs("max", f"a whole number from 1 to {shape.MOST_STARTS:,} starts")
    return RateLimit(
        reading.integer("max", 1, shape.MOST_STARTS, 1, "starts"),
        reading.number("per_s", shape.SHORTEST_PER_S, shape.LONGEST_PER_S, 1.0, "seconds"),
    )


def _breaker(reading: Reading | None) -> Breaker | None:
    if reading is None:
        return None
    reading.note_unknown(tuple(Breaker.__dataclass_fields__))
    dependency = reading.text("dependency", LONGEST_TEXT, "")
    if len(dependency.encode()) > LONGEST_TEXT:
        reading.refuse("dependency", f"at most {LONGEST_TEXT} bytes", dependency)
    longest_s = reading.number("max_hold_s", shape.LEAST_HOLD_S, LONGEST_S, LONGEST_S, "seconds")
    return Breaker(dependency.strip() or None, longest_s if reading.has("max_hold_s") else None)


def _time(reading: Reading, field: str) -> datetime | None:
    text = reading.text(field, LONGEST_TEXT, "")
    if not text:
        return None
    try:
        # Python 3.10 does not parse Z. A time without a zone is UTC, as everywhere.
        at = datetime.fromisoformat(text[:-1] + "+00:00" if text[-1] in "zZ" else text)
        if _YEARS[0] <= at.year < _YEARS[1]:
            return at.astimezone(_UTC) if at.tzinfo else at.replace(tzinfo=_UTC)
    except (ValueError, OverflowError):
        pass
    reading.refuse(field, "a time such as 2026-11-20T10:00:00Z", text)
    return None
