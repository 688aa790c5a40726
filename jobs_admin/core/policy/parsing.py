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

_MOST_NAMES = 20  # of unknown fields that are told


@dataclass(frozen=True, slots=True)
class Problem:
    field: str  # its path, such as backoff.first_delay_s or classes.0.error; "" is the document itself
    message: str  # a sentence that stands alone
    bound: str = ""  # what it must be, such as "0 to 2,592,000 seconds"


class Reading:
    """One object of a document. Every reader answers with the default where the field is missing, null or wrong.

    So the whole document is read whatever is wrong with parts of it, and all problems are told at once.
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
        """Return whether nothing was wrong with these fields, or with what is in them."""
        paths = [self._at(name) for name in names]
        return not any(f"{p.field}.".startswith(f"{at}.") for p in self._problems for at in paths)

    def number(self, name: str, least: float, most: float, default: float, unit: str) -> float:
        """A finite number within the bounds. A truth value or a text is no number."""
        value = self._take(name)
        return default if value is None else self._number(name, value, least, most, default, unit)

    def whole(self, name: str, least: int, most: int, default: int, unit: str) -> int:
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
        """The object in this field; None where there is none."""
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
        """Text that can be stored and shown anywhere: no control characters, no halves of characters."""
        value = self._take(name)
        if value is None:
            return default
        bound = f"a text of at most {longest:,} characters{'' if lines else ' on one line'}, without control characters"
        if not isinstance(value, str) or len(value) > longest or not _is_clean(value, lines):
            self.refuse(name, bound, value)
            return default
        return value

    def refuse(self, name: str, bound: str, value: object = None, because: str = "") -> None:
        """Note that a field must be something else."""
        field = self._at(name)
        was = "" if value is None else f" It is {_shown(value)}."
        self._problems.append(
            Problem(field, f"{field or 'A policy'} must be {bound}.{because and f' {because}'}{was}", bound)
        )

    def needs(self, name: str, bound: str) -> None:
        """Note that a field is missing."""
        if not self._is_object:
            return
        field = self._at(name)
        self._problems.append(Problem(field, f"{field} is missing: it must be {bound}.", bound))

    def done(self, names: Sequence[str]) -> None:
        """All was read: what else the object holds is unknown."""
        others = [name for name in self._fields if name not in names and self._fields[name] not in (None, [])]
        self._unknown.extend(self._at(repr(str(name)[:40])[1:-1]) for name in others[:_MOST_NAMES])

    def has_not(self, names: Sequence[str], kind: str) -> None:
        """Refuse fields that would mean something in another kind, and nothing in this one."""
        for name in names:
            if self._fields.get(name) not in (None, []):
                field = self._at(name)
                self._problems.append(
                    Problem(field, f"{field} means nothing where the kind is {kind}. Leave it out.", "left out")
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


def _shown(value: object) -> str:
    """Return what was written, short enough to be quoted. An int of a million digits cannot even be written out."""
    if isinstance(value, str):
        return f"a text of {len(value):,} characters" if len(value) > 60 else repr(value)
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
_TAKEN = ("new", "lint", "preview", "backtest")  # addresses of pages and calls beside those of policies
_KEY = re.compile(r"(?:tenant|queue|task|args\.\d{1,3}(?:\.\w{1,80}){0,8}|kwargs(?:\.\w{1,80}){1,8})\Z")
_BACKOFF = ("first_delay_s", "factor", "power", "plus_s", "delays_s")
_JITTER = ("fraction", "seconds")
_UTC = timezone.utc
_YEARS = (2000, 2200)
_USUAL, _USUAL_BACKOFF, _USUAL_JITTER = Policy(), Backoff(), Jitter()


def parse(document: object, *, lenient: bool = False) -> Policy:
    """The policy that a JSON document says. Raises Refused, and nothing else, with all that is wrong with it.

    A field that is missing or null has its default (see `Policy`); where none of shape.OF_RETRIES is there, retries are left
    to the task. Strict refuses fields that it does not know. `lenient`,
    for workers, keeps their names in `unknown` and only observes: a policy half understood decides nothing.
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


def _policy(said: Reading) -> Policy:
    said.done(_FIELDS)
    named = [name for name in shape.OF_RETRIES if said.has(name)]
    if not said.truth("retries", bool(named)):
        return _without_retries(said, named)
    backoff = _backoff(said.part("backoff"))
    default_attempts = len(backoff.delays_s) + 1 if backoff.kind == "table" else _USUAL.max_attempts
    policy = Policy(
        name=_name(said, "name") or "",
        match=_match(said.part("match")),
        mode=said.choice("mode", shape.MODES, shape.OBSERVE),
        native=said.choice("native", shape.NATIVE, shape.REPLACE),
        max_attempts=said.whole("max_attempts", 1, shape.MOST_ATTEMPTS, default_attempts, "runs, the first included"),
        backoff=backoff,
        cap_s=said.number("cap_s", shape.LEAST_CAP_S, LONGEST_S, 0, "seconds") if said.has("cap_s") else None,
        jitter=_jitter(said.part("jitter")),
        retry_after=_retry_after(said.part("retry_after")),
        classes=tuple(_class(one) for one in said.parts("classes", shape.MOST_CLASSES)),
        budget=_budget(said.part("budget")),
        poison=_poison(said.part("poison")),
        concurrency=_concurrency(said.part("concurrency")),
        rate_limit=_rate_limit(said.part("rate_limit")),
        exhausted=said.choice("exhausted", shape.EXHAUSTED, shape.DEAD),
        file_lost=said.truth("file_lost", False),
        expires_at=_time(said, "expires_at"),
        note=said.text("note", shape.LONGEST_NOTE, "", lines=True),
    )
    _agree(said, policy)
    return policy


