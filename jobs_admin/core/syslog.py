"""Syslog messages (RFC 5424), and the addresses that events are forwarded to."""

from __future__ import annotations

import re
from dataclasses import dataclass

_AUDIT_FACILITY = 13  # "log audit"
_WARNING, _NOTICE = 4, 5
_NETWORK = re.compile(r"(udp|tcp)://(\[[0-9a-fA-F:.]+\]|[^\s/:@\[\]]+):([0-9]{1,5})")
EXAMPLES = "udp://siem.internal:514, tcp://siem.internal:601, unix:/dev/log or channel:SIEM"


class BadTarget(ValueError):
    """Text that is no address to forward to."""


@dataclass(frozen=True, slots=True)
class Target:
    kind: str  # "udp", "tcp", "unix", or "channel" for a webhook channel of the desk
    name: str  # host, path of the socket, or name of the channel
    port: int = 0


def parse_target(text: str) -> Target:
    """Return the target. Raises BadTarget."""
    kind, separator, name = text.partition(":")
    if separator and (name.strip() if kind == "channel" else kind == "unix" and name.startswith("/")):
        return Target(kind, name.strip())
    found = _NETWORK.fullmatch(text)
    if found is None or not 0 < int(found[3]) < 65_536:
        raise BadTarget(f"{text!r} is not an address to forward to. Examples: {EXAMPLES}.")
    return Target(found[1], found[2].strip("[]"), int(found[3]))


def build_message(text: str, *, when: str, host: str, name: str, is_warning: bool) -> bytes:
    """Return the message. `when`: its time by RFC 3339; `name`: its MSGID. Both names are made fit for a header."""
    priority = _AUDIT_FACILITY * 8 + (_WARNING if is_warning else _NOTICE)
    return f"<{priority}>1 {when} {_header(host, 255)} redrive - {_header(name, 32)} - {text}".encode()


def _header(text: str, most: int) -> str:
    return re.sub(r"[^!-~]", "_", text)[:most] or "-"
