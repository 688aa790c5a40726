"""Names of a jobs table, its columns and its statuses: the usual names, or those of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs_admin.sources.base import SourceRefused
from jobs_admin.sources.jobs_table import times

# Of the tutorial's table ("Database-Backed Queues"): `failJob` and its queries name all of them but the last two.
COLUMNS = {
    "id": "id", "type": "type", "payload": "payload", "status": "status", "attempts": "attempts",
    "max_attempts": "max_attempts", "last_error": "last_error", "locked_by": "locked_by", "locked_at": "locked_at",
    "scheduled_at": "scheduled_at", "updated_at": "updated_at", "created_at": "created_at",
    "queue": "", "priority": "", "tenant": "",
}  # fmt: skip
# Without these nothing can be read; any other may be declared missing by an empty name.
NEEDED = ("id", "status", "attempts", "updated_at")
STATUSES = {"pending": "pending", "running": "running", "failed": "failed", "completed": "completed"}

_OPTIONS = {
    "queues", "table", "ledger", "columns", "statuses", "stale_after_s", "discard_deletes", "outcome_within_s",
    "attempts_at_start", "timezone",
}  # fmt: skip
_LONGEST_NAME = 63  # PostgreSQL's


@dataclass(frozen=True, slots=True)
class Names:
    table: str
    ledger: str
    columns: Mapping[str, str]  # ours -> theirs; without those that the table does not have
    pending: str
    running: str
    failed: str
    completed: str
    others: tuple[str, ...]  # words that are known, and left alone
    stale_after_s: float
    discard_deletes: bool
    outcome_within_s: float
    attempts_at_start: bool  # their `attempts` counts started executions, not failed ones
    timezone: str  # of PostgreSQL's times without a zone; "" where it is found out

    def has(self, column: str) -> bool:
        return column in self.columns

    @property
    def statuses(self) -> tuple[str, ...]:
        return (self.pending, self.running, self.failed, self.completed, *self.others)


def read(source: str, options: Mapping[str, Any]) -> Names:
    """Parse the options of `sources.toml`. Raises SourceRefused, with a sentence, for those that cannot be used."""

    def refuse(what: str) -> SourceRefused:
        return SourceRefused(f"Source {source}: {what}")

    if unknown := sorted(options.keys() - _OPTIONS):
        raise refuse(f"the option {unknown[0]!r} is not known; known: {', '.join(sorted(_OPTIONS))}.")
    columns = _words(options.get("columns", {}), COLUMNS, "columns", refuse)
    if missing := [name for name in NEEDED if not columns[name]]:
        raise refuse(f"the column for {missing[0]!r} is required.")
    given = options.get("statuses", {})
    others = given.get("others", []) if isinstance(given, Mapping) else []
    if not isinstance(others, list) or not all(isinstance(word, str) and word for word in others):
        raise refuse("statuses.others must be a list of values.")
    if isinstance(given, Mapping):
        given = {name: word for name, word in given.items() if name != "others"}
    statuses = _words(given, STATUSES, "statuses", refuse)
    words = [*statuses.values(), *others]
    if len(set(words)) < len(words) or "" in words:
        raise refuse("each status needs its own value.")
    table = _table(options.get("table", "jobs"), "table", refuse)
    ledger = _table(options.get("ledger", "redrive_ledger"), "ledger", refuse)
    if _may_be_one(table, ledger):
        raise refuse(f"ledger {ledger!r} may be the jobs table {table!r} itself: name a table that holds nothing else.")
    return Names(
        table=table,
        ledger=ledger,
        columns={ours: theirs for ours, theirs in columns.items() if theirs},
        **statuses,
        others=tuple(others),
        stale_after_s=_seconds(options.get("stale_after_s", 900), "stale_after_s", refuse),
        discard_deletes=_yes_or_no(options.get("discard_deletes", False), "discard_deletes", refuse),
        outcome_within_s=_seconds(options.get("outcome_within_s", 3600), "outcome_within_s", refuse),
        attempts_at_start=_yes_or_no(options.get("attempts_at_start", False), "attempts_at_start", refuse),
        timezone=_timezone(options.get("timezone", ""), refuse),
    )


def _words(given: Any, known: Mapping[str, str], where: str, refuse: Any) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise refuse(f"{where} is a table of names: [sources.{{name}}.{where}].")
    if unknown := sorted(str(name) for name in given if name not in known):
        raise refuse(f"{where}.{unknown[0]} is not known; known: {', '.join(known)}.")
    for name, word in given.items():
        if not isinstance(word, str) or "\0" in word or len(word.encode("utf-8", "replace")) > _LONGEST_NAME:
            raise refuse(f"{where}.{name} must be a name of at most {_LONGEST_NAME} bytes.")
    return {**known, **given}


def _table(name: Any, option: str, refuse: Any) -> str:
    parts = name.split(".") if isinstance(name, str) else []
    if not 1 <= len(parts) <= 2 or any(not part or "\0" in part or len(part) > _LONGEST_NAME for part in parts):
        raise refuse(f"{option} must name a table: `jobs`, or `schema.jobs`.")
    return str(name)


def _may_be_one(table: str, other: str) -> bool:
    """Return whether two names may be of one table: SQLite ignores case, and a missing schema may be any."""
    (schema, _, last), (others, _, others_last) = (name.casefold().rpartition(".") for name in (table, other))
    return last == others_last and (schema == others or not schema or not others)


def _seconds(value: Any, option: str, refuse: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 10**8:
        raise refuse(f"{option} must be a number of seconds from 1 on.")
    return float(value)


def _timezone(value: Any, refuse: Any) -> str:
    if not isinstance(value, str) or (value and times.zone(value) is None):
        raise refuse("timezone must be the name of a time zone, such as UTC or Europe/Berlin.")
    return value


def _yes_or_no(value: Any, option: str, refuse: Any) -> bool:
    if not isinstance(value, bool):
        raise refuse(f"{option} must be true or false.")
    return value
