"""Routing: names as path segments (`core/path_segment.py`), lazily imported views, and middleware around views.

In a host project without the middleware in MIDDLEWARE, it wraps only the desk's views; no other page passes through it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, cached_property, wraps
from typing import Any

from django.conf import settings
from django.core.exceptions import SuspiciousOperation
from django.core.signals import got_request_exception
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.urls import ResolverMatch, URLPattern, URLResolver
from django.urls.resolvers import RoutePattern
from django.utils import translation
from django.utils.log import log_response
from django.utils.module_loading import import_string

from dashboard.web import error_pages
from jobs_admin.core.path_segment import escaped, name_of


class NameConverter:
    """`<name:queue>` in a route."""

    regex = "[^/]+"

    def to_python(self, value: str) -> str:
        return name_of(value)

    def to_url(self, value: str) -> str:
        return escaped(value)


class _LazyResolver(URLResolver):
    def _populate(self) -> None:
        """Do nothing: the resolver above would import the module for names that only its own namespace resolves."""


def include_lazily(route: str, module: str, namespace: str, **defaults: Any) -> URLResolver:
    """Return `path(route, include(module))` with the module imported on demand. `namespace` is app_name and namespace.

    The first request below it imports its views: most desks need neither the API nor Django's admin, whose libraries
    take 20 MB.
    """
    return _LazyResolver(RoutePattern(route, is_endpoint=False), module, defaults, namespace, namespace)


# From the outermost to the innermost. `dashboard.settings` lists them among Django's own.
MIDDLEWARE = (
    "dashboard.web.middleware.compression.CompressionMiddleware",
    "dashboard.web.middleware.csp.PolicyMiddleware",
    "dashboard.web.moments.TimeZoneMiddleware",
    "dashboard.web.middleware.entrance.EntranceMiddleware",
    "dashboard.web.middleware.read_only.ReadOnlyMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "dashboard.web.limits.LimitMiddleware",
    "dashboard.web.error_pages.RefusalMiddleware",
)

View = Callable[..., HttpResponse]


def chained(patterns: list[URLPattern | URLResolver]) -> list[URLPattern | URLResolver]:
    """Return the patterns with the missing middleware around their views."""
    missing = [name for name in MIDDLEWARE if name not in settings.MIDDLEWARE]
    return [_ChainedResolver(RoutePattern("", is_endpoint=False), patterns, _Chain(missing))] if missing else patterns


class _ChainedResolver(URLResolver):
    def __init__(self, pattern: RoutePattern, patterns: list, chain: _Chain) -> None:
        super().__init__(pattern, patterns)
        self.chained = cache(chain.around)

    def resolve(self, path: str) -> ResolverMatch:
        match = super().resolve(path)
        match.func = self.chained(match.func)
        return match


class _Chain:
    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._view_hooks: list[Callable] = []
        self._exception_hooks: list[Callable] = []

    @cached_property
    def _handler(self) -> Callable[[HttpRequest], HttpResponse]:
        handler = self._respond
        for name in reversed(self._names):
            handler = import_string(name)(handler)
            if hook := getattr(handler, "process_view", None):
                self._view_hooks.insert(0, hook)
            if hook := getattr(handler, "process_exception", None):
                self._exception_hooks.append(hook)
        return handler

    def around(self, view: View) -> View:
        @wraps(view)  # keeps its marks: `csrf_exempt`, `login_required`, `right`
        def passed_through(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            request.desk_view = view, args, kwargs
            with translation.override("en"):
                response = self._handler(request)
            response.headers.setdefault("Content-Language", "en")
            return response

        # Each act has its own transaction, so that a refusal is recorded although the request failed.
        passed_through._non_atomic_requests = set(connections)
        return passed_through

    def _respond(self, request: HttpRequest) -> HttpResponse:
        view, args, kwargs = request.desk_view
        try:
            for hook in self._view_hooks:
                if (response := hook(request, view, args, kwargs)) is not None:
                    return response
            return view(request, *args, **kwargs)
        except Exception as error:
            for hook in self._exception_hooks:
                if (response := hook(request, error)) is not None:
                    return response
            if settings.DEBUG or isinstance(error, SuspiciousOperation):
                raise  # the project's own error page has more details
            return _failed(request, error)


def _failed(request: HttpRequest, error: Exception) -> HttpResponse:
    """Report an error as Django would, and return the desk's error page."""
    got_request_exception.send(sender=None, request=request)
    response = error_pages.failed(request)
    log_response(
        "%s: %s",
        response.reason_phrase,
        request.path,
        response=response,
        request=request,
        exception=error,
        logger=logging.getLogger("django.request"),
    )
    return response
