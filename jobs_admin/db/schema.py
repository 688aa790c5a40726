"""Comparison of the database's schema with the code's: migrations that the one or the other lacks."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.db.utils import Error as DatabaseError

from jobs_admin import config

_APP = "jobs_admin"


@cache
def known_migrations() -> frozenset[str]:
    """Return the names of the migrations of this version, from its files."""
    return frozenset(file.stem for file in (Path(__file__).parents[1] / "migrations").glob("[0-9]*.py"))


def unknown_migrations(applied: set[str] | frozenset[str]) -> list[str]:
    """Return the applied migrations that are newer than all of this version, in order."""
    latest = max(known_migrations())
    return sorted(name for name in applied if name > latest and name not in known_migrations())


def newer_sentence() -> str:
    """Return why this version must not use the database, whose schema is newer; "" if it may.

    Also "" if the database does not answer or has no tables, which is reported where it is needed.
    """
    if config.setting("NEWER_SCHEMA"):
        return ""
    if connection.vendor == "sqlite" and not Path(str(connection.settings_dict["NAME"])).exists():
        return ""  # connecting would create the file
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT name FROM django_migrations WHERE app = %s", [_APP])
            newer = unknown_migrations({name for (name,) in cursor.fetchall()})
    except (DatabaseError, ImproperlyConfigured, ValueError):
        return ""
    finally:
        connection.close()
    if not newer:
        return ""
    return (
        f"The database belongs to a newer version of Redrive: it has {newer[-1]}, and this version knows up to "
        f"{max(known_migrations())}. Install the newer version again, or restore a backup of this one. REDRIVE_NEWER_SCHEMA=1 starts this "
        "version anyway, if the newer one only added to the schema. Nothing was changed."
    )
