"""A client whose pages have their white space as a browser shows it, so that no test depends on how a template is wrapped."""

from __future__ import annotations

import re
import time
from typing import Any

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.http import HttpResponse
from django.test import Client

from dashboard.web import sign_ins

# What keeps its white space: an element that is preformatted, as bytes of the page.
_PREFORMATTED = re.compile(rb"(<(pre|textarea|script)\b[^>]*>.*?</\2>)", re.S)


def collapse(html: bytes) -> bytes:
    """The page with each run of white space that has a line break as one space, but for what is preformatted."""
    pieces = _PREFORMATTED.split(html)
    # Each preformatted element stands between two others, followed by its name.
    pieces[0::3] = map(_one_line, pieces[0::3])
    del pieces[2::3]
    return b"".join(pieces)


def _one_line(html: bytes) -> bytes:
    """As `re.sub(rb"\\s*\\n\\s*", b" ", html)`, in a fourth of the time."""
    first, *others = html.split(b"\n")
    if not others:
        return html
    *middle, last = others
    return b" ".join([first.rstrip(), *filter(None, map(bytes.strip, middle)), last.lstrip()])


class Browser(Client):
    """Django's client; HTML that is not compressed is collapsed, and `force_login` leaves a session and no more."""

    def _login(self, user: Any, backend: str) -> None:
        """Without the signals of a login, which costs nine statements: half of the tests of pages log a person in. The session
        counts as recorded just now.
        """
        session = SessionStore()
        session[SESSION_KEY], session[BACKEND_SESSION_KEY] = str(user.pk), backend
        session[HASH_SESSION_KEY] = user.get_session_auth_hash()
        session.create()
        self.cookies[settings.SESSION_COOKIE_NAME] = session.session_key
        sign_ins._seen[session.session_key] = time.monotonic()

    def request(self, **request: Any) -> HttpResponse:
        response = super().request(**request)
        is_page = response.headers.get("Content-Type", "").startswith("text/html")
        if is_page and not response.streaming and not response.has_header("Content-Encoding"):
            response.content = collapse(response.content)
        return response
