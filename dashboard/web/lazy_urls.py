"""Addresses whose views are imported by the first request below them: most desks need neither the API nor Django's admin,
and their libraries take 20 MB.
"""

from __future__ import annotations

from typing import Any

from django.urls import URLResolver
from django.urls.resolvers import RoutePattern


class _LazyResolver(URLResolver):
    def _populate(self) -> None:
        """Do nothing: the resolver above would import the module to learn names that only its own namespace resolves."""


def include_lazily(route: str, module: str, namespace: str, **defaults: Any) -> URLResolver:
    """Return what `path(route, include(module))` returns. The module's app_name and namespace are `namespace`."""
    return _LazyResolver(RoutePattern(route, is_endpoint=False), module, defaults, namespace, namespace)
