"""Viewer of a terminal: every user of a shell on this machine may do everything, under the name of the login."""

from __future__ import annotations

import getpass

from jobs_admin.models.access import ADMIN, EVERY_SOURCE, Viewer


def viewer() -> Viewer:
    return Viewer(f"{_user()} (terminal)", {EVERY_SOURCE: ADMIN})


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "somebody"
