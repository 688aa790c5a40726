"""Structure of a jobs table: its configured columns, the form of its times, and why nothing may be sent to it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from jobs_admin.sources.base import SourceRefused
from jobs_admin.sources.jobs_table import times
from jobs_admin.sources.jobs_table.names import NEEDED, Names
from jobs_admin.sources.jobs_table.rows import HEAD_OF_PAYLOAD, MOST_PAYLOAD
from jobs_admin.sources.jobs_table.sql import Database, column_name, name
from jobs_admin.sources.jobs_table.times import zone as known

TIMES = ("updated_at", "scheduled_at", "locked_at", "created_at")
_WRITTEN = ("status", "updated_at", "attempts", "max_attempts", "scheduled_at", "locked_by", "locked_at")
_NAMED = re.compile(r"(?:AT TIME ZONE |timezone\()'([^']+)'", re.IGNORECASE)
_NOW = re.compile(r"\bnow\b|current_timestamp|localtimestamp|_timestamp\(", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Shape:
    table: str  # quoted
    columns: dict[str, str]  # ours -> theirs, quoted, or the preset's expression; only existing columns
    targets: dict[str, str]  # ours -> theirs, quoted, for an UPDATE
    types: dict[str, str]  # ours -> type
    forms: dict[str, str]  # forms of the times
    order: str  # expression of `updated_at` that sorts by time
    is_indexed: bool  # by time and status: new rows are found without reading the others
    lacking: tuple[str, ...]  # missing indexes
    closed: str  # why nothing may be sent, as a sentence; "" if it may
    p: str
    zone: str = "UTC"  # of times in PostgreSQL's `timestamp`

    def has(self, column: str) -> bool:
        return column in self.columns

    @property
    def status(self) -> str:
        """Status in the compared form."""
        return f"CAST({self.columns['status']} AS TEXT)" if self.types["status"] == "enum" else self.columns["status"]

    @property
    def read_order(self) -> str:
        """`order` as read and repeated in a condition: a driver may not represent times such as `infinity`."""
        return self.order if self.p == "?" else f"CAST({self.order} AS TEXT)"

    @property
    def identity(self) -> str:
        """Id as text, also inside a statement about another table."""
        return f"CAST({self.table}.{self.columns['id']} AS TEXT)"

    def moment(self, seconds: float, column: str) -> object:
        """Return a value for the column, or for a comparison with it."""
        form = self.forms[column]
        return times.format_time(seconds, times.SPACE if form == times.MIXED else form, self._zone)

    def seconds(self, at: object) -> float | None:
        """Return a position's time in Unix seconds."""
        is_local = self.forms["updated_at"] == times.WITHOUT_ZONE
        return times.read(times.number(at), self._zone if is_local else UTC)

    def turns_back(self, seconds: float) -> bool:
        """Return whether the clock of `updated_at` is turned back within some hours of this time."""
        if self.forms["updated_at"] != times.WITHOUT_ZONE:
            return False
        around = (datetime.fromtimestamp(seconds + off, UTC).astimezone(self._zone) for off in (-10800.0, 10800.0))
        return len({moment.utcoffset() for moment in around}) > 1

    @property
    def _zone(self) -> tzinfo:
        return times.zone(self.zone) or UTC

    def plain(self, at: object) -> object:
        """Return the stored form of a position's time, compared with `order`."""
        return at.isoformat(" ") if isinstance(at, datetime) else at

    def sane(self, at: object) -> object:
        """Return a position's time; None if it is not one of this table's, whose form may have changed."""
        is_number = self.forms["updated_at"] in (times.SECONDS, times.MILLISECONDS)
        known = times.read(times.number(at)) is not None
        return at if known and (self.p == "%s" or isinstance(at, int | float) == is_number) else None

    def is_id(self, job_id: str) -> bool:
        """Return whether a row can have this id: PostgreSQL rejects values that do not fit the type."""
        kind = self.types["id"]
        if self.p == "%s" and ("int" in kind or "serial" in kind):
            return job_id.removeprefix("-").isdecimal() and job_id.isascii() and len(job_id) <= 19
        if self.p == "%s" and kind == "uuid":
            return len(job_id) == 36 and all(c in "0123456789abcdefABCDEF-" for c in job_id)
        return "\0" not in job_id

    def selected(self, column: str) -> str:
        """Return the expression that reads a column, in the order of `rows.Job`."""
        if column not in self.columns:
            return "NULL"
        it, kind = self.columns[column], self.types[column]
        if column in TIMES and kind.startswith("timestamp"):
            if self.forms[column] == times.WITHOUT_ZONE:
                it = f"({it} AT TIME ZONE '{self.zone}')"
            return f"CAST(extract(epoch FROM {it}) AS double precision)"
        if column == "payload":
            complete = it if kind == "bytea" or self.p == "?" else f"CAST({it} AS TEXT)"
            return f"CASE WHEN {self.size} > {MOST_PAYLOAD} THEN substr({complete}, 1, {HEAD_OF_PAYLOAD}) ELSE {complete} END"
        if column == "last_error":
            return f"substr(CAST({it} AS TEXT), 1, 200000)"
        if column in ("attempts", "max_attempts", "priority", *TIMES):
            return it
        return f"CAST({it} AS TEXT)"

    @property
    def size(self) -> str:
        """Expression for the length of the payload, in characters or bytes."""
        if "payload" not in self.columns:
            return "0"
        it = self.columns["payload"]
        return f"length({it if self.p == '?' or self.types['payload'] == 'bytea' else f'CAST({it} AS TEXT)'})"


