"""Retry policy in the editor: one text per field of its document, the errors of each, and the nearest valid policy.

An input has the path of its field in the document (`backoff.first_delay_s`), as have the engine's refusals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.http import QueryDict

from dashboard.web import moments
from dashboard.web.quantities import NUMBER, SECONDS, SHARE, SPANS, TEXT, Kind
from jobs_admin import policies
from jobs_admin.core import policy as core
from jobs_admin.core.policy import PERMANENT, Backoff
from jobs_admin.core.policy.shape import BACKOFF_FIELDS, JITTER_FIELDS, OF_RETRIES
from jobs_admin.core.refused import Refused
from jobs_admin.models.access import Viewer
from jobs_admin.policies.changes import conflicts

KINDS: dict[str, Kind] = {
    "name": TEXT,
    "match.task": TEXT,
    "match.queue": TEXT,
    "match.source": TEXT,
    "mode": TEXT,
    "max_attempts": NUMBER,
    "backoff.kind": TEXT,
    "backoff.first_delay_s": SECONDS,
    "backoff.factor": NUMBER,
    "backoff.power": NUMBER,
    "backoff.plus_s": SECONDS,
    "backoff.delays_s": SPANS,
    "cap_s": SECONDS,
    "jitter.kind": TEXT,
    "jitter.fraction": SHARE,
    "jitter.seconds": SECONDS,
    "retry_after.jitter": SHARE,
    "retry_after.cap_s": SECONDS,
    "budget.per_minute": NUMBER,
    "budget.burst": NUMBER,
    "budget.group": TEXT,
    "poison.crashes": NUMBER,
    "poison.window_s": SECONDS,
    "concurrency.key": TEXT,
    "concurrency.limit": NUMBER,
    "rate_limit.max": NUMBER,
    "rate_limit.per_s": SECONDS,
    "breaker.dependency": TEXT,
    "breaker.max_hold_s": SECONDS,
    "exhausted": TEXT,
    "native": TEXT,
    "note": TEXT,
}
RESPECT = "retry_after.respect"
FILE_LOST, BREAKER = "file_lost", "breaker"
RETRIES, LEAVES_RETRIES = "retries", "leaves_retries"  # field of a document, and input
EXPIRES, EXPIRES_AT = "expires", "expires_at"
# Choices for the end of a policy, as time from now.
SPANS_OF_EXPIRY = {"1h": timedelta(hours=1), "4h": timedelta(hours=4), "1d": timedelta(days=1), "7d": timedelta(days=7)}
AT = "at"
# Parts that apply only to some kinds: values left in inputs of another kind are not part of the policy.
_OF_KIND = {"backoff": BACKOFF_FIELDS, "jitter": JITTER_FIELDS}
_LONGEST = 4_000
_INDEX = re.compile(r"\.\d+")
_ROW = re.compile(r"classes\.(\d+)")
MOST_ROWS = 60


@dataclass(slots=True)
class Row:
    """Class of the errors with one name."""

    error: str = ""
    as_: str = PERMANENT


@dataclass(slots=True)
class Draft:
    """Texts of the inputs. `document`: the resulting policy; `errors`: refusals by input."""

    texts: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    respects: bool = True  # respect Retry-After
    files_lost: bool = False  # store jobs that are acknowledged early while they run
    has_breaker: bool = False  # False: its inputs are not part of the policy
    leaves_retries: bool = False  # retries are left to the task: their inputs are not part of the policy
    expires: str = ""  # a key of SPANS_OF_EXPIRY, "at", or "": never
    errors: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Draft:
        """Return a document as inputs."""
        texts = {
            path: kind.write(value) for path, kind in KINDS.items() if (value := value_at(document, path)) is not None
        }
        if ends := document.get(EXPIRES_AT):
            texts[EXPIRES_AT] = _field_of(ends)
        rows = [Row(str(one.get("error", "")), str(one.get("as", ""))) for one in document.get("classes") or ()]
        respects = value_at(document, RESPECT) is not False
        leaves = document.get(RETRIES) is False
        return cls(
            texts,
            rows,
            respects,
            files_lost=document.get(FILE_LOST) is True,
            has_breaker=document.get(BREAKER) is not None,
            leaves_retries=leaves,
            expires=AT if ends else "",
        )

    @classmethod
    def from_form(cls, given: QueryDict) -> Draft:
        """Return the inputs of a submitted form."""
        texts = {path: given.get(path, "")[:_LONGEST].strip() for path in (*KINDS, EXPIRES_AT)}
        pairs = zip(given.getlist("class.error"), given.getlist("class.as"), strict=False)
        rows = [Row(error[:_LONGEST].strip(), as_) for error, as_ in pairs]
        named = [row for row in rows if row.error][:MOST_ROWS]
        return cls(
            texts,
            named,
            RESPECT in given,
            files_lost=FILE_LOST in given,
            has_breaker=BREAKER in given,
            leaves_retries=LEAVES_RETRIES in given,
            expires=given.get(EXPIRES, ""),
        )

    def document(self, now: datetime) -> dict[str, Any]:
        """Return the policy as the API accepts it, without empty fields. A duration until the end starts at `now`."""
        found: dict[str, Any] = {}
        for path, kind in KINDS.items():
            text = self.texts.get(path, "")
            if text and self._means_something(path):
                _set_value(found, path, kind.read(text))
        if self.leaves_retries:
            found[RETRIES] = False
        elif self.rows:
            found["classes"] = [{"error": row.error, "as": row.as_} for row in self.rows]
        if not self.leaves_retries:
            _set_value(found, RESPECT, self.respects)
        if self.files_lost:
            found[FILE_LOST] = True
        if self.has_breaker:
            found.setdefault(BREAKER, {})
        if self.expires in SPANS_OF_EXPIRY:
            ends = now + SPANS_OF_EXPIRY[self.expires] + timedelta(seconds=59)  # rounded up to a full minute
            found[EXPIRES_AT] = ends.replace(second=0).isoformat(timespec="seconds")
        elif self.expires == AT:
            found[EXPIRES_AT] = _expiry(self.texts.get(EXPIRES_AT, ""))
        return found

    def _means_something(self, path: str) -> bool:
        part, _, name = path.partition(".")
        if self.leaves_retries and part in OF_RETRIES:
            return False
        if part == BREAKER and not self.has_breaker:
            return False
        if part not in _OF_KIND or name in ("", "kind"):
            return True
        kind = self.texts.get(f"{part}.kind") or (Backoff.kind if part == "backoff" else "")
        return name in _OF_KIND[part].get(kind, ())

    def refuse(self, problems: Iterable[Any]) -> None:
        """Add each problem (`field`, `message`) to its input; those without an input are under `""`."""
        for problem in problems:
            row = _ROW.match(problem.field)
            if row and int(row[1]) < len(self.rows):
                message = f"{self.rows[int(row[1])].error}: {_sentence(problem)}"
                self.errors.setdefault("classes", []).append(message)
                continue
            path = _INDEX.sub("", problem.field)
            place = path if path in PLACES else _FALLS_TO.get(path, "")
            self.errors.setdefault(place, []).append(_sentence(problem) if place else problem.message)

    def refused_in(self, *paths: str) -> bool:
        """Return whether a field below these paths is refused, so that its fold is opened."""
        return any(name.startswith(paths) for name in self.errors if name)


# Inputs that can have errors.
PLACES = (*KINDS, RESPECT, FILE_LOST, BREAKER, RETRIES, EXPIRES_AT, "classes")
# A part that is refused as one -> the input that shows the error.
_FALLS_TO = {"backoff": "backoff.kind", "jitter": "jitter.kind", "match": "match.task", "budget": "budget.per_minute"}
_FALLS_TO |= {"concurrency": "concurrency.key", "rate_limit": "rate_limit.max", "poison": "poison.crashes"}


def _sentence(problem: Any) -> str:
    """Return the message without the name of the field, which is in its label: `This must be …`."""
    rest = problem.message.removeprefix(f"{problem.field} ")
    return problem.message if rest == problem.message else f"This {rest}"


def value_at(document: Mapping[str, Any], path: str) -> Any:
    found: Any = document
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _set_value(document: dict[str, Any], path: str, value: Any) -> None:
    *parts, name = path.split(".")
    for part in parts:
        document = document.setdefault(part, {})
    document[name] = value


def _expiry(text: str) -> str:
    """Return the end of a policy in UTC as in a document; an invalid time unchanged, for the refusal."""
    try:
        return moments.from_field(text).isoformat(timespec="seconds")
    except ValueError:
        return text


def _field_of(ends: Any) -> str:
    """Return the end of a document in the zone of the page, with seconds if it has any."""
    try:
        at = moments.local(datetime.fromisoformat(str(ends)))
    except ValueError:
        return str(ends)
    return at.strftime("%Y-%m-%dT%H:%M:%S").removesuffix(":00")


_TRIES = 8  # a field is refused at most twice: as typed, and as in force


def nearest_policy(
    draft: Draft,
    name: str,
    viewer: Viewer,
    now: datetime,
    *,
    in_force_document: Mapping[str, Any],
    is_reported: bool = False,
) -> tuple[core.Policy, dict[str, Any], bool]:
    """Return the nearest valid policy, its normal form, and whether it is the complete draft.

    Refusals are added to the draft's errors unless `is_reported`. Refused fields take their values from
    `in_force_document`.
    """
    document = draft.document(now)
    document["name"] = document.get("name") or name
    try:
        found = policies.check(viewer, document["name"], document)
        return found, core.document(found), True
    except Refused as refused:
        if not is_reported:
            draft.refuse(problems(refused))
    for n in range(_TRIES):
        try:
            found = core.parse(document)
            return found, core.document(found), n == 0
        except Refused as refused:
            for problem in refused.details["problems"]:
                _fall_back(document, problem.field, {**in_force_document, "name": name})
    return core.Policy(name=name), core.document(core.Policy(name=name)), False


def problems(refused: Refused) -> list[core.Problem]:
    """Return all problems of a draft."""
    return refused.details.get("problems") or [core.Problem(refused.field or "", refused.message)]


def _fall_back(document: dict[str, Any], path: str, in_force_document: Mapping[str, Any]) -> None:
    """Set the field to its value in force, or drop it (a list as one) if it has none or that was refused too."""
    name, _, rest = path.partition(".")
    inner, before = document.get(name), in_force_document.get(name)
    if rest and isinstance(inner, dict):
        _fall_back(inner, rest, before if isinstance(before, dict) else {})
    elif before is not None and before != inner:
        document[name] = deepcopy(before)
    else:
        document.pop(name, None)


def merge(was: Mapping[str, Any], now: Mapping[str, Any], yours: Mapping[str, Any]) -> dict[str, Any]:
    """Return your document, with the changes that others made in fields that you did not change."""
    found = deepcopy(dict(yours))
    for one in conflicts(was, now, yours):
        if one.yours == one.was:
            _set(found, one.field, one.now)
    return found


def _set(document: dict[str, Any], path: str, value: Any) -> None:
    name, _, rest = path.partition(".")
    if rest:
        inner = document.setdefault(name, {})
        _set(inner, rest, value)
        value = inner or None  # a part without values is dropped
    if value is None:
        document.pop(name, None)
    else:
        document[name] = value