def _without_retries(said: Reading, named: list[str]) -> Policy:
    """A policy that only limits starts, counts crashes or files lost jobs."""
    for name in named:
        said.refuse(name, "left out", None, "It means nothing where retries is false.")
    return Policy(
        name=_name(said, "name") or "",
        match=_match(said.part("match")),
        mode=said.choice("mode", shape.MODES, shape.OBSERVE),
        retries=False,
        max_attempts=1,
        poison=_poison(said.part("poison")),
        concurrency=_concurrency(said.part("concurrency")),
        rate_limit=_rate_limit(said.part("rate_limit")),
        file_lost=said.truth("file_lost", False),
        expires_at=_time(said, "expires_at"),
        note=said.text("note", shape.LONGEST_NOTE, "", lines=True),
    )


def _agree(said: Reading, policy: Policy) -> None:
    """What no field says alone."""
    backoff, first = policy.backoff, _first_delay_s(policy.backoff)
    if policy.cap_s is not None and said.is_fine("cap_s", "backoff") and policy.cap_s < first:
        said.refuse("cap_s", f"at least the first delay ({first:,g} seconds)", policy.cap_s)
    if backoff.kind == "decorrelated" and policy.jitter.kind != "none" and said.is_fine("jitter"):
        because = "A decorrelated backoff is drawn already."
        said.refuse("jitter.kind", "none", policy.jitter.kind, because)


def _first_delay_s(backoff: Backoff) -> float:
    if backoff.kind == "table":
        return backoff.delays_s[0] if backoff.delays_s else 0.0
    if backoff.kind == "polynomial":
        return max(backoff.plus_s, backoff.first_delay_s)  # the first wait, and what grows
    return backoff.first_delay_s


def _name(said: Reading, field: str) -> str | None:
    name = said.text(field, LONGEST_TEXT, "")
    if name and not _NAME.match(name):
        said.refuse(field, _NAMED, name)
    elif name in _TAKEN:
        said.refuse(field, f"none of {', '.join(_TAKEN)}", name, "Pages are called so.")
    return name or None


def _match(said: Reading | None) -> Match:
    if said is None:
        return Match()
    said.done(tuple(Match.__dataclass_fields__))
    return Match(*(_glob(said, name) or "*" for name in Match.__dataclass_fields__))


def _glob(said: Reading, name: str) -> str:
    glob = said.text(name, LONGEST_TEXT, "")
    return re.sub(r"\*+", "*", glob)


def _backoff(said: Reading | None) -> Backoff:
    if said is None:
        return Backoff()
    said.done(("kind", *_BACKOFF))
    kind = said.choice("kind", shape.BACKOFFS, _USUAL_BACKOFF.kind)
    fields = shape.BACKOFF_FIELDS[kind]
    if not said.is_fine("kind"):
        return Backoff()
    said.has_not([name for name in _BACKOFF if name not in fields], kind)
    values: dict[str, Any] = {}
    if "first_delay_s" in fields:
        default = 1.0 if kind == "polynomial" else _USUAL_BACKOFF.first_delay_s
        least = shape.LEAST_DRAWN_S if kind == "decorrelated" else 0
        values["first_delay_s"] = said.number("first_delay_s", least, LONGEST_S, default, "seconds")
    if "factor" in fields:
        values["factor"] = said.number("factor", shape.LEAST_FACTOR, shape.MOST_FACTOR, _USUAL_BACKOFF.factor, "")
    if "power" in fields:
        values["power"] = said.number("power", 0, shape.MOST_POWER, _USUAL_BACKOFF.power, "")
        values["plus_s"] = said.number("plus_s", 0, LONGEST_S, _USUAL_BACKOFF.plus_s, "seconds")
    if "delays_s" in fields:
        values["delays_s"] = said.numbers("delays_s", 0, LONGEST_S, shape.MOST_DELAYS, "seconds")
        if not values["delays_s"] and said.is_fine("delays_s"):
            said.needs("delays_s", f"a list of 1 to {shape.MOST_DELAYS} numbers of seconds")
    return Backoff(kind, **values)


