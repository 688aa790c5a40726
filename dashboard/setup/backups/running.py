"""Processes that work on the desk: while one of them runs, nothing can be put in the place of its database."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from django.db import connection
from django.db.utils import Error as DatabaseError

from dashboard.setup import environment
from dashboard.setup.backups import database, store
from dashboard.setup.backups.archive import BackupFailed


def check_stopped() -> None:
    """Raise BackupFailed where `up` runs, or another process uses the database."""
    folder = environment.data_folder()
    if folder.is_dir():
        lock = store.hold_folder(folder)
        if lock is None:
            raise BackupFailed(
                f"Redrive runs on {folder} ({_holder(folder)}). Stop it, then restore. Nothing was changed."
            )
        os.close(lock)
    _check_unused()


def _check_unused() -> None:
    """Raise BackupFailed where another process uses the database."""
    if connection.vendor == "sqlite":
        database.check_free_sqlite()
        return
    with contextlib.suppress(DatabaseError):
        sessions = database.count_sessions()
        if sessions:
            where = ", ".join(f"{count} from {address}" for address, count in sessions.items())
            raise BackupFailed(
                f"Other sessions use the database ({where}). Stop watch, web and other commands, then restore. "
                "Nothing was changed."
            )


def _holder(folder: Path) -> str:
    try:
        found = json.loads((folder / "up.lock").read_text() or "{}")
        return f"process {found['pid']}"
    except (OSError, ValueError, KeyError):
        return "another command"
