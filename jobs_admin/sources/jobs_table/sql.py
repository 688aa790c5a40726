"""Database of a jobs table, SQLite or PostgreSQL, with one interface and short statements.

Slow statements are cancelled, a writing transaction contains at most one batch, and nothing waits for a hanging server:
workers use the same database.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote as url_quote
from urllib.parse import unquote

from jobs_admin.core import service_url
from jobs_admin.sources.base import SourceRefused, SourceUnreachable
from jobs_admin.sources.jobs_table import times

_STATEMENT_S = 3.0
_LOCK_S = 1.0
_COUNT_S, _COUNT_LOCKED_S = 2.0, 0.1  # the latter if a reader blocks writers (SQLite without WAL)
_SAMPLED_ROWS = 500  # latest rows, from which the form of times is detected
_JSON_NULLS = ""  # key in a stored row that lists the columns with a JSON null
_HANGS_S = 4.5  # then the connection is closed, so that an error is shown within 5 s

Row = Sequence[Any]


class TookTooLong(SourceUnreachable):
    """A statement was cancelled. The database is available."""


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """Identity of a table, which distinguishes it from another table with its name and from an older copy."""

    place: str  # another value is another table
    tides: tuple[int, ...]  # numbers that only increase
    is_sure: bool  # those two suffice: no older or other copy looks the same


class Database(Protocol):
    p: str  # parameter style of a statement
    counts_within_s: float  # limit of a counting statement
    has_one_writer: bool  # writers wait for other writers

    def read(self, sql: str, values: Sequence[object] = (), *, within_s: float = _STATEMENT_S) -> list[Row]:
        """Return all rows. Raises SourceUnreachable, TookTooLong, SourceRefused for forbidden statements."""

    def changing(self) -> contextlib.AbstractContextManager[Run]:
        """Return a transaction; an error in the block rolls it back. Raises like `read`."""

    def columns(self, table: str) -> dict[str, str]:
        """Return the columns with their types, in lower case; {} if the table does not exist."""

    def indexed(self, table: str) -> set[str]:
        """Return the first columns of indexes that contain all rows."""

    def time_form(self, table: str, id: str, column: str, type: str, like: str = times.SPACE) -> str:
        """Return the form of a column's times; `like`, another column's form, if there are none yet."""

    def comparable(self, column: str, form: str) -> str:
        """Return an expression that sorts times, if the column itself does not."""

    def table_identity(self, table: str) -> TableIdentity: ...

    def row_text(self, table: str, where: str, values: Sequence[object]) -> str | None:
        """Return one row with all columns as text, for `put_row`; None if there is none.

        Locked until the surrounding transaction ends.
        """

    def put_row(self, run: Run, table: str, text: str) -> None:
        """Insert a row read by `row_text`; generated columns are computed again. Raises like `read`."""

    def missing_rights(self, table: str, ledger: str) -> str:
        """Return the right missing for sending, as a sentence; "" if none is missing."""

    def may_read(self, table: str) -> bool:
        """Return whether an existing table may be read."""

    def grants(self, table: str, rights: Sequence[str]) -> list[str]:
        """Return the statement that grants those of the rights that the role lacks; all of them if the table does
        not exist.
        """

    def words(self, table: str, column: str) -> set[str] | None:
        """Return the distinct values of a column; None if that takes too long."""

    def close(self) -> None: ...


class Run(Protocol):
    def __call__(self, sql: str, values: Sequence[object] = ()) -> int:
        """Run a statement. Return the number of rows changed."""


def name(text: str, *, percent: bool = False) -> str:
    """Return a quoted identifier; `percent`: for a driver that interprets %."""
    quoted = ".".join('"{}"'.format(part.replace('"', '""')) for part in text.split("."))
    return quoted.replace("%", "%%") if percent else quoted


def column_name(text: str, *, percent: bool = False) -> str:
    quoted = '"{}"'.format(text.replace('"', '""'))  # a column's name may contain dots
    return quoted.replace("%", "%%") if percent else quoted


def open_database(source: str, url: str) -> Database:
    """Return the database of a URL. Opens no connection. Raises SourceRefused for an unusable one."""
    scheme = url.partition("://")[0].lower()
    if scheme == "sqlite":
        path = unquote(url.partition("://")[2].partition("?")[0])
        if not path.startswith("/") or len(path) < 2 or "\0" in path:
            raise SourceRefused(
                f"Source {source}: the url of a SQLite file is sqlite:///path.db, or sqlite:////absolute/path.db."
            )
        return _SQLite(Path(path[1:]).absolute())
    if scheme in ("postgresql", "postgres"):
        return _PostgreSQL(source, url)
    raise SourceRefused(f"Source {source}: the url of a jobs table begins with sqlite:/// or postgresql://.")


class _SQLite:
    p = "?"
    has_one_writer = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._of: tuple[int, int] | None = None  # process, and file (inode), of the connection
        self._ends = 0.0
        self.counts_within_s = _COUNT_LOCKED_S

    def read(self, sql: str, values: Sequence[object] = (), *, within_s: float = _STATEMENT_S) -> list[Row]:
        with self._connected(within_s) as connection:
            return connection.execute(sql, values).fetchall()

    @contextlib.contextmanager
    def changing(self) -> Iterator[Run]:
        with self._connected(_STATEMENT_S) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield lambda sql, values=(): connection.execute(sql, values).rowcount
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def columns(self, table: str) -> dict[str, str]:
        rows = self.read("SELECT name, type FROM pragma_table_info(?)", [table])
        return {str(row[0]): str(row[1]).lower() for row in rows}

    def indexed(self, table: str) -> set[str]:
        rows = self.read(
            "SELECT i.name FROM pragma_index_list(?) l, pragma_index_info(l.name) i WHERE i.seqno = 0 AND NOT l.partial",
            [table],
        )
        return {str(row[0]) for row in rows}

    def time_form(self, table: str, id: str, column: str, type: str, like: str = times.SPACE) -> str:
        it = column_name(column)
        latest = f"SELECT {it} FROM {name(table)} ORDER BY {column_name(id)} DESC LIMIT {_SAMPLED_ROWS}"
        rows = self.read(f"SELECT {it} FROM ({latest}) WHERE {it} IS NOT NULL")
        is_number = any(word in type for word in ("int", "real", "num", "float"))
        return times.form((row[0] for row in rows), _form_like(like, is_number))

    def comparable(self, column: str, form: str) -> str:
        return f"strftime('%Y-%m-%d %H:%M:%f', {column})" if form == times.MIXED else column

    def table_identity(self, table: str) -> TableIdentity:
        ((version,),) = self.read("PRAGMA schema_version")
        tides = [int(version)]
        if self.read("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'"):
            rows = self.read("SELECT seq FROM sqlite_sequence WHERE name = ?", [table])
            tides.append(int(rows[0][0]) if rows else 0)
        return TableIdentity(str(self._path.stat().st_ino), tuple(tides), is_sure=len(tides) > 1 and tides[1] > 0)

    def row_text(self, table: str, where: str, values: Sequence[object]) -> str | None:
        columns = list(self.columns(table))
        # Text as bytes: it may not be UTF-8.
        parts = ", ".join(
            f"typeof({it}), CASE typeof({it}) WHEN 'text' THEN CAST({it} AS BLOB) ELSE {it} END"
            for it in map(column_name, columns)
        )
        rows = self.read(f"SELECT {parts} FROM {name(table)} WHERE {where}", values)
        if not rows:
            return None
        cells = zip(columns, rows[0][::2], rows[0][1::2], strict=True)
        return json.dumps({it: [kind, _as_text(value)] for it, kind, value in cells})

    def put_row(self, run: Run, table: str, text: str) -> None:
        cells: dict[str, tuple[str, str | int | None]] = json.loads(text)
        columns = ", ".join(column_name(it) for it in cells)
        places = ", ".join("CAST(? AS TEXT)" if kind == "text" else "?" for kind, _ in cells.values())
        values = [_from_text(kind, value) for kind, value in cells.values()]
        run(f"INSERT INTO {name(table)} ({columns}) VALUES ({places})", values)

    def missing_rights(self, table: str, ledger: str) -> str:
        if os.access(self._path, os.W_OK) and os.access(self._path.parent, os.W_OK):
            return ""
        return f"this process may not write the file {self._path.name} or its folder"

    def may_read(self, table: str) -> bool:
        return True

    def grants(self, table: str, rights: Sequence[str]) -> list[str]:
        return []

    def words(self, table: str, column: str) -> set[str] | None:
        # From one value to the next, which takes microseconds with an index on the column.
        it, where = column_name(column), name(table)
        statement = (
            f"WITH RECURSIVE word(w) AS (SELECT min({it}) FROM {where} UNION ALL "
            f"SELECT (SELECT min({it}) FROM {where} WHERE {it} > w) FROM word WHERE w IS NOT NULL LIMIT 50) "
            "SELECT w FROM word WHERE w IS NOT NULL"
        )
        try:
            return {str(row[0]) for row in self.read(statement, within_s=self.counts_within_s)}
        except TookTooLong:
            return None

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._of and self._of[0] == os.getpid():
                self._connection.close()
            self._connection = None

    @contextlib.contextmanager
    def _connected(self, within_s: float) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._ends = time.monotonic() + within_s
            try:
                yield self._connect()
            except sqlite3.Error as error:
                raise self._translate_error(error, within_s) from error
            except OSError as error:
                raise SourceUnreachable(f"The file {self._path.name} does not exist: {error.strerror}.") from error

    def _connect(self) -> sqlite3.Connection:
        # Return a connection to the file that currently has this name: a moved file is no longer used.
        of = (os.getpid(), self._path.stat().st_ino)
        if self._connection is None or of != self._of:
            self.close()
            # Never created if it does not exist; and a read-only file is still read.
            mode = "rw" if os.access(self._path, os.W_OK) else "ro"
            self._connection = sqlite3.connect(
                f"file:{url_quote(str(self._path))}?mode={mode}",
                uri=True,
                timeout=_LOCK_S,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=50,
            )
            # Invalid UTF-8 in a text must not prevent reading the rows around it.
            self._connection.text_factory = lambda text: text.decode("utf-8", "replace")
            self._connection.set_progress_handler(lambda: time.monotonic() > self._ends, 2_000)
            self._of = of
            ((journal,),) = self._connection.execute("PRAGMA journal_mode").fetchall()
            self.counts_within_s = _COUNT_S if str(journal).lower() == "wal" else _COUNT_LOCKED_S
        return self._connection

    def _translate_error(self, error: sqlite3.Error, within_s: float) -> Exception:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        where = self._path.name
        if code == sqlite3.SQLITE_INTERRUPT:
            return TookTooLong(f"{where} did not answer within {within_s:g} s.")
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return SourceUnreachable(f"{where} is locked by another writer for longer than {_LOCK_S:g} s.")
        if code == sqlite3.SQLITE_READONLY:
            return SourceRefused(f"This process may not write {where}.")
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL):
            return SourceUnreachable(f"{where} cannot be opened or written: {error}.")
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return SourceUnreachable(f"{where} is no whole SQLite database: {error}.")
        return SourceRefused(f"{where}: {error}.")


class _PostgreSQL:
    p = "%s"
    has_one_writer = False
    counts_within_s = _COUNT_S

    def __init__(self, source: str, url: str) -> None:
        try:
            import psycopg
            from psycopg.conninfo import conninfo_to_dict
        except ModuleNotFoundError as error:
            raise SourceRefused(
                f"Source {source}: psycopg is not installed: run `pip install 'redrive[postgres]'`."
            ) from error

        # Parsed by the driver: only then is the server certainly not part of the password.
        try:
            service_url.split(url)
            parts = conninfo_to_dict(url)
        except (ValueError, psycopg.Error):
            parts = {"host": "@"}
        host, port = str(parts.get("host") or ""), str(parts.get("port") or 5432)
        if "@" in host or not port.isdecimal():
            # None of it is shown, not even in the original error.
            raise SourceRefused(
                f"Source {source}: the url cannot be read as postgresql://user:…@host:port/name. "
                "Write @ : / # ? % in a user or password as %40 %3A %2F %23 %3F %25."
            )
        self._where = f"{host or 'the local server'}:{port}"
        self._secrets = [str(parts[word]) for word in ("password", "sslpassword") if parts.get(word)]
        self._psycopg = psycopg
        self._url = url
        self._lock = threading.RLock()
        self._connection: psycopg.Connection[Any] | None = None
        self._of = 0
        self._is_new = False

    def read(self, sql: str, values: Sequence[object] = (), *, within_s: float = _STATEMENT_S) -> list[Row]:
        began = time.monotonic()
        had = self._connection
        try:
            return self._read(sql, values, within_s)
        except TookTooLong:
            raise
        except SourceUnreachable:
            # A connection closed while idle says nothing about the server.
            if had is None or time.monotonic() - began > 1:
                raise
            return self._read(sql, values, within_s)

    def _read(self, sql: str, values: Sequence[object], within_s: float) -> list[Row]:
        with self._connected() as connection:
            if within_s != _STATEMENT_S:
                connection.execute("SELECT set_config('statement_timeout', %s, false)", [f"{round(within_s * 1000)}ms"])
            try:
                # Never prepared: a stored plan would outlive its table, and poolers do not support them.
                rows: list[Row] = connection.execute(sql, values, prepare=False).fetchall()
                return rows
            finally:
                if within_s != _STATEMENT_S and not connection.broken:
                    connection.execute(f"SET statement_timeout = '{round(_STATEMENT_S * 1000)}ms'")

    @contextlib.contextmanager
    def changing(self) -> Iterator[Run]:
        self.read("SELECT 1")  # so that a transaction starts on an open connection
        with self._connected() as connection, connection.transaction():
            yield lambda sql, values=(): connection.execute(sql, values, prepare=False).rowcount

    def columns(self, table: str) -> dict[str, str]:
        rows = self.read(
            "SELECT attname, format_type(atttypid, NULL), (SELECT typtype FROM pg_type t WHERE t.oid = atttypid) FROM "
            "pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            [name(table)],
        )
        return {str(row[0]): "enum" if row[2] == "e" else str(row[1]).lower() for row in rows}

    def indexed(self, table: str) -> set[str]:
        rows = self.read(
            "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] "
            "WHERE i.indrelid = to_regclass(%s) AND i.indpred IS NULL AND i.indisvalid",
            [name(table)],
        )
        return {str(row[0]) for row in rows}

    def time_form(self, table: str, id: str, column: str, type: str, like: str = times.SPACE) -> str:
        if type.startswith("timestamp"):
            return times.WITHOUT_ZONE if "without" in type else times.WITH_ZONE
        it = column_name(column, percent=True)
        order = column_name(id, percent=True)
        latest = f"SELECT {it} FROM {name(table, percent=True)} ORDER BY {order} DESC LIMIT {_SAMPLED_ROWS}"
        rows = self.read(f"SELECT {it} FROM ({latest}) newest WHERE {it} IS NOT NULL")
        is_number = any(word in type for word in ("int", "numeric", "double", "real"))
        return times.form((row[0] for row in rows), _form_like(like, is_number))

    def comparable(self, column: str, form: str) -> str:
        return f"({column})::timestamptz" if form == times.MIXED else column

    def table_identity(self, table: str) -> TableIdentity:
        rows = self.read(
            "SELECT to_regclass(%s)::oid::bigint, (SELECT oid::bigint FROM pg_database WHERE datname = current_database()), "
            "txid_snapshot_xmax(txid_current_snapshot())",
            [name(table)],
        )
        oid, database, tide = rows[0]
        # Transaction ids only increase: an earlier copy has a lower one.
        return TableIdentity(f"{database}:{oid}", (int(tide),), is_sure=True)

    def row_text(self, table: str, where: str, values: Sequence[object]) -> str | None:
        it, columns = name(table, percent=True), self._json_columns(table)
        nulls = "".join(f", {one} IS NOT NULL AND json_typeof({one}::json) = 'null'" for one in columns)
        rows = self.read(f"SELECT row_to_json(kept)::text{nulls} FROM {it} kept WHERE {where} FOR UPDATE", values)
        if not rows:
            return None
        text, *are_null = rows[0]
        found = [column for column, is_null in zip(columns.values(), are_null, strict=True) if is_null]
        # The same JSON represents a missing value and a JSON null. No column has an empty name.
        return f'{str(text)[:-1]},"{_JSON_NULLS}":{json.dumps(found)}}}' if found else str(text)

    def _json_columns(self, table: str) -> dict[str, str]:
        """Return the quoted and the plain names of the columns of a JSON type, or of a domain over one."""
        rows = self.read(
            "SELECT attname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid WHERE attrelid = to_regclass(%s) "
            "AND attnum > 0 AND NOT attisdropped AND CASE typtype WHEN 'd' THEN typbasetype ELSE t.oid END "
            "IN ('json'::regtype, 'jsonb'::regtype)",
            [name(table)],
        )
        return {column_name(str(row[0]), percent=True): str(row[0]) for row in rows}

    def put_row(self, run: Run, table: str, text: str) -> None:
        rows = self.read(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped "
            "AND attgenerated = ''",
            [name(table)],
        )
        it, columns = name(table, percent=True), [str(row[0]) for row in rows]
        nulls = json.loads(text).get(_JSON_NULLS, [])
        into = ", ".join(column_name(one, percent=True) for one in columns)
        values = ", ".join("'null'" if one in nulls else column_name(one, percent=True) for one in columns)
        run(
            f"INSERT INTO {it} ({into}) OVERRIDING SYSTEM VALUE "
            f"SELECT {values} FROM json_populate_record(NULL::{it}, %s::json)",
            [text],
        )

    def missing_rights(self, table: str, ledger: str) -> str:
        rows = self.read(
            "SELECT has_table_privilege(to_regclass(%s), 'UPDATE'), to_regclass(%s) IS NULL, "
            "has_schema_privilege(coalesce(%s, current_schema()), 'CREATE'), "
            "has_table_privilege(to_regclass(%s), 'SELECT') AND has_table_privilege(to_regclass(%s), 'INSERT'), "
            "current_setting('transaction_read_only') = 'on'",
            [
                name(table),
                name(ledger),
                ledger.partition(".")[0] if "." in ledger else None,
                name(ledger),
                name(ledger),
            ],
        )
        may_update, no_ledger, may_create, may_insert, is_closed = rows[0]
        if is_closed:
            return "the server is read-only (a replica, or set so)"
        if not may_update:
            return f"the role may not UPDATE {table}"
        if no_ledger and not may_create:
            return f"the ledger {ledger} does not exist, and the role may not CREATE it"
        if not no_ledger and not may_insert:
            return f"the role may not SELECT and INSERT on {ledger}"
        return ""

    def may_read(self, table: str) -> bool:
        return bool(self.read("SELECT has_table_privilege(to_regclass(%s), 'SELECT')", [name(table)])[0][0])

    def grants(self, table: str, rights: Sequence[str]) -> list[str]:
        checks = ", ".join("has_table_privilege(to_regclass(%s), %s)" for _ in rights)
        values = [value for right in rights for value in (name(table), right)]
        ((*has, role),) = self.read(f"SELECT {checks}, current_user::text", values)
        lacking = [right for right, may in zip(rights, has, strict=True) if not may]  # None: the table does not exist
        return [f"GRANT {', '.join(lacking)} ON {name(table)} TO {column_name(role)}"] if lacking else []

    def words(self, table: str, column: str) -> set[str] | None:
        it, where = column_name(column, percent=True), name(table, percent=True)
        statement = (
            f"WITH RECURSIVE word(w) AS ((SELECT {it}::text FROM {where} ORDER BY {it} LIMIT 1) UNION ALL "
            f"SELECT (SELECT {it}::text FROM {where} WHERE {it}::text > w ORDER BY {it}::text LIMIT 1) FROM word WHERE w IS NOT NULL) "
            "SELECT w FROM word WHERE w IS NOT NULL LIMIT 50"
        )
        if self.columns(table).get(column) != "enum":
            statement = statement.replace("::text", "")
        else:
            statement = f"SELECT DISTINCT {it}::text FROM {where} LIMIT 50"
        try:
            return {str(row[0]) for row in self.read(statement, within_s=self.counts_within_s)}
        except TookTooLong:
            return None

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._of == os.getpid():
                self._connection.close()
            self._connection = None

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        with self._lock:
            watchdog = None
            try:
                connection = self._connect()
                watchdog = threading.Timer(_HANGS_S, _cut_off, [connection.fileno()])
                watchdog.daemon = True
                watchdog.start()
                if self._is_new:
                    # Not in the options: those would hide the zone with which sessions start (`shape.find_zone`).
                    connection.execute("SET TimeZone = 'UTC'")
                    self._is_new = False
                yield connection
            except self._psycopg.Error as error:
                raise self._translate_error(error) from (None if self._quotes_a_secret(error) else error)
            finally:
                if watchdog is not None:
                    watchdog.cancel()

    def _connect(self) -> Any:
        if self._connection is None or self._connection.closed or self._of != os.getpid():
            # A parent process's connection is neither used nor closed here.
            self._connection = self._psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=2,
                application_name="redrive",
                client_encoding="UTF8",
                options=f"-c statement_timeout={round(_STATEMENT_S * 1000)} -c lock_timeout={round(_LOCK_S * 1000)} "
                "-c idle_in_transaction_session_timeout=5000 -c standard_conforming_strings=on",
            )
            self._is_new = True
            self._of = os.getpid()
        return self._connection

    def _quotes_a_secret(self, error: Exception) -> bool:
        return any(secret in str(error) for secret in self._secrets)

    def _translate_error(self, error: Exception) -> Exception:
        state = getattr(error, "sqlstate", None) or ""
        text = str(error).strip().split("\n")[0]
        for secret in self._secrets:
            text = text.replace(secret, "…")
        if state == "57014":
            return TookTooLong(f"{self._where} did not answer within {_STATEMENT_S:g} s.")
        if state.startswith(("42", "22", "23")) or state == "25006":  # right, name, value; or a replica
            return SourceRefused(f"{self._where}: {text}.")
        self.close()
        return SourceUnreachable(f"{self._where} does not answer: {text}.")


def _as_text(value: object) -> str | int | None:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return repr(value) if isinstance(value, float) else value  # type: ignore[return-value]


def _from_text(kind: str, value: str | int | None) -> object:
    if kind in ("text", "blob"):
        return base64.b64decode(str(value))
    return float(value) if kind == "real" and value is not None else value


def _form_like(like: str, is_number: bool) -> str:
    if is_number:
        return like if like in (times.SECONDS, times.MILLISECONDS) else times.SECONDS
    return like if like in (times.SPACE, times.ISO) else times.SPACE


def _cut_off(number: int) -> None:
    """Close a silent connection: its waiting reader wakes with an error."""
    import socket

    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as mine:
        mine.shutdown(socket.SHUT_RDWR)
