"""The keys of the setting REDRIVE with their defaults, and how each value is read: as a text of the environment, or as Python."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

from jobs_admin.core import web_address


class BadSetting(ValueError):
    """A setting that cannot be used. The text names it and says what to write."""


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise BadSetting(f"{name} must be a string, not {type(value).__name__}.")
    return value


def _texts(name: str, value: Any) -> list[str]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, (list, tuple)) or not all(isinstance(part, str) for part in value):
        raise BadSetting(f"{name} must be a list of strings, not {type(value).__name__}.")
    return list(value)


def _switch(name: str, value: Any) -> bool:
    found = str(value).lower()
    if found in {"", "0", "false", "no", "off"}:
        return False
    if found in {"1", "true", "yes", "on"}:
        return True
    raise BadSetting(f"{name} must be 1 or 0, not {found!r}.")


def _number(name: str, value: Any) -> str:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _text(name, value)


def _origin(name: str, value: Any) -> str:
    return _text(name, value).rstrip("/")


def _address(name: str, value: Any) -> str:
    url = _text(name, value)
    try:
        return str(web_address.parse(url)) if url else ""
    except web_address.BadAddress as error:
        raise BadSetting(f"{name} cannot be used: {error}") from error


def _allowances(name: str, value: Any) -> list[str]:
    found = _texts(name, value)
    try:
        web_address.parse_allowed(found)
    except web_address.BadAllowance as error:
        raise BadSetting(f"{name}: {error}. Example: 10.2.0.0/16, hooks.internal.") from error
    return found


def _networks(name: str, value: Any) -> list[IPv4Network | IPv6Network]:
    if not isinstance(value, (str, list, tuple)):
        raise BadSetting(f"{name} must be a list of addresses and networks, not {type(value).__name__}.")
    found = []
    for part in _texts(name, value) if isinstance(value, str) else value:
        try:
            network = ip_network(part, strict=False)
        except ValueError as error:
            raise BadSetting(
                f"{name}: {part!r} is neither an address nor a network. Example: 127.0.0.1, 10.2.0.0/16."
            ) from error
        if network.prefixlen == 0:
            raise BadSetting(
                f"{name}: {part} is every address, so any client could pose as any other. List only your proxies."
            )
        found.append(network)
    return found


_CONTACT = re.compile(r"mailto:[^\s@,]+@[^\s@,]+|https://[^\s/,]+\S*|tel:\+?[0-9][0-9-]+")


def _contacts(name: str, value: Any) -> list[str]:
    """Contacts as RFC 9116 writes them: `mailto:`, `https:` and `tel:` URIs. A bare mail address becomes a `mailto:`."""
    found = []
    for part in _texts(name, value):
        contact = f"mailto:{part}" if "@" in part and ":" not in part else part
        if not _CONTACT.fullmatch(contact):
            raise BadSetting(
                f"{name}: {part!r} is not a contact. Example: security@example.com, https://example.com/report."
            )
        found.append(contact)
    return found


@dataclass(frozen=True, slots=True)
class Setting:
    default: Any
    parse: Callable[[str, Any], Any]


SETTINGS = {
    "REDIS_URL": Setting("", _text),
    "CELERY_BROKER_URL": Setting("", _text),
    "SOURCES": Setting("", _text),
    "TEST_BACKENDS": Setting([], _texts),  # tests add `memory`, which lives in one process and forgets
    "DEMO_BROKER_URL": Setting("", _text),  # set by `up`: the demo shop's broker
    "DEMO_PARTNER_URL": Setting("", _text),  # set by `up`: the partner that /demo/ breaks
    "PAYLOAD_KEYS": Setting([], _texts),
    "KEEP": Setting("", _text),  # "dead=90d, recovered+gone=7d"
    "KEEP_BYTES": Setting("", _text),
    "APPROVE_ABOVE": Setting("", _number),  # jobs: a larger replay needs a second person
    "DANGEROUS_TASKS": Setting([], _texts),  # globs: so does a replay of such a task
    "READ_ONLY": Setting(False, _switch),
    "NEWER_SCHEMA": Setting(False, _switch),  # runs on the schema of a newer version
    "WEBHOOK_ALLOW": Setting([], _allowances),  # hosts and networks that channels may reach, not public
    "HEARTBEAT_URL": Setting("", _address),  # requested each minute while everything is watched
    "TRUSTED_PROXIES": Setting([], _networks),  # whose X-Forwarded-For names the client
    "SECURITY_CONTACT": Setting([], _contacts),  # for /.well-known/security.txt
    "URL": Setting("http://127.0.0.1:8000", _origin),  # of links that leave the browser; without a path
    "SENDS_MAIL": Setting(False, _switch),  # channels of kind E-mail send through Django's EMAIL_BACKEND
}


def parse(given: Any, names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return every setting by its key: those of `given`, parsed, and the defaults of the others.

    Raises BadSetting for an unknown key or a value that cannot be used. `names` are what the texts call the keys:
    their variables.
    """
    if not isinstance(given, Mapping):
        raise BadSetting("REDRIVE must be a dict of settings.")
    for key in given:
        if key not in SETTINGS:
            near = difflib.get_close_matches(str(key).upper().removeprefix("REDRIVE_"), SETTINGS, 1, 0.5)
            instead = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(SETTINGS)}."
            raise BadSetting(f"REDRIVE has an unknown key {key!r}; {instead}")
    return {
        key: one.parse((names or {}).get(key, f"REDRIVE[{key!r}]"), given[key]) if key in given else one.default
        for key, one in SETTINGS.items()
    }