def find(db: Database, names: Names) -> Shape:
    """Return the structure of the table. Raises SourceRefused if it cannot even be read, SourceUnreachable."""
    there = db.columns(names.table)
    if not there:
        raise SourceRefused(
            f"There is no table {names.table!r}. Set `table` in sources.toml to the name of the jobs table. Nothing was read."
        )
    missing = [theirs for theirs in names.columns.values() if theirs not in there]
    for ours in NEEDED:
        if names.preset.versions and names.columns[ours] in missing:
            raise SourceRefused(f"{_unknown_version(names, there)}. Nothing was read.")
        if names.columns[ours] in missing:
            raise SourceRefused(
                f"The table {names.table} has no column {names.columns[ours]!r} (for {ours}), which is required. "
                "Set its name in [sources.….columns]. Nothing was read."
            )
    percent = db.p == "%s"
    had = {ours: theirs for ours, theirs in names.columns.items() if theirs in there}
    types = {ours: there[theirs] for ours, theirs in had.items()}
    first = db.time_form(names.table, had["id"], had["updated_at"], types["updated_at"])
    forms = {ours: db.time_form(names.table, had["id"], had[ours], types[ours], first) for ours in TIMES if ours in had}
    targets = {ours: column_name(theirs, percent=percent) for ours, theirs in had.items()}
    expressions = names.preset.expressions
    quoted = {
        ours: expressions[ours][db.p].replace("{it}", it) if ours in expressions else it for ours, it in targets.items()
    }
    indexed = db.indexed(names.table)
    zone = _zone(db, names, had, forms)
    if zone.doubt and forms.get("locked_at") == times.WITHOUT_ZONE:
        del quoted["locked_at"]  # otherwise a running row would be reported as lost
    is_mixed = forms["updated_at"] == times.MIXED
    lacking = tuple(had[ours] for ours in ("updated_at", "status") if had[ours] not in indexed)
    return Shape(
        table=name(names.table, percent=percent),
        columns=quoted,
        targets=targets,
        types=types,
        forms=forms,
        order=db.comparable(quoted["updated_at"], forms["updated_at"]),
        is_indexed=not lacking and not is_mixed,
        lacking=lacking,
        closed=zone.doubt or _unknown_version(names, there) or _closed(db, names, missing, forms),
        p=db.p,
        zone=zone.name,
    )


def _zone(db: Database, names: Names, had: dict[str, str], forms: dict[str, str]) -> Zone:
    naive = [had[ours] for ours, form in forms.items() if form == times.WITHOUT_ZONE]
    if not naive or names.timezone:
        return Zone(names.timezone or "UTC")
    found = find_zone(db, names.table, naive)
    if not found.doubt:
        return found
    which = ", ".join(repr(one) for one in naive)
    return Zone(
        found.name,
        f"the time zone of the times of {names.table} is unknown ({which}: timestamp without time zone): "
        f'{found.doubt}. Set timezone = "{found.name}" or "UTC" in sources.toml. Until then no row is reported as lost',
    )


