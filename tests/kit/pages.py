"""A page as a test reads it: its text, its links, its times."""

from __future__ import annotations

import html
import re

from dashboard.web import figures

HTMX = {"HX-Request": "true"}


def clock_of(at, to: str = "minutes") -> str:
    """A time as pages say it: minutes ago may have been another day."""
    return re.sub(r"<[^>]+>", "", figures.clock(at, to))


def text_of(answer) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", answer.content.decode())))


def count_of_link(client, url: str) -> int:
    """The number of failures that the link leads to, as its page shows it."""
    from urllib.parse import parse_qs, urlsplit

    from jobs_admin import failures
    from jobs_admin.ingest import indexing
    from jobs_admin.models import Failure
    from jobs_admin.models.access import ENGINE

    indexing.index(Failure.objects.all())  # as ingest does with what it files
    return failures.search(ENGINE, parse_qs(urlsplit(url).query)["q"][0]).count.number


def carried(answer) -> dict[str, str]:
    """The hidden fields of the form that decides, as a browser would send them."""
    text = answer.content.decode()
    found = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', text))
    return {name: value.replace("&quot;", '"') for name, value in found.items() if name != "csrfmiddlewaretoken"}
