"""Parts of routes: names that strangers give as one segment of an address, and addresses whose views are imported late.

A queue may be called `a/b`, `..` or ` `. Browsers and servers read such segments their own way, also where they are
escaped as addresses are (`%2F`, `%2e`); so what is neither a letter, a digit nor one of `-_.:@` is written `~2F`.
"""

from __future__ import annotations

import re
from typing import Any

from django.urls import URLResolver
from django.urls.resolvers import RoutePattern

_PLAIN = frozenset("-_.:@")
_ESCAPED = re.compile(r"(?:~[0-9A-F]{2})+")


_EMPTY = "~"  # the name of a queue that a report names none of


def escaped(name: str) -> str:
    """The same name gives the same segment, and no other name does."""
    return (
        _EMPTY
        if not name
        else "".join(
            one if (one.isalnum() or one in _PLAIN) and not (one == "." and at == 0) else _hex(one)
            for at, one in enumerate(name)
        )
    )


def name_of(segment: str) -> str:
    """Raises ValueError for what is no segment of ours."""
    if segment == _EMPTY:
        return ""
    name = _ESCAPED.sub(lambda found: bytes.fromhex(found[0].replace("~", "")).decode(), segment)
    if escaped(name) != segment:
        raise ValueError(f"{segment!r} is not a valid name")
    return name


def _hex(text: str) -> str:
    return "".join(f"~{byte:02X}" for byte in text.encode("utf-8", "surrogatepass"))


class NameConverter:
    """`<name:queue>` in a route."""

    regex = "[^/]+"

    def to_python(self, value: str) -> str:
        return name_of(value)

    def to_url(self, value: str) -> str:
        return escaped(value)


class _LazyResolver(URLResolver):
    def _populate(self) -> None:
        """Do nothing: the resolver above would import the module to learn names that only its own namespace resolves."""


def include_lazily(route: str, module: str, namespace: str, **defaults: Any) -> URLResolver:
    """Return what `path(route, include(module))` returns. The module's app_name and namespace are `namespace`.

    Its views are imported by the first request below: most desks need neither the API nor Django's admin, and their
    libraries take 20 MB.
    """
    return _LazyResolver(RoutePattern(route, is_endpoint=False), module, defaults, namespace, namespace)
