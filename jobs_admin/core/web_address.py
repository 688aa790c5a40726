"""The address of a web server, read so strictly that no two readers can take it for different servers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from jobs_admin.core.public_address import Address, read

LONGEST = 1_000
PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<server>[^/?#]*)(?P<rest>.*)", re.DOTALL)
_SERVER = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*)(?::(?P<port>[0-9]{0,5}))?")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
# Printable, and none of those that one reader takes for another or ends at.
_TARGET = re.compile(r"[!$-;=?-\[\]_a-z~%]*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class BadAddress(ValueError):
    """A URL that is not asked at all. The text says what is wrong with it, and repeats nothing of its path."""


@dataclass(frozen=True, slots=True)
class WebAddress:
    scheme: str  # http, https
    host: str  # lower case; an IPv6 address without its brackets
    port: int
    target: str  # path and query

    @property
    def literal(self) -> Address | None:
        """The host as an address, where it is one."""
        return read(self.host)

    @property
    def server(self) -> str:
        """As in the header `Host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """Without path and query, which may hold a secret."""
        return f"{self.scheme}://{self.server}" + ("/…" if self.target not in ("", "/") else "/")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.server}{self.target}"


def parse(url: str) -> WebAddress:
    """Raises BadAddress."""
    if len(url) > LONGEST:
        raise BadAddress(f"A URL has at most {LONGEST} characters.")
    if not url.isascii() or any(c <= " " or c == "\x7f" for c in url):
        raise BadAddress(
            "A URL has neither blanks nor other than ASCII characters: write a name with umlauts as xn--…."
        )
    found = _URL.fullmatch(url)
    if found is None or found["scheme"].lower() not in PORTS:
        raise BadAddress("A URL begins with https:// or http://.")
    scheme, server, rest = found["scheme"].lower(), found["server"], found["rest"]
    if "@" in server:
        raise BadAddress("A URL has no user and password before its host.")
    if "#" in rest:
        raise BadAddress("A URL has no part after #: no server would see it.")
    said = _SERVER.fullmatch(server)
    if said is None or not said["host"]:
        raise BadAddress("The host of the URL cannot be read.")
    port = int(said["port"] or PORTS[scheme])
    if not 1 <= port <= 65535:
        raise BadAddress("A port is a number from 1 to 65535.")
    target = rest if rest.startswith("/") else f"/{rest}"
    if not _TARGET.fullmatch(target):
        raise BadAddress('In path and query write ", <, >, \\, ^, `, {, | and } as %22 and so on.')
    return WebAddress(scheme, _host(said["host"].lower()), port, target)


def _host(host: str) -> str:
    if host.startswith("["):
        address = read(host[1:-1])
        if address is None or address.version != 6 or "%" in host:
            raise BadAddress("What stands in brackets is no IPv6 address.")
        return str(address)
    if host.endswith("."):
        raise BadAddress("Write the host without the dot at its end.")
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadAddress(
            "The host of the URL cannot be read: it is a name, or an address such as 203.0.113.7 or [2001:db8::7]."
        )
    # 0x7f.1, 127.1, 2130706433 and 0177.0.0.1 are 127.0.0.1 to a lenient reader, and a name to another.
    if _NUMBER.fullmatch(labels[-1]) and read(host) is None:
        raise BadAddress("Write an address as four numbers from 0 to 255, without leading noughts.")
    return host
