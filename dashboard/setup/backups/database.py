"""Database in a backup: SQLite as a copy by its online backup, PostgreSQL as the SQL of `pg_dump`.

Both are consistent snapshots while others write. A restore is atomic on both: a file is renamed, or a transaction is
committed, including the statements of `restored.statements`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from django.db import connection, transaction

from dashboard.setup.backups.archive import CHUNK, Archive, Backup, BackupFailed
from dashboard.setup.connections import about_database

MEMBER = {"sqlite": "database.sqlite3", "postgresql": "database.sql"}
Progress = Callable[[str, int, int | None], None]  # (what, bytes so far, total bytes)
Statements = Sequence[tuple[str, list[object]]]
_PAGES = 1_000  # pages of SQLite between two progress reports
_NO_TOOL = "{} is not on PATH. Install PostgreSQL's client programs (Debian and Ubuntu: apt install postgresql-client)."


def write(archive: Archive, began: Callable[[], None], progress: Progress) -> dict[str, int]:
    """Add the database to the archive and return the rows of each table. `began` is called once the snapshot exists."""
    if connection.vendor == "sqlite":
        return _write_sqlite(archive, began, progress)
    return _write_postgresql(archive, began, progress)


def size() -> int:
    """Return the size of the database in bytes."""
    if connection.vendor == "sqlite":
        path = sqlite_path()
        return sum(file.stat().st_size for file in (path, path.with_name(f"{path.name}-wal")) if file.exists())
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_database_size(current_database())")
        return int(cursor.fetchone()[0])


def sqlite_path() -> Path:
    return Path(str(connection.settings_dict["NAME"]))


# SQLite ---------------------------------------------------------------------------------------------------------------


def _write_sqlite(archive: Archive, began: Callable[[], None], progress: Progress) -> dict[str, int]:
    copy = archive.partial.with_suffix(".sqlite3")
    try:
        with contextlib.closing(sqlite3.connect(sqlite_path(), timeout=20, isolation_level=None)) as source:
            # With our own transaction the copy is of this moment, and does not start again when others write.
            source.execute("BEGIN")
            source.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            began()
            page = source.execute("PRAGMA page_size").fetchone()[0]
            os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            with contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as target:
                source.backup(
                    target,
                    pages=_PAGES,
                    progress=lambda _, left, total: progress(
                        "Copying the database", (total - left) * page, total * page
                    ),
                )
                target.execute("PRAGMA journal_mode = DELETE")
                counts = _count_sqlite(target)
        total = copy.stat().st_size
        with archive.member(MEMBER["sqlite"]) as append, copy.open("rb") as file:
            while chunk := file.read(CHUNK):
                append(chunk)
                progress("Compressing the database", file.tell(), total)
        return counts
    except sqlite3.Error as error:
        why = "the disk is full" if "full" in str(error) else str(error)
        raise BackupFailed(f"The database cannot be copied to {copy.parent}: {why}. No backup was made.") from error
    finally:
        copy.unlink(missing_ok=True)


def _count_sqlite(database: sqlite3.Connection) -> dict[str, int]:
    """Count the rows of each table, except those that SQLite's search index creates itself."""
    names = "SELECT name FROM pragma_table_list WHERE type = 'table' AND schema = 'main' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    tables = [name for (name,) in database.execute(f"{names} ORDER BY name")]
    return {name: database.execute(f'SELECT COUNT(*) FROM "{name}"').fetchone()[0] for name in tables}


def check_free_sqlite() -> None:
    """Raise BackupFailed if a process has the database open. Afterwards the file is complete, without a WAL."""
    connection.close()
    path = sqlite_path()
    if not path.exists():
        return
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=1, isolation_level=None)) as database:
            # SQLite leaves WAL mode only if no other connection has the file open.
            database.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.OperationalError as error:
        raise BackupFailed(
            f"Another process has {path} open ({error}). Stop watch, web and other commands, then restore. "
            "Nothing was changed."
        ) from error
    except sqlite3.DatabaseError:  # not a database: it contains nothing to lose, and is replaced
        return


def load_sqlite(backup: Backup, statements: Statements, progress: Progress) -> None:
    """Extract the database beside the current one, run the statements in it, and move it into place."""
    path = sqlite_path()
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(6)}.restored")
    total = backup.members[MEMBER["sqlite"]]["bytes"]
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            for chunk in backup.read(MEMBER["sqlite"]):
                file.write(chunk)
                progress("Extracting the database", file.tell(), total)
        with contextlib.closing(sqlite3.connect(fresh, isolation_level=None)) as database:
            counts = _count_sqlite(database)
            if wrong := [name for name, count in backup.manifest["tables"].items() if counts.get(name) != count]:
                raise BackupFailed(f"{backup.path} lacks rows of {wrong[0]}. Nothing was changed.")
            for text, parameters in statements:
                database.execute(text.replace("%s", "?"), [_sqlite_value(value) for value in parameters])
        with fresh.open("rb") as file:
            os.fsync(file.fileno())
        check_free_sqlite()
        fresh.replace(path)
        for name in (f"{path.name}-wal", f"{path.name}-shm"):
            path.with_name(name).unlink(missing_ok=True)
    except OSError as error:
        why = (error.strerror or "").lower()
        raise BackupFailed(f"The database cannot be written to {path.parent}: {why}. Nothing was changed.") from error
    except sqlite3.Error as error:
        raise BackupFailed(f"The database of the backup cannot be used: {error}. Nothing was changed.") from error
    finally:
        for name in (fresh.name, f"{fresh.name}-journal"):
            fresh.with_name(name).unlink(missing_ok=True)


def _sqlite_value(value: object) -> object:
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ") if isinstance(value, datetime) else value