def _jitter(said: Reading | None) -> Jitter:
    if said is None:
        return Jitter()
    said.done(("kind", *_JITTER))
    kind = said.choice("kind", shape.JITTERS, _USUAL_JITTER.kind)
    if not said.is_fine("kind"):
        return Jitter()
    fields = shape.JITTER_FIELDS.get(kind, ())
    said.has_not([name for name in _JITTER if name not in fields], kind)
    bounds = {"fraction": (0.0, 1.0, "of the delay"), "seconds": (0.0, LONGEST_S, "seconds")}
    values = {}
    for name in fields:
        least, most, unit = bounds[name]
        if not said.has(name):
            said.needs(name, f"a number from {least:g} to {most:,.0f} {unit}")
        values[name] = said.number(name, least, most, least, unit)
    return Jitter(kind, **values)


def _retry_after(said: Reading | None) -> RetryAfter:
    if said is None:
        return RetryAfter()
    said.done(tuple(RetryAfter.__dataclass_fields__))
    usual = RetryAfter()
    return RetryAfter(
        respect=said.truth("respect", usual.respect),
        jitter=said.number("jitter", 0, 1, usual.jitter, "of what was asked for"),
        cap_s=said.number("cap_s", 0, LONGEST_S, usual.cap_s, "seconds"),
    )


def _class(said: Reading) -> ErrorClass:
    said.done(("error", "as"))
    error = _glob(said, "error")
    if not error and said.is_fine("error"):
        said.needs("error", "the name of an error's class, in which * matches anything")
    return ErrorClass(error, said.choice("as", shape.CLASSES, shape.TRANSIENT))


def _budget(said: Reading | None) -> Budget | None:
    if said is None:
        return None
    said.done(tuple(Budget.__dataclass_fields__))
    if not said.has("per_minute"):
        said.needs("per_minute", f"a number from 0 to {shape.MOST_PER_MINUTE:,.0f} retries a minute")
    per_minute = said.number("per_minute", 0, shape.MOST_PER_MINUTE, 0, "retries a minute")
    if 0 < per_minute < shape.LEAST_PER_MINUTE:
        # Slower than what is spent is remembered; of 1e-308 the time between two retries is no number any more.
        said.refuse(
            "per_minute", f"0, or at least {shape.LEAST_PER_MINUTE} retries a minute (one in a week)", per_minute
        )
    usual = min(shape.MOST_BURST, max(1, round(per_minute / 10))) if per_minute else 0
    burst = said.whole("burst", 0, shape.MOST_BURST, usual, "retries at once")
    if per_minute and not burst and said.is_fine("burst"):
        said.refuse("burst", "at least 1 where per_minute is more than 0", 0, "Nothing could ever be spent.")
    return Budget(per_minute, burst, _name(said, "group"))


def _poison(said: Reading | None) -> Poison | None:
    if said is None:
        return None
    said.done(tuple(Poison.__dataclass_fields__))
    usual = Poison()
    return Poison(
        said.whole("crashes", 1, shape.MOST_CRASHES, usual.crashes, "crashes"),
        said.number("window_s", 1, shape.LONGEST_WINDOW_S, usual.window_s, "seconds"),
    )


def _concurrency(said: Reading | None) -> Concurrency | None:
    if said is None:
        return None
    said.done(tuple(Concurrency.__dataclass_fields__))
    for name in ("key", "limit"):
        if not said.has(name):
            said.needs(
                name, "a path" if name == "key" else f"a whole number from 1 to {shape.MOST_AT_ONCE:,} jobs at once"
            )
    key = said.text("key", LONGEST_TEXT, "")
    if key and not _KEY.match(key):
        said.refuse("key", "tenant, queue, task, or a path such as kwargs.customer_id or args.0.tenant", key)
    return Concurrency(key, said.whole("limit", 1, shape.MOST_AT_ONCE, 1, "jobs at once"))


def _rate_limit(said: Reading | None) -> RateLimit | None:
    if said is None:
        return None
    said.done(tuple(RateLimit.__dataclass_fields__))
    if not said.has("max"):
        said.needs("max", f"a whole number from 1 to {shape.MOST_STARTS:,} starts")
    return RateLimit(
        said.whole("max", 1, shape.MOST_STARTS, 1, "starts"),
        said.number("per_s", shape.SHORTEST_PER_S, shape.LONGEST_PER_S, 1.0, "seconds"),
    )


def _time(said: Reading, field: str) -> datetime | None:
    text = said.text(field, LONGEST_TEXT, "")
    if not text:
        return None
    try:
        # Python 3.10 does not know the Z. A time without a zone is UTC, as everywhere.
        at = datetime.fromisoformat(text[:-1] + "+00:00" if text[-1] in "zZ" else text)
        if _YEARS[0] <= at.year < _YEARS[1]:
            return at.astimezone(_UTC) if at.tzinfo else at.replace(tzinfo=_UTC)
    except (ValueError, OverflowError):
        pass
    said.refuse(field, "a time such as 2026-11-20T10:00:00Z", text)
    return None
