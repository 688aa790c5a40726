"""The time zone of a jobs table's times without one. No column states it; it is certain, or a guess."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from jobs_admin.sources.jobs_table.sql import Database, name
from jobs_admin.sources.jobs_table.times import zone as known

_NAMED = re.compile(r"(?:AT TIME ZONE |timezone\()'([^']+)'", re.IGNORECASE)
_NOW = re.compile(r"\bnow\b|current_timestamp|localtimestamp|_timestamp\(", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Zone:
    name: str  # one that `times.zone` knows
    doubt: str = ""  # why it is a guess, a part of a sentence; "" where it is none


def find(db: Database, table: str, columns: Sequence[str]) -> Zone:
    """Find the zone of these columns of PostgreSQL's `timestamp`.

    They were written by the default of the column, or else by a session's now() in the zone in which it began: that is
    known only where all begin in the same one.
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
    """The zone in which sessions begin, and why that may not hold for all of them."""
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
    """Return whether clocks agree in both zones, this year."""
    first, second = known(one), known(other)
    if first is None or second is None:
        return False
    days = [datetime(datetime.now(UTC).year, month, 1, tzinfo=UTC) for month in range(1, 13)]
    return all(day.astimezone(first).utcoffset() == day.astimezone(second).utcoffset() for day in days)
