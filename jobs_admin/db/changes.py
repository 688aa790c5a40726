"""The version of the database's contents, at the cost of one small query."""

from __future__ import annotations

from django.db import connection

# SQLite: changes with each commit of another connection. PostgreSQL: the write position of its log, which other
# databases of the server also advance.
_QUERIES = {"sqlite": "PRAGMA data_version", "postgresql": "SELECT pg_current_wal_insert_lsn()"}


def data_version() -> object:
    """Return a value that differs from this connection's last one if something was committed since."""
    with connection.cursor() as cursor:
        cursor.execute(_QUERIES[connection.vendor])
        return cursor.fetchone()
