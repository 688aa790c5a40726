"""URLs with named fields, such as `https://tempo.example/trace/{trace_id}`: links to the tools that a team has.

Fields stand in path, query and fragment, never in the host. Their values are percent-encoded, so none adds a part of
the URL. Nothing requests such a URL: a person opens it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from itertools import accumulate
from urllib.parse import quote

from jobs_admin.core import web_address

_FIELD = re.compile(r"\{([a-z_]*)\}")
_BEFORE_FIELDS = re.compile(r"https?://[^/?#{}]+[/?#]", re.IGNORECASE)


class BadTemplate(ValueError):
    """The text is no usable template. The message completes a sentence that names the setting."""


def check_template(text: str, fields: Collection[str]) -> None:
    """Raise BadTemplate for a template with other fields than these, or whose URL cannot be used."""
    for name in _FIELD.findall(text):
        if name not in fields:
            raise BadTemplate(f"{{{name}}} is not a field; known: {', '.join(f'{{{one}}}' for one in fields)}.")
    if not _FIELD.search(text):
        raise BadTemplate(f"It has no field, such as {{{next(iter(fields))}}}.")
    address, _, fragment = _FIELD.sub("x", text).partition("#")
    try:
        web_address.parse(address)
        web_address.parse(f"https://x.example/{fragment}".replace("#", "%23"))
    except web_address.BadAddress as error:
        raise BadTemplate(str(error)) from error
    if not _BEFORE_FIELDS.match(text):
        raise BadTemplate("A field must not be part of the host.")


def fill(template: str, values: Mapping[str, str]) -> str:
    """Return the URL; "" if there is no template, or a field has no value.

    A value of dots alone counts as none: encoded or not, a browser would read it as a step up in the path.
    """
    names = _FIELD.findall(template)
    if any(not values.get(name, "").strip(".") for name in names):
        return ""
    return _FIELD.sub(lambda found: _encode(values[found[1]]), template)


def cut(text: str, most: int) -> str:
    """Return the beginning of `text` that has at most `most` characters where it is filled in."""
    lengths = accumulate(len(_encode(character)) for character in text[:most])
    return text[: sum(length <= most for length in lengths)]


def _encode(text: str) -> str:
    return quote(text, safe="", errors="replace")
