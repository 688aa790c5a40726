"""Redrive in a host project: its commands, and checks of what it requires of the project."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core import checks
from django.core.exceptions import FieldDoesNotExist
from django.core.management import find_commands, get_commands
from django.db import DEFAULT_DB_ALIAS, connections
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch, Resolver404, URLResolver, get_resolver, resolve, reverse
from django.utils.module_loading import import_string

_OURS = ("jobs_admin", "dashboard")


def publish_commands() -> None:
    """Replace Redrive's commands by `manage.py redrive COMMAND`: names such as `token` belong to the project."""
    known = get_commands()  # Django's own table, which is built once
    for name in [name for name, app in known.items() if app in _OURS]:
        del known[name]
    for app in reversed(list(apps.get_app_configs())):
        if app.name not in _OURS:  # restores commands that Redrive's had shadowed
            known.update(dict.fromkeys(find_commands(str(Path(app.path, "management"))), app.name))
    known.setdefault("redrive", "dashboard.mounted")


_APPS = ("jobs_admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages")
_MIDDLEWARE = (
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
)


def check_project(app_configs: object = None, **_: Any) -> list[checks.CheckMessage]:
    return [*_apps_and_middleware(), *_users(), *_times(), *_addresses(), *_login(), *_database()]


def _apps_and_middleware() -> Iterator[checks.CheckMessage]:
    for name in _APPS:
        if not apps.is_installed(name):
            yield checks.Error(f"Redrive needs {name!r} in INSTALLED_APPS.", id="redrive.E003")
    present = [import_string(name) for name in settings.MIDDLEWARE]
    for name in _MIDDLEWARE:
        wanted = import_string(name)
        if not any(isinstance(one, type) and issubclass(one, wanted) for one in present):
            yield checks.Error(f"Redrive needs {name!r} in MIDDLEWARE.", id="redrive.E004")


def _users() -> Iterator[checks.CheckMessage]:
    model = get_user_model()
    for name in ("is_active", "is_superuser"):
        try:
            model._meta.get_field(name)
        except FieldDoesNotExist:
            yield checks.Error(
                f"Redrive needs the field {name!r} on {settings.AUTH_USER_MODEL}.",
                hint="PermissionsMixin of django.contrib.auth has is_superuser; is_active is a BooleanField.",
                id="redrive.E005",
            )


def _times() -> Iterator[checks.CheckMessage]:
    if not settings.USE_TZ:
        yield checks.Error("Redrive needs USE_TZ = True: its times have a zone.", id="redrive.E006")


def _addresses() -> Iterator[checks.CheckMessage]:
    try:
        reverse("redrive:overview")
    except NoReverseMatch:
        if _is_included(get_resolver().url_patterns):
            yield checks.Error(
                "dashboard.routes is included inside the namespace of another URLconf.",
                hint="Include it in the root URLconf: path('ops/redrive/', include('dashboard.routes')).",
                id="redrive.E007",
            )


def _is_included(patterns: list) -> bool:
    return any(
        one.app_name == "redrive" or _is_included(one.url_patterns) for one in patterns if isinstance(one, URLResolver)
    )


def _login() -> Iterator[checks.CheckMessage]:
    path = resolve_url(settings.LOGIN_URL)
    try:
        if path.startswith("/"):
            resolve(path.removeprefix((settings.FORCE_SCRIPT_NAME or "").rstrip("/")))
    except Resolver404:
        yield checks.Warning(
            f"LOGIN_URL ({path}) is no address of this project: Redrive sends visitors there to log in.",
            hint="Set LOGIN_URL, such as 'admin:login'.",
            id="redrive.W002",
        )


def _database() -> Iterator[checks.CheckMessage]:
    if connections[DEFAULT_DB_ALIAS].vendor not in {"sqlite", "postgresql"}:
        yield checks.Error("Redrive needs PostgreSQL or SQLite as the default database.", id="redrive.E008")
    database = settings.DATABASES[DEFAULT_DB_ALIAS]
    if database["ENGINE"].endswith("sqlite3") and database.get("OPTIONS", {}).get("transaction_mode") != "IMMEDIATE":
        yield checks.Warning(
            "Redrive's processes write at the same time, and SQLite refuses some of their writes with these settings.",
            hint="Set OPTIONS = {'transaction_mode': 'IMMEDIATE'} of the default database, or use PostgreSQL.",
            id="redrive.W001",
        )
