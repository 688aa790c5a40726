"""What may be shown of a URL that holds a password, and which URLs are too doubtful to be used at all.

Nothing that a mistyped URL says is repeated but its scheme, host and port: whatever stands elsewhere, or where they
cannot be told apart for sure, may be the password.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

_SCHEMES = frozenset(
    {
        "redis", "rediss", "redis+socket", "unix", "sentinel", "amqp", "amqps", "pyamqp", "sqs", "filesystem",
        "memory", "http", "https", "smtp", "smtps", "smtp+tls", "sqlite", "postgres", "postgresql", "mysql",
    }
)  # fmt: skip
_HOST_AND_PORT = re.compile(r"(?:.*@)?(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")
_ESCAPES = "; in a user or password write @ as %40, # as %23, / as %2F, ? as %3F and : as %3A"


class Unreadable(ValueError):
    """A URL whose parts cannot be told apart. Its text never repeats what the URL says."""


def split(url: str) -> SplitResult:
    """`urlsplit`, strictly. Raises Unreadable where a character of a password was taken for the end of the server."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise Unreadable(f"its server or port cannot be read{_ESCAPES}") from None
    before_values = parts.query.partition("=")[0]
    if "#" in url or "@" in parts.path or "@" in before_values or any(c.isspace() for c in url):
        raise Unreadable(f"it is not clear which part is the server{_ESCAPES}")
    return parts


def shown(url: str) -> str:
    """Its scheme, host and port where they are beyond doubt, else its scheme, else nothing of it."""
    scheme = scheme_of(url)
    if not scheme:
        return "not a URL"
    if scheme == "sqlite" and "@" not in url and url.startswith("sqlite:///"):
        return url.partition("?")[0]
    try:
        parts = split(url)
    except Unreadable:
        return f"{scheme}://…"
    found = _HOST_AND_PORT.fullmatch(parts.netloc)
    if found is None or "@" in parts.query:
        return f"{scheme}://…"
    return f"{scheme}://{found['host']}" + (f":{found['port']}" if found["port"] else "")


def scheme_of(url: str) -> str:
    """Its scheme if that is one we know; empty else, because `password@host:1` has a scheme too."""
    scheme = url.partition(":")[0].lower()
    return scheme if scheme in _SCHEMES else ""
