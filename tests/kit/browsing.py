"""A client whose pages have their white space as a browser shows it, so that no test depends on how a template is wrapped."""

from __future__ import annotations

import re
from typing import Any

from django.http import HttpResponse
from django.test import Client

# What keeps its white space: an element that is preformatted, as bytes of the page.
_PREFORMATTED = re.compile(rb"(<(pre|textarea|script)\b[^>]*>.*?</\2>)", re.S)


def collapse(html: bytes) -> bytes:
    """The page with each run of white space that has a line break as one space, but for what is preformatted."""
    pieces = _PREFORMATTED.split(html)
    # Each preformatted element stands between two others, followed by its name.
    pieces[0::3] = [re.sub(rb"\s*\n\s*", b" ", piece) for piece in pieces[0::3]]
    del pieces[2::3]
    return b"".join(pieces)


class Browser(Client):
    """Django's client; HTML that is not compressed is collapsed."""

    def request(self, **request: Any) -> HttpResponse:
        response = super().request(**request)
        is_page = response.headers.get("Content-Type", "").startswith("text/html")
        if is_page and not response.streaming and not response.has_header("Content-Encoding"):
            response.content = collapse(response.content)
        return response
