"""Addresses of what is shown: a number leads to exactly what it counts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import quote_plus, urlencode

from django.http import HttpRequest
from django.urls import NoReverseMatch, get_script_prefix, reverse
from django.utils.http import url_has_allowed_host_and_scheme

from jobs_admin.core import query as language
from jobs_admin.core.query import Match, Query, Value


@lru_cache(maxsize=1024)  # a page that refreshes itself asks for the same links again
def query_for(**fields: str) -> str:
    """The search for these values: `query_for(queue="a b", state="dead")` -> `queue:"a b" state:dead`."""
    return language.format(Query(tuple(Match(name, (Value(value),)) for name, value in fields.items())))


def failures_of(**fields: str) -> str:
    """The list of the failures that have these values."""
    return _with_query("redrive:failure-list", query_for(**fields))


def list_url(text: str = "", **more: object) -> str:
    """The list of what a search finds."""
    pairs = {"q": text, **more} if text else more
    return f"{reverse('redrive:failure-list')}?{urlencode(pairs)}" if pairs else reverse("redrive:failure-list")


def view_url(query: str, columns: Iterable[str]) -> str:
    """The list of a saved view: of its search, with its columns."""
    names = ",".join(columns)
    return list_url(query, columns=names) if names else list_url(query)


def replay_of(**fields: str) -> str:
    """The draft of a replay of the failures that have these values."""
    return _with_query("redrive:replay-new", query_for(**fields))


def new_replay(text: str) -> str:
    """The draft of a replay of what a search finds."""
    return _with_query("redrive:replay-new", text)


def replay_of_job(pk: int) -> str:
    """The draft of a replay of this one failure, where more can be decided than beside the failure itself."""
    return f"{reverse('redrive:replay-new')}?{urlencode({'selection': pk})}"


def retries_url(text: str) -> str:
    """Return the URL of the page that reschedules the retries of this search."""
    return _with_query("redrive:reschedule-new", text)


def retry_of_job(pk: int) -> str:
    """The same for one job."""
    return f"{reverse('redrive:reschedule-new')}?{urlencode({'selection': pk})}"


def group_page(fingerprint: str) -> str:
    return _address(get_script_prefix(), "redrive:group-detail", fingerprint)


_VERSION = re.compile(r"([a-z0-9][a-z0-9._-]{0,62})@([1-9]\d{0,8})")


def is_name(text: str) -> bool:
    """Return whether `text` can be the name of a policy."""
    return _VERSION.fullmatch(f"{text}@1") is not None


def policy_version(text: str) -> str:
    """The place of `webhooks@7` in the history of that policy; "" for what a policy is never called."""
    found = _VERSION.fullmatch(text)
    if found is None:
        return ""
    name, number = found[1], int(found[2])
    # The list begins with it where it may be long.
    after = f"?after={number + 1}" if number > 1 else ""
    return f"{_address(get_script_prefix(), 'redrive:policy-versions', name)}{after}#v{number}"


def queue_page(source: str, queue: str) -> str:
    """A queue over time."""
    return _address(get_script_prefix(), "redrive:queue-detail", source, queue)


def mark_url(kind: str, ref: str) -> str:
    """Return the page of a mark in a picture; "" if it has none."""
    if kind == "policy":
        return policy_version(ref)
    name = {"alert": "redrive:alert-detail", "replay": "redrive:replay-detail"}.get(kind)
    try:
        return _address(get_script_prefix(), name, int(ref)) if name else ""
    except NoReverseMatch:
        return ""


def policy_of(**fields: str) -> str:
    """The policy that decides about such jobs, or the beginning of one (source, queue, task)."""
    return f"{_address(get_script_prefix(), 'redrive:policy-of')}?{urlencode(fields)}"


def back(request: HttpRequest, *, otherwise: str) -> str:
    """Return the page that an act's form came from; never an address outside the desk."""
    address = request.POST.get("back", "")
    is_ours = address and url_has_allowed_host_and_scheme(address, allowed_hosts={request.get_host()})
    return address if is_ours else otherwise


def is_web(address: str) -> bool:
    """Return whether `address` may become a link. Acts accept no other, but a stored one may have come another way."""
    return address.startswith(("https://", "http://"))


def url_of(name: str, *arguments: object) -> str:
    """The address of a page that may not be there: empty then."""
    try:
        return reverse(name, args=arguments)
    except NoReverseMatch:
        return ""


def _with_query(name: str, query: str) -> str:
    return f"{_address(get_script_prefix(), name)}?q={quote_plus(query)}"


@lru_cache(maxsize=4096)  # asked many times a page, and the same again on the next
def _address(prefix: str, name: str, *arguments: str | int) -> str:
    return reverse(name, args=arguments)