def _unknown_version(names: Names, there: Mapping[str, str]) -> str:
    """Return why a preset's table has an unknown version; "" if it is known, or without a preset."""
    preset = names.preset
    if not preset.versions:
        return ""
    known = {*names.columns.values(), *preset.other_columns}
    lacking, unknown = sorted(known - there.keys()), sorted(there.keys() - known)
    if not lacking and not unknown:
        return ""
    what = f"has no column {lacking[0]!r}" if lacking else f"has a column {unknown[0]!r}"
    return f"the table {names.table} {what}, unlike that of {preset.versions}. Use one of these, or update Redrive"


def _closed(db: Database, names: Names, missing: list[str], forms: dict[str, str]) -> str:
    if missing:
        which = ", ".join(repr(one) for one in missing)
        return f'the table {names.table} has no column {which}. Set its name in [sources.….columns], or "" if there is none'
    words = db.words(names.table, names.columns["status"])
    if unknown := sorted((words or set()) - set(names.statuses)):
        shown = ", ".join(repr(word[:40]) for word in unknown[:5])
        if names.preset.versions:
            return f"rows of {names.table} have a status that {names.preset.versions} do not write: {shown}"
        return (
            f"rows of {names.table} have an unknown status: {shown}. "
            "Set its meaning in [sources.….statuses], or list it in `others` to ignore it"
        )
    if mixed := [column for column, form in forms.items() if form == times.MIXED]:
        return f"the column {names.columns[mixed[0]]!r} has times in more than one form, so none can be written"
    return db.missing_rights(names.table, names.ledger)


# Time zone of a jobs table's times without one. No column states it, so it may be a guess.


@dataclass(frozen=True, slots=True)
class Zone:
    name: str  # known to `times.zone`
    doubt: str = ""  # why it is a guess, as part of a sentence; "" if it is certain


def find_zone(db: Database, table: str, columns: Sequence[str]) -> Zone:
    """Return the zone of these columns of PostgreSQL's `timestamp`.

    They were written by the column's default, or by now() in the zone with which a session starts: only certain if all
    sessions start with the same one.
    """
    named, is_plain = set(), False
    for (default,) in db.read(
        "SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid "
        "AND a.attnum = d.adnum WHERE d.adrelid = to_regclass(%s) AND a.attname = ANY(%s::text[])",
        [name(table), list(columns)],
    ):
        zones = set(_NAMED.findall(default))
        named |= zones
        is_plain = is_plain or (not zones and _NOW.search(default) is not None)
    begins, doubt = _sessions(db)
    if named:
        found = sorted(named)
        if len(found) == 1 and known(found[0]) and not (is_plain and (doubt or not _are_same(found[0], begins))):
            return Zone(found[0])
        return Zone(
            found[0] if known(found[0]) else begins,
            f"their defaults are written in more than one zone, {', '.join(found)}",
        )
    if doubt or _are_same(begins, "UTC"):
        return Zone(begins, doubt)
    if is_plain:
        return Zone(begins)
    return Zone(begins, f"sessions begin in {begins}, and no default of a column shows whether that is what is written")


def _sessions(db: Database) -> tuple[str, str]:
    """Return the zone with which sessions start, and why that may not apply to all of them."""
    ((begins, is_our_own, others),) = db.read(
        "SELECT (SELECT reset_val FROM pg_settings WHERE name = 'TimeZone'), "
        "coalesce(bool_or(s.setrole = (SELECT oid FROM pg_roles WHERE rolname = session_user)), false), "
        "array_agg(DISTINCT substr(one, 10)) FROM pg_db_role_setting s, unnest(s.setconfig) one "
        "WHERE lower(one) LIKE 'timezone=%%' "
        "AND s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))",
        (),
    )
    zone = str(begins)
    if known(zone) is None:
        return "UTC", f"sessions begin in {zone[:60]!r}, a zone that is not known here"
    differing = [str(one)[:60] for one in others or () if not _are_same(str(one).strip("'\""), zone)]
    if differing:
        return zone, f"sessions begin in {zone}, and some in {', '.join(differing[:3])}"
    if is_our_own and not _are_same(zone, "UTC"):
        return zone, f"{zone} is set for our own role, and what others begin in is not seen"
    return zone, ""


def _are_same(one: str, other: str) -> bool:
    """Return whether clocks agree in both zones this year."""
    first, second = known(one), known(other)
    if first is None or second is None:
        return False
    days = [datetime(datetime.now(UTC).year, month, 1, tzinfo=UTC) for month in range(1, 13)]
    return all(day.astimezone(first).utcoffset() == day.astimezone(second).utcoffset() for day in days)
