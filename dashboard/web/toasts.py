"""Toasts, the messages after acts: text, a link to the result, and an undo if possible.

They are carried by Django's messages, so that they survive a redirect without JavaScript. With JavaScript, plain toasts
disappear automatically, those with an undo stay until the next act, and errors until closed (redrive.js). The audit has
all acts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from django.contrib import messages
from django.http import HttpRequest


@dataclass(frozen=True, slots=True)
class Toast:
    text: str
    level: str  # success, warning, error, info
    link: str = ""
    link_text: str = ""
    undo: str = ""  # URL for the POST that undoes the act
    undo_fields: tuple[tuple[str, str], ...] = ()


def add_toast(
    request: HttpRequest,
    text: str,
    *,
    level: str = "success",
    link: str = "",
    link_text: str = "Open",
    undo: str = "",
    undo_fields: list[tuple[str, object]] | None = None,
) -> None:
    """Add a message for the acting person; `undo` is the URL for the POST of `undo_fields`."""
    parts = {"link": link, "link_text": link_text, "undo": undo, "fields": [[k, str(v)] for k, v in undo_fields or ()]}
    tags = json.dumps(parts) if link or undo else ""
    messages.add_message(request, getattr(messages, level.upper()), text, extra_tags=tags)


MOST = 3  # shown at once; the audit has all acts


def toasts(request: HttpRequest) -> list[Toast]:
    """Return and clear the pending toasts, latest last."""
    found = []
    for message in messages.get_messages(request):
        try:
            parts = json.loads(message.extra_tags or "{}")
        except ValueError:  # tags of other code (Django's admin)
            parts = {}
        fields = tuple((k, v) for k, v in parts.get("fields", ()))
        link, undo = parts.get("link", ""), parts.get("undo", "")
        found.append(Toast(str(message), message.level_tag, link, parts.get("link_text", ""), undo, fields))
    return found[-MOST:]
