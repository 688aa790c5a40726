"""Channel documents of the API and the form: parsing and validation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import EmailValidator

from jobs_admin import config
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable
from jobs_admin.core.web_address import BadAddress, WebAddress, parse
from jobs_admin.models import Channel
from jobs_admin.models.notice import EVENTS, KINDS
from jobs_admin.notices import sealing

FIELDS = ("name", "kind", "url", "to", "events", "secret")
LONGEST_NAME = 100
MOST_ADDRESSES = 20
PAGERDUTY = "https://events.pagerduty.com/v2/enqueue"
_ROUTING_KEY = re.compile(r"[A-Za-z0-9]{32}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A channel to be stored. `secret`: None keeps the present one."""

    name: str
    kind: str
    url: str = ""  # empty where the address is itself the secret
    to: str = ""  # one address a line
    events: tuple[str, ...] = ()
    secret: str | None = None
    address: WebAddress | None = None  # of requests, if it is given again


def read(document: object, before: Channel | None = None) -> Wanted:
    """Return the channel. Raises Refused for the first invalid field. An omitted field is unchanged."""
    if not isinstance(document, Mapping):
        raise invalid("Send a channel as an object of fields.", None)
    if unknown := [name for name in document if name not in FIELDS]:
        raise invalid(f"Unknown field {representable(str(unknown[0]))[:40]!r}. Known: {', '.join(FIELDS)}.", "kind")
    kind = str(document.get("kind") or (before.kind if before else ""))
    if kind not in KINDS:
        raise invalid(f"kind must be one of {', '.join(KINDS)}.", "kind")
    if before is not None and kind != before.kind:
        raise invalid(f"{before.name} is of kind {before.kind}. Create another channel for {kind}.", "kind")
    name = _name(document.get("name", before.name if before else ""))
    events = _events(document.get("events", before.events if before else []))
    fields = _Fields(document, before)
    return Wanted(name, kind, events=events, **_OF_KIND[kind](fields))


def find_problems(document: Mapping[str, Any], before: Channel | None = None) -> list[Refused]:
    """Return the refusal of each invalid field, as `read` raises the first."""
    found: list[Refused] = []
    tried = dict(document)
    for _ in FIELDS:
        try:
            read(tried, before)
            break
        except Refused as refused:
            found.append(refused)
            if refused.field not in _VALID:
                break
            kind = str(tried.get("kind") or (before.kind if before else ""))
            tried[refused.field] = _VALID[refused.field] if refused.field in _TAKEN.get(kind, ()) else None
    return found


# A valid value of each field that can be refused, for the refusals of the others; and the fields of each kind.
_VALID = {"name": "name", "url": "https://example.com/", "to": ["a@example.com"], "secret": "0" * 32, "events": []}
_TAKEN = {
    "webhook": ("name", "events", "url"),
    "slack": ("name", "events", "url"),
    "pagerduty": ("name", "events", "url", "secret"),
    "email": ("name", "events", "to"),
}


@dataclass(frozen=True, slots=True)
class _Fields:
    document: Mapping[str, Any]
    before: Channel | None

    def text(self, field: str) -> str:
        value = self.document.get(field)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise invalid(f"{field} must be text.", field)
        return representable(value).strip()

    def is_left_out(self, field: str) -> bool:
        """Return whether the present value stays: a form sends a hidden value as an empty text."""
        return self.before is not None and not self.text(field)


def _webhook(fields: _Fields) -> dict[str, Any]:
    _nothing(fields, "to", "webhook")
    secret = fields.text("secret") or None
    if secret is not None and not sealing.is_signing_secret(secret):
        raise invalid("A secret is whsec_ followed by 24 to 64 bytes in Base64. Omit it to generate one.", "secret")
    if fields.before is not None and fields.is_left_out("url"):
        return {"url": fields.before.url, "secret": secret}
    address = _parse_address(fields.text("url"))
    return {"url": str(address), "address": address, "secret": secret}


