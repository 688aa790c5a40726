"""URLs of what is displayed: the link of a number leads to exactly what it counts."""

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


@lru_cache(maxsize=1024)  # a page that refreshes itself builds the same links again
def query_for(**fields: str) -> str:
    """Return the search for these values: `query_for(queue="a b", state="dead")` -> `queue:"a b" state:dead`."""
    return language.format(Query(tuple(Match(name, (Value(value),)) for name, value in fields.items())))


def failures_of(**fields: str) -> str:
    """Return the URL of the list of failures with these values."""
    return _with_query("redrive:failure-list", query_for(**fields))


def list_url(text: str = "", **more: object) -> str:
    """Return the URL of the list of failures of a search."""
    pairs = {"q": text, **more} if text else more
    return f"{reverse('redrive:failure-list')}?{urlencode(pairs)}" if pairs else reverse("redrive:failure-list")


def view_url(query: str, columns: Iterable[str]) -> str:
    """Return the URL of the list for a saved view: its search with its columns."""
    names = ",".join(columns)
    return list_url(query, columns=names) if names else list_url(query)


def replay_of(**fields: str) -> str:
    """Return the URL of a replay draft for the failures with these values."""
    return _with_query("redrive:replay-new", query_for(**fields))


def new_replay(text: str) -> str:
    """Return the URL of a replay draft for a search."""
    return _with_query("redrive:replay-new", text)


def replay_of_job(pk: int) -> str:
    """Return the URL of a replay draft for one failure, which has more options than the failure's own page."""
    return f"{reverse('redrive:replay-new')}?{urlencode({'selection': pk})}"


def retries_url(text: str) -> str:
    """Return the URL of the page that reschedules the retries of this search."""
    return _with_query("redrive:reschedule-new", text)


def retry_of_job(pk: int) -> str:
    """Return the URL of the page that reschedules the retry of one job."""
    return f"{reverse('redrive:reschedule-new')}?{urlencode({'selection': pk})}"


def group_page(fingerprint: str) -> str:
    return _address(get_script_prefix(), "redrive:group-detail", fingerprint)


def dependency_page(name: str) -> str:
    return _address(get_script_prefix(), "redrive:dependency-detail", name)


_VERSION = re.compile(r"([a-z0-9][a-z0-9._-]{0,62})@([1-9]\d{0,8})")


def is_name(text: str) -> bool:
    """Return whether `text` can be the name of a policy."""
    return _VERSION.fullmatch(f"{text}@1") is not None


def policy_version(text: str) -> str:
    """Return the URL of `webhooks@7` in the history of that policy; "" for an invalid name."""
    found = _VERSION.fullmatch(text)
    if found is None:
        return ""
    name, number = found[1], int(found[2])
    # A long list begins with that version.
    after = f"?after={number + 1}" if number > 1 else ""
    return f"{_address(get_script_prefix(), 'redrive:policy-versions', name)}{after}#v{number}"


def queue_page(source: str, queue: str) -> str:
    """Return the URL of a queue over time."""
    return _address(get_script_prefix(), "redrive:queue-detail", source, queue)


def mark_url(kind: str, ref: str) -> str:
    """Return the URL of a mark in a chart; "" if it has none."""
    if kind == "policy":
        return policy_version(ref)
    name = {"alert": "redrive:alert-detail", "replay": "redrive:replay-detail"}.get(kind)
    try:
        return _address(get_script_prefix(), name, int(ref)) if name else ""
    except NoReverseMatch:
        return ""


def policy_of(**fields: str) -> str:
    """Return the URL of the policy for such jobs, or of a new one for (source, queue, task)."""
    return f"{_address(get_script_prefix(), 'redrive:policy-of')}?{urlencode(fields)}"


def automate(source: str, query: str) -> str:
    """Return the URL of the form of an automation for the jobs of a search."""
    return f"{reverse('redrive:automation-new')}?{urlencode({'source': source, 'q': query})}"


def back(request: HttpRequest, *, otherwise: str) -> str:
    """Return the URL of the page that an act's form came from; never outside the desk."""
    address = request.POST.get("back", "")
    is_ours = address and url_has_allowed_host_and_scheme(address, allowed_hosts={request.get_host()})
    return address if is_ours else otherwise


def is_web(address: str) -> bool:
    """Return whether `address` may become a link. Acts accept no other, but a stored one may have another origin."""
    return address[:8].lower().startswith(("https://", "http://"))


def url_of(name: str, *arguments: object) -> str:
    """Return the URL of a page, or "" if it does not exist."""
    try:
        return reverse(name, args=arguments)
    except NoReverseMatch:
        return ""


def _with_query(name: str, query: str) -> str:
    return f"{_address(get_script_prefix(), name)}?q={quote_plus(query)}"


@lru_cache(maxsize=4096)  # called often per page, with the same arguments
def _address(prefix: str, name: str, *arguments: str | int) -> str:
    return reverse(name, args=arguments)
