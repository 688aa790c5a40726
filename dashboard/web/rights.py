"""The right that each URL requires, read from the URLconf, for documentation, tests and a startup check.

Pages declare it with `@can(role)`, API calls with `@needs(role)`, classes of Django's admin with attributes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from django.contrib.admin import ModelAdmin
from django.core import checks
from django.urls import URLPattern, URLResolver, get_resolver

from dashboard.web.access import READS, USER
from jobs_admin import config
from jobs_admin.models.access import ADMIN, ADMIN_OF_ALL, AUDITOR, NO_ROLE, OPERATOR, PERMISSION, VIEWER

ANYONE = "anyone"  # no login
STAFF = "staff"  # logged in as staff, for Django's admin
RIGHTS = (ANYONE, USER, VIEWER, AUDITOR, OPERATOR, ADMIN, STAFF, ADMIN_OF_ALL, PERMISSION, NO_ROLE)

# Django's own URLs, which cannot declare a right.
_OF_DJANGO = {
    "login": ANYONE,
    "logout": USER,
    "admin:login": USER,
    "admin:logout": USER,
    "admin:index": STAFF,
    "admin:app_list": STAFF,
    "admin:jsi18n": STAFF,
    "admin:autocomplete": NO_ROLE,  # not used by any field
    "admin:view_on_site": NO_ROLE,  # no record has a page outside the admin
    "admin:password_change": STAFF,
    "admin:password_change_done": STAFF,
    "admin:auth_user_password_change": PERMISSION,
    "admin:": NO_ROLE,  # unknown URLs
}
_TAKEN = {"admin:logout": ("POST",), "admin:login": ("GET", "POST"), "admin:password_change": ("GET", "POST")}
_TAKEN |= {"admin:auth_user_password_change": ("GET", "POST")}
# URL of a record in Django's admin -> attribute of its class with the right.
_OF_RECORDS = {
    "changelist": "needs",
    "history": "needs",
    "add": "adds",
    "delete": "deletes",
    "change": "needs",
    "": "needs",
}


@dataclass(frozen=True, slots=True)
class Address:
    """A URL; in the API, one call."""

    route: str  # "/failures/<int:pk>/", including the mount's prefix
    name: str  # "failure-detail", "admin:jobs_admin_failure_change", "api:get_failure"
    right: str  # "" if not declared
    methods: tuple[str, ...]  # GET, POST, PATCH …; GET includes HEAD
    to_change: str = ""  # of a record in Django's admin: the right to submit its form

    @property
    def kind(self) -> str:
        return "api" if self.name.startswith("api:") else "admin" if self.name.startswith("admin:") else "page"

    def right_to(self, method: str) -> str:
        return self.to_change if self.to_change and method not in READS else self.right


def addresses() -> list[Address]:
    """Return every URL of the desk, and of Django's admin in Redrive's own project, in order of the URLconf."""
    # The API has an entry per call, and they share one view.
    return list(dict.fromkeys(_addresses_below(get_resolver().url_patterns, "/")))


def _addresses_below(patterns: list, before: str) -> Iterator[Address]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            route = before + str(pattern.pattern).removeprefix("^")
            if pattern.app_name == "redrive":
                yield from _addresses(pattern.url_patterns, route, "")
            elif pattern.app_name == "admin" and config.is_own_project():
                yield from _addresses(pattern.url_patterns, route, "admin:")
            else:
                yield from _addresses_below(pattern.url_patterns, route)


def _addresses(patterns: list, before: str, space: str) -> Iterator[Address]:
    for pattern in patterns:
        route = before + str(pattern.pattern).removeprefix("^")
        if isinstance(pattern, URLResolver):
            yield from _addresses(pattern.url_patterns, route, f"{pattern.app_name}:" if pattern.app_name else space)
        elif isinstance(pattern, URLPattern):
            yield from _addresses_of(pattern, route, f"{space}{pattern.name or ''}")


def _addresses_of(pattern: URLPattern, route: str, name: str) -> Iterator[Address]:
    view = pattern.callback
    if calls := getattr(view, "calls", None):
        for method, call in calls.items():
            yield Address(route, f"api:{call.__name__}", getattr(call, "right", ""), (method,))
    elif isinstance(record := getattr(view, "model_admin", None), ModelAdmin):
        yield _of_record(record, route, name)
    elif getattr(view, "is_call", False):
        yield Address(route, name, view.right, ("GET",))
    else:
        right = _OF_DJANGO.get(name) or getattr(view, "right", "")
        yield Address(route, name, right, methods(view, name))


def _of_record(record: ModelAdmin, route: str, name: str) -> Address:
    act = name.rpartition("_")[2] if name != "admin:" else ""
    if not act:
        return Address(route, name, STAFF, ("GET",))  # URL of records before Django 1.9
    # Classes of other apps only use Django's permissions.
    unsaid = "" if type(record).__module__.startswith("jobs_admin.") else PERMISSION
    right = getattr(record, _OF_RECORDS[act], unsaid)
    to_change = getattr(record, "changes", unsaid) if act == "change" else ""
    return Address(route, name, right, ("GET",) if act == "history" else ("GET", "POST"), to_change)


def methods(view: Callable[..., Any], name: str) -> tuple[str, ...]:
    """Return the methods that `require_safe`, `require_POST` … accept, or a class defines; none for an API call."""
    if name.startswith("admin:"):
        return _TAKEN.get(name, ("GET",))
    if kind := getattr(view, "view_class", None):
        return tuple(m.upper() for m in ("get", "post") if m in kind.http_method_names and hasattr(kind, m))
    while view is not None:
        taken = inspect.getclosurevars(view).nonlocals.get("request_method_list") if inspect.isfunction(view) else None
        if taken:
            return tuple(method for method in taken if method != "HEAD")
        view = getattr(view, "__wrapped__", None)
    return ()


def every_address_declares_its_right(app_configs: object = None, **_: Any) -> list[checks.CheckMessage]:
    """System check: every URL must declare its right, otherwise the desk does not start."""
    found: list[checks.CheckMessage] = []
    for address in addresses():
        where = f"{address.route} ({address.name})"
        if address.right not in RIGHTS:
            how = "@can(role) on a page, @needs(role) on a call of the API, needs/adds/changes/deletes on a ModelAdmin."
            found.append(checks.Error(f"{where} declares no right.", hint=how, id="redrive.E001"))
        if not address.methods:
            how = "Put require_safe, require_POST or require_http_methods above @can(role)."
            found.append(checks.Error(f"{where} declares no methods.", hint=how, id="redrive.E002"))
    return found
