"""Keys of the setting REDRIVE with defaults and parsers, for environment variables and Python values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any
from urllib.parse import urlsplit

from jobs_admin.core import syslog, url_template, web_address


class BadSetting(ValueError):
    """A setting that cannot be used. The message names it and states what to write."""


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


def _target(name: str, value: Any) -> str:
    text = _text(name, value).strip()
    try:
        if text:
            syslog.parse_target(text)
    except syslog.BadTarget as error:
        raise BadSetting(f"{name}: {error}") from error
    return text


# Fields of URL templates: a failure's facts, and the time around it (Unix milliseconds, or ISO 8601).
_OF_FAILURE = (
    "trace_id", "span_id", "event_id", "job_id", "task", "queue", "source", "tenant", "worker", "host", "release", "from", "to",
    "from_iso", "to_iso",
)  # fmt: skip


def _template(*fields: str) -> Callable[[str, Any], str]:
    """Return the parser of a URL template with these fields."""

    def parse(name: str, value: Any) -> str:
        text = _text(name, value).strip()
        try:
            if text:
                url_template.check_template(text, fields)
        except url_template.BadTemplate as error:
            raise BadSetting(f"{name} cannot be used: {error}") from error
        return text

    return parse


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
    """Return contacts in the form of RFC 9116: `mailto:`, `https:` and `tel:` URIs.

    A bare mail address becomes a `mailto:`.
    """
    found = []
    for part in _texts(name, value):
        contact = f"mailto:{part}" if "@" in part and ":" not in part else part
        if not _CONTACT.fullmatch(contact):
            raise BadSetting(
                f"{name}: {part!r} is not a contact. Example: security@example.com, https://example.com/report."
            )
        found.append(contact)
    return found


_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def _issuer(name: str, value: Any) -> str:
    """Return an OpenID provider's issuer, exactly as in its tokens. Without TLS only on this host."""
    url = _text(name, value)
    if not url:
        return ""
    if any(character.isspace() for character in url) or "?" in url or "#" in url or not is_safe_origin(url):
        raise BadSetting(
            f"{name} must be https:// and the provider's address, such as https://id.example.com/realms/ops."
        )
    return url


def is_safe_origin(url: str) -> bool:
    """Return whether a URL uses TLS or this host, and has a host and no credentials."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)
    return bool(host) and is_safe and "@" not in parts.netloc


_GIVEN = re.compile(r"(viewer|auditor|operator|admin)(?::([a-z0-9_-]{1,63}|\*))? *= *(\S.*)")


def _group_roles(name: str, value: Any) -> list[tuple[str, str, str]]:
    """Return (group, source, role) of each `role:source = group`, by line or semicolon: group names contain commas
    and `=`.
    """
    if not isinstance(value, (str, list, tuple)):
        raise BadSetting(f"{name} must be a string, not {type(value).__name__}.")
    found = []
    for part in re.split(r"[;\n]", value) if isinstance(value, str) else value:
        if isinstance(part, tuple):
            found.append(part)
        elif text := _text(name, part).strip():
            given = _GIVEN.fullmatch(text)
            if given is None:
                raise BadSetting(
                    f"{name}: {text!r} gives no role to a group. Example: admin=platform; operator:shop=shop-oncall."
                )
            found.append((given[3], given[2] or "*", given[1]))
    return found


_ROLES = ("viewer", "auditor", "operator", "admin")


def _roles(name: str, value: Any) -> list[str]:
    found = _texts(name, value)
    if unknown := [role for role in found if role not in _ROLES]:
        raise BadSetting(f"{name}: {unknown[0]!r} is not a role; known: {', '.join(_ROLES)}. Example: admin, operator.")
    return found


def _signing_secret(name: str, value: Any) -> str:
    text = _text(name, value).strip()
    if text and not re.fullmatch(r"[0-9A-Za-z]{32,128}", text, re.ASCII):
        raise BadSetting(f"{name} must be the Signing Secret of your Slack app: 32 letters and digits.")
    return text


@dataclass(frozen=True, slots=True)
class Setting:
    default: Any
    parse: Callable[[str, Any], Any]


SETTINGS = {
    "REDIS_URL": Setting("", _text),
    "CELERY_BROKER_URL": Setting("", _text),
    "SOURCES": Setting("", _text),
    "TEST_BACKENDS": Setting([], _texts),  # tests add `memory`, which exists in one process and is not persistent
    "DEMO_BROKER_URL": Setting("", _text),  # set by `up`: the demo shop's broker
    "DEMO_PARTNER_URL": Setting("", _text),  # set by `up`: the demo's partner that /demo/ breaks
    "PAYLOAD_KEYS": Setting([], _texts),
    "KEEP": Setting("", _text),  # "dead=90d, recovered+gone=7d"
    "KEEP_BYTES": Setting("", _text),
    "APPROVE_ABOVE": Setting("", _number),  # jobs: a larger replay needs a second person
    "DANGEROUS_TASKS": Setting([], _texts),  # globs: a replay of such a task also does
    "READ_ONLY": Setting(False, _switch),
    "NEWER_SCHEMA": Setting(False, _switch),  # run on the schema of a newer version
    "WEBHOOK_ALLOW": Setting([], _allowances),  # non-public hosts and networks that channels may reach
    "HEARTBEAT_URL": Setting("", _address),  # requested each minute while everything is watched
    "TRACE_URL": Setting("", _template(*_OF_FAILURE)),  # links of a failure's page
    "LOGS_URL": Setting("", _template(*_OF_FAILURE)),
    "SENTRY_URL": Setting("", _template(*_OF_FAILURE)),
    "ISSUE_URL": Setting("", _template("title", "body", "url")),  # an issue tracker's form for an issue of a group
    "AUDIT_FORWARD": Setting("", _target),  # syslog receiver or webhook channel that gets each audit event
    "TRUSTED_PROXIES": Setting([], _networks),  # proxies whose X-Forwarded-For names the client
    "SECURITY_CONTACT": Setting([], _contacts),  # for /.well-known/security.txt
    "OIDC_ISSUER": Setting("", _issuer),  # empty: no sign-in by OpenID Connect
    "OIDC_CLIENT_ID": Setting("", _text),
    "OIDC_CLIENT_SECRET": Setting("", _text),
    "OIDC_NAME": Setting("", _text),  # provider's name on the login page
    "OIDC_SCOPES": Setting("openid profile email", _text),
    "OIDC_GROUPS_CLAIM": Setting("groups", _text),
    "OIDC_ROLES": Setting([], _group_roles),
    "OIDC_ONLY": Setting(False, _switch),  # disables passwords
    "SLACK_SIGNING_SECRET": Setting("", _signing_secret),  # of the Slack app; empty: no approval in Slack
    "SECOND_FACTOR_FOR": Setting([], _roles),  # roles whose holders need a second factor besides their password
    "URL": Setting("http://127.0.0.1:8000", _origin),  # base of links outside the browser; without a path
    "SENDS_MAIL": Setting(False, _switch),  # channels of kind E-mail send through Django's EMAIL_BACKEND
}


def parse(given: Any, names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return all settings by key: parsed values of `given`, and defaults.

    Raises BadSetting for an unknown key or an invalid value. `names`: key -> variable name for messages.
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