# PostgreSQL -----------------------------------------------------------------------------------------------------------


def _write_postgresql(archive: Archive, began: Callable[[], None], progress: Progress) -> dict[str, int]:
    tool = find_tool("pg_dump", "No backup was made.")
    with _address() as (about, environment), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        cursor.execute("SELECT pg_export_snapshot()")
        snapshot = cursor.fetchone()[0]
        began()
        command = [
            tool,
            "--no-owner",
            "--no-privileges",
            "--no-password",
            f"--snapshot={snapshot}",
            f"--dbname={about}",
        ]
        with tempfile.TemporaryFile() as errors:
            dump = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors)
            try:
                assert dump.stdout is not None
                done = 0
                with archive.member(MEMBER["postgresql"]) as append:
                    while chunk := dump.stdout.read(CHUNK):
                        append(chunk)
                        done += len(chunk)
                        progress("Dumping the database", done, None)
            finally:
                if dump.poll() is None and dump.stdout is not None:
                    dump.stdout.close()
                code = dump.wait()
            if code:
                raise BackupFailed(f"pg_dump failed: {_first_line(errors)} No backup was made.")
        # From the same snapshot as the dump.
        tables = sorted(connection.introspection.table_names(cursor))
        counts = {}
        for name in tables:
            cursor.execute(f"SELECT COUNT(*) FROM {_name(name)}")
            counts[name] = cursor.fetchone()[0]
        return counts


def find_tool(name: str, consequence: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise BackupFailed(f"{_NO_TOOL.format(name)} {consequence}")
    return found


@contextlib.contextmanager
def _address() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the connection string without passwords, and an environment with them.

    libpq has no variable for the password of a client key, which goes into a service file readable only by this user.
    """
    from psycopg import conninfo  # the driver comes with `redrive[postgres]`

    parameters: dict[str, Any] = dict(connection.get_connection_params())
    for name in ("cursor_factory", "context", "prepare_threshold"):
        parameters.pop(name, None)
    environment = dict(os.environ)
    if password := parameters.pop("password", ""):
        environment["PGPASSWORD"] = str(password)
    with tempfile.NamedTemporaryFile("w", prefix="redrive-", suffix=".conf") as services:
        if of_key := parameters.pop("sslpassword", ""):
            services.write(f"[redrive]\nsslpassword={of_key}\n")
            services.flush()
            parameters["service"], environment["PGSERVICEFILE"] = "redrive", services.name
        yield conninfo.make_conninfo(**parameters), environment


def _first_line(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read(4000).decode(errors="replace").strip().splitlines() or ["it gave no reason"]
    text = next((line for line in lines if "error" in line.lower()), lines[0])
    return about_database(RuntimeError(text)) + "."


def count_sessions() -> dict[str, int]:
    """Return client address -> number of other sessions of the database."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT COALESCE(host(client_addr), 'this machine'), COUNT(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' "
            "GROUP BY 1 ORDER BY 1"
        )
        return dict(cursor.fetchall())


def load_postgresql(backup: Backup, statements: Statements, progress: Progress) -> None:
    """Replace all tables by those of the backup, in one transaction."""
    tool = find_tool("psql", "Nothing was changed.")
    first, last = _prologue(), _epilogue(backup, statements)
    connection.close()
    total = backup.members[MEMBER["postgresql"]]["bytes"]
    with _address() as (about, environment), tempfile.TemporaryFile() as errors:
        command = [tool, "-X", "-q", "-v", "ON_ERROR_STOP=1", "--no-password", f"--dbname={about}", "-f", "-"]
        load = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors
        )
        assert load.stdin is not None
        done = 0
        # After psql has ended, its error is more specific than that of the pipe. Without the last line nothing is
        # committed.
        try:
            with contextlib.suppress(BrokenPipeError), load.stdin as pipe:
                pipe.write(first.encode())
                for chunk in backup.read(MEMBER["postgresql"]):
                    pipe.write(chunk)
                    done += len(chunk)
                    progress("Loading the database", done, total)
                pipe.write(last.encode())
        finally:
            code = load.wait()
        if code:
            raise BackupFailed(f"psql failed: {_first_line(errors)} Nothing was changed.")


def _prologue() -> str:
    with connection.cursor() as cursor:
        tables = connection.introspection.table_names(cursor)
        cursor.execute(
            "SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = current_schema()::regnamespace "
            "AND p.prorettype = 'trigger'::regtype AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')"
        )
        functions = [name for (name,) in cursor.fetchall()]
    drops = [f"DROP TABLE {_name(table)} CASCADE;" for table in tables]
    drops += [f"DROP FUNCTION {name} CASCADE;" for name in functions]
    return "\n".join(["SET client_min_messages = warning;", "SET lock_timeout = '5s';", "BEGIN;", *drops, ""])


def _epilogue(backup: Backup, statements: Statements) -> str:
    import psycopg
    from psycopg import sql

    checks = [
        f"IF (SELECT COUNT(*) FROM {_name(name)}) <> {int(count)} THEN RAISE EXCEPTION 'rows of % are missing', "
        f"{sql.Literal(name).as_string()}; END IF;"
        for name, count in backup.manifest["tables"].items()
    ]
    lines = [psycopg.ClientCursor(_real()).mogrify(text, parameters) + ";" for text, parameters in statements]
    return "\n".join(["", "RESET search_path;", "DO $$ BEGIN", *checks, "END $$;", *lines, "COMMIT;", ""])


def _real() -> Any:
    connection.ensure_connection()
    return connection.connection


def _name(table: str) -> str:
    from psycopg import sql

    return sql.Identifier(table).as_string()
