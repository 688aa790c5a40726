"""Addresses of what is shown: a number leads to exactly what it counts."""

from __future__ import annotations

from urllib.parse import urlencode

from django.urls import reverse

from jobs_admin.core import query as language
from jobs_admin.core.query import Match, Query, Value


def query_for(**fields: str) -> str:
    """The search for these values: `query_for(queue="a b", state="dead")` -> `queue:"a b" state:dead`."""
    return language.format(Query(tuple(Match(name, (Value(value),)) for name, value in fields.items())))


def failures_of(**fields: str) -> str:
    """The list of the failures that have these values."""
    return _with_query("failure-list", query_for(**fields))


def replay_of(**fields: str) -> str:
    """The draft of a replay of the failures that have these values."""
    return _with_query("replay-new", query_for(**fields))


def group_page(fingerprint: str) -> str:
    return reverse("group-detail", args=[fingerprint])


def _with_query(name: str, query: str) -> str:
    return f"{reverse(name)}?{urlencode({'q': query})}"
