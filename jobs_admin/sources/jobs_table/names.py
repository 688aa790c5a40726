"""Names of a jobs table, its columns and statuses: defaults, a preset's, or configured ones.

A preset is the jobs table of a known library, as its migrations create it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jobs_admin.sources.base import SourceRefused
from jobs_admin.sources.jobs_table import times

# Required for reading; an empty name declares any other column missing.
NEEDED = ("id", "status", "attempts", "updated_at")

_OPTIONS = {
    "queues", "table", "ledger", "columns", "statuses", "stale_after_s", "discard_deletes", "outcome_within_s",
    "attempts_at_start", "timezone",
}  # fmt: skip
_SET_BY_PRESET = {"columns", "statuses", "attempts_at_start"}
_LONGEST_NAME = 63  # PostgreSQL's


_COLUMNS = {
    "id": "id", "type": "type", "payload": "payload", "status": "status", "attempts": "attempts",
    "max_attempts": "max_attempts", "last_error": "last_error", "locked_by": "locked_by", "locked_at": "locked_at",
    "scheduled_at": "scheduled_at", "updated_at": "updated_at", "created_at": "created_at",
    "queue": "", "priority": "", "tenant": "", "error_type": "",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Preset:
    """Schema of a jobs table. SQL is by the database's parameter style: ? for SQLite, %s for PostgreSQL."""

    table: str
    columns: Mapping[str, str]  # ours -> theirs; "" if missing
    statuses: Mapping[str, str]
    versions: str = ""  # known versions of the library; "": the configuration names columns and statuses
    other_columns: frozenset[str] = frozenset()  # known and not read; any other column means an unknown version
    # ours -> expression to read; `{it}`: theirs
    expressions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    has_retries: bool = True  # whether workers retry failed jobs
    nests_arguments: bool = False  # the payload is {"args": […], "kwargs": {…}}
    attempts_at_start: bool = False
    # Columns that sending writes besides the status, and those if attempts start again; None: the columns of a plain
    # table.
    sent: Mapping[str, object] | None = None
    fresh_start: Mapping[str, object] = field(default_factory=dict)


PLAIN = Preset("jobs", _COLUMNS, {one: one for one in ("pending", "running", "failed", "completed")})

# Rows that may run at any time have the year 9999.
_IS_DEFERRED = "CASE WHEN {it} < '9998-01-01' THEN {it} END"
DJANGO_TASKS = Preset(
    table="django_tasks_database_dbtaskresult",
    columns={
        "id": "id", "type": "task_path", "payload": "args_kwargs", "status": "status", "attempts": "worker_ids",
        "max_attempts": "", "last_error": "traceback", "locked_by": "worker_ids", "locked_at": "started_at",
        "scheduled_at": "run_after", "updated_at": "finished_at", "created_at": "enqueued_at",
        "queue": "queue_name", "priority": "priority", "tenant": "", "error_type": "exception_class_path",
    },
    statuses={"pending": "READY", "running": "RUNNING", "failed": "FAILED", "completed": "SUCCESSFUL"},
    versions="django-tasks-db 0.12 and 0.13",
    other_columns=frozenset({"backend_name", "return_value"}),
    expressions={
        "attempts": {
            "?": "json_array_length({it})",
            "%s": "CASE jsonb_typeof({it}) WHEN 'array' THEN jsonb_array_length({it}) ELSE 0 END",
        },
        "locked_by": {"?": "json_extract({it}, '$[#-1]')", "%s": "({it} ->> -1)"},
        "scheduled_at": {"?": _IS_DEFERRED, "%s": _IS_DEFERRED},
    },
    has_retries=False,
    nests_arguments=True,
    attempts_at_start=True,
    sent={"updated_at": None, "locked_at": None},
    fresh_start={"attempts": "[]"},
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Names:
    table: str
    ledger: str
    columns: Mapping[str, str]  # ours -> theirs, without columns that the table does not have
    pending: str
    running: str
    failed: str
    completed: str
    others: tuple[str, ...]  # known statuses that are left alone
    stale_after_s: float
    discard_deletes: bool
    outcome_within_s: float
    attempts_at_start: bool  # `attempts` counts started executions, not failed ones
    timezone: str  # of PostgreSQL's times without a zone; "" if it must be detected
    preset: Preset = PLAIN

    def has(self, column: str) -> bool:
        return column in self.columns

    @property
    def statuses(self) -> tuple[str, ...]:
        return (self.pending, self.running, self.failed, self.completed, *self.others)


def read(source: str, options: Mapping[str, Any], preset: Preset = PLAIN) -> Names:
    """Parse the options of `sources.toml`. Raises SourceRefused, with a sentence, for unusable ones."""

    def refuse(what: str) -> SourceRefused:
        return SourceRefused(f"Source {source}: {what}")

    known = _OPTIONS - _SET_BY_PRESET if preset.versions else _OPTIONS
    if unknown := sorted(options.keys() - known):
        raise refuse(f"the option {unknown[0]!r} is not known; known: {', '.join(sorted(known))}.")
    columns = _words(options.get("columns", {}), preset.columns, "columns", refuse)
    if missing := [name for name in NEEDED if not columns[name]]:
        raise refuse(f"the column for {missing[0]!r} is required.")
    given = options.get("statuses", {})
    others = given.get("others", []) if isinstance(given, Mapping) else []
    if not isinstance(others, list) or not all(isinstance(word, str) and word for word in others):
        raise refuse("statuses.others must be a list of values.")
    if isinstance(given, Mapping):
        given = {name: word for name, word in given.items() if name != "others"}
    statuses = _words(given, preset.statuses, "statuses", refuse)
    words = [*statuses.values(), *others]
    if len(set(words)) < len(words) or "" in words:
        raise refuse("each status needs its own value.")
    table = _table(options.get("table", preset.table), "table", refuse)
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
        attempts_at_start=_yes_or_no(
            options.get("attempts_at_start", preset.attempts_at_start), "attempts_at_start", refuse
        ),
        timezone=_timezone(options.get("timezone", ""), refuse),
        preset=preset,
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
    """Return whether two names may mean one table: SQLite ignores case, and a missing schema may be any."""
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


# From the tutorial's table ("Database-Backed Queues"): `failJob` and its queries use all names except the last four.
