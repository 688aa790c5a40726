"""Redrive in a project that is not its own: its commands, and the checks of what it needs of the project."""

from __future__ import annotations

from pathlib import Path

from django.apps import apps
from django.core.management import find_commands, get_commands

_OURS = ("jobs_admin", "dashboard")


def publish_commands() -> None:
    """Replace Redrive's commands by `manage.py redrive COMMAND`: names such as `groups` and `token` are the project's."""
    known = get_commands()  # Django's own table, which it fills once
    for name in [name for name, app in known.items() if app in _OURS]:
        del known[name]
    for app in reversed(list(apps.get_app_configs())):
        if app.name not in _OURS:  # what was shadowed is there again
            known.update(dict.fromkeys(find_commands(str(Path(app.path, "management"))), app.name))
    known.setdefault("redrive", "dashboard.mounted")