def _slack(fields: _Fields) -> dict[str, Any]:
    """Parse a Slack channel. Everyone who knows the address can post: it is the secret."""
    _nothing(fields, "to", "slack")
    if fields.text("secret"):
        raise invalid("Slack has no secret: its URL is the secret. Set url instead.", "secret")
    # What reading answers of it is cut off where the secret begins.
    if fields.is_left_out("url") or (fields.before is not None and fields.text("url").endswith("…")):
        return {}
    address = _parse_address(fields.text("url"))
    return {"secret": str(address), "address": address}


def _pagerduty(fields: _Fields) -> dict[str, Any]:
    _nothing(fields, "to", "pagerduty")
    key = fields.text("secret")
    if not key and fields.before is None:
        raise invalid("Enter PagerDuty's routing key (integration key) as secret.", "secret")
    if key and not _ROUTING_KEY.fullmatch(key):
        raise invalid("A PagerDuty routing key has 32 letters and digits.", "secret")
    if fields.before is not None and fields.is_left_out("url"):
        return {"url": fields.before.url, "secret": key or None}
    address = _parse_address(fields.text("url") or PAGERDUTY)
    return {"url": str(address), "address": address, "secret": key or None}


def _email(fields: _Fields) -> dict[str, Any]:
    _nothing(fields, "url", "email")
    _nothing(fields, "secret", "email")
    is_unchanged = fields.before is not None and "to" not in fields.document
    to = fields.before.to if fields.before and is_unchanged else "\n".join(_addresses(fields.document.get("to")))
    if not config.sends_mail():
        raise invalid(
            "No mail server is configured. Set EMAIL_URL, such as smtps://user:password@mail.example.com:465, and restart "
            "the desk (docs/operations.md#settings).",
            "kind",
        )
    return {"to": to}


_OF_KIND = {"webhook": _webhook, "slack": _slack, "pagerduty": _pagerduty, "email": _email}


def _nothing(fields: _Fields, field: str, kind: str) -> None:
    if fields.document.get(field):
        raise invalid(f"A channel of kind {kind} has no {field}.", field)


def _parse_address(url: str) -> WebAddress:
    if not url:
        raise invalid("Enter a URL.", "url")
    try:
        return parse(url)
    except BadAddress as error:
        raise invalid(str(error), "url") from error


def _name(value: object) -> str:
    name = " ".join(representable(str(value)).split())
    if not name or len(name) > LONGEST_NAME:
        raise invalid(f"Enter a name of 1 to {LONGEST_NAME} characters.", "name")
    return name


def invalid(message: str, field: str | None) -> Refused:
    return Refused("invalid", f"{message} Nothing was changed.", field)


def _events(value: object) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise invalid(f"events must be a list of {', '.join(EVENTS)}.", "events")
    for one in value:
        if one not in EVENTS:
            shown = representable(str(one))[:40]
            raise invalid(f"Unknown event {shown!r}. Known: {', '.join(EVENTS)}.", "events")
    return tuple(event for event in EVENTS if event in value)


def _addresses(value: object) -> list[str]:
    """Return the addresses of a list, or of a text with one a line or commas between them."""
    parts = re.split(r"[,\n]", value) if isinstance(value, str) else value
    if not isinstance(parts, Sequence):
        raise invalid("to must be a list of addresses.", "to")
    found = list(dict.fromkeys(part for part in (str(part).strip() for part in parts) if part))
    if not 1 <= len(found) <= MOST_ADDRESSES:
        raise invalid(f"Enter 1 to {MOST_ADDRESSES} addresses.", "to")
    for one in found:
        try:
            if len(one) > 254 or any(c.isspace() for c in one):
                raise ValidationError("")
            EmailValidator()(one)
        except ValidationError as error:
            raise Refused(
                "invalid", f"{representable(one)[:80]!r} is not an e-mail address. Nothing was changed.", "to"
            ) from error
    return found
