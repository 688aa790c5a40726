"""Strict parsing of web addresses, and the check that an IP address is public (SSRF).

No two parsers can read different servers from a parsed address. Python's `is_private` and `is_global` are not used:
they accept NAT64, 6to4, carrier-grade NAT, site-local or multicast addresses, and they differ between versions. The
list follows IANA's special-purpose registries (RFC 6890), read in 2026.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_SPECIAL = {
    "0.0.0.0/8": "of this network",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "behind a provider's NAT",
    "127.0.0.0/8": "loopback",
    "168.63.129.16/32": "of the cloud's own host",  # Azure; a public address that only its hosts reach
    "169.254.0.0/16": "link-local, where clouds keep metadata",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "of protocol assignments",  # includes a cloud's metadata service, 192.0.0.192
    "192.0.2.0/24": "for documentation",
    "192.88.99.0/24": "of 6to4 relays",
    "192.168.0.0/16": "private",
    "198.18.0.0/15": "for benchmarks",
    "198.51.100.0/24": "for documentation",
    "203.0.113.0/24": "for documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
    "::/128": "unspecified",
    "::1/128": "loopback",
    "::ffff:0:0/96": "an IPv4 address in IPv6",
    "::ffff:0:0:0/96": "an IPv4 address in IPv6",
    "::/96": "an IPv4 address in IPv6",
    "64:ff9b::/96": "translated to IPv4 (NAT64)",
    "64:ff9b:1::/48": "translated to IPv4 (NAT64)",
    "100::/64": "thrown away",
    "2001::/32": "a tunnel to IPv4 (Teredo)",
    "2001:2::/48": "for benchmarks",
    "2001:db8::/32": "for documentation",
    "2001::/23": "of protocol assignments",
    "2002::/16": "a tunnel to IPv4 (6to4)",
    "3fff::/20": "for documentation",
    "5f00::/16": "of segment routing",
    "fc00::/7": "private",
    "fe80::/10": "link-local",
    "fec0::/10": "site-local",
    "ff00::/8": "multicast",
}
_NETWORKS = [(ip_network(text), why) for text, why in _SPECIAL.items()]
# All public unicast IPv6; addresses outside are unallocated.
_UNICAST = IPv6Network("2000::/3")


def why_not(address: Address) -> str | None:
    """Return the kind of an address that is not public; None for a public one."""
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return "of one link only"
    for network, why in _NETWORKS:
        if address.version == network.version and address in network:
            return why
    if isinstance(address, IPv6Address) and address not in _UNICAST:
        return "not allocated"
    return None


def read(text: str) -> Address | None:
    """Return the address in a text; None if it is none, or only one to a lenient parser (`127.1`)."""
    try:
        return ip_address(text)
    except ValueError:
        return None


class BadAllowance(ValueError):
    """An allowed entry that is neither a host nor a network. The message names it."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """Allowed targets that are not public: hosts by the name in the URL, and networks; each with its only port, or
    None for all.
    """

    hosts: frozenset[tuple[str, int | None]] = frozenset()
    networks: tuple[tuple[Network, int | None], ...] = ()

    def names(self, host: str, port: int) -> bool:
        """Return whether the host is listed by name: then any address of it is allowed."""
        return not self.hosts.isdisjoint({(host.lower(), None), (host.lower(), port)})

    def holds(self, address: Address, port: int) -> bool:
        plain = address.ipv4_mapped if isinstance(address, IPv6Address) and address.ipv4_mapped else address
        return any(
            plain.version == network.version and plain in network and only in (None, port)
            for network, only in self.networks
        )


_ENTRY = re.compile(
    r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<host>[^:\[\]]+)):(?P<port>[0-9]{1,5})|\[(?P<bare>[0-9a-f:.]+)\]|(?P<all>[^\[\]]+)"
)
_HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")


def parse_allowed(entries: Iterable[str]) -> Allowed:
    """Parse `hooks.internal`, `10.2.0.0/16`, `::1`, `127.0.0.1:9000`, `[::1]:9000`. Raises BadAllowance."""
    hosts, networks = set(), []
    for entry in filter(None, (entry.strip().lower() for entry in entries)):
        found = _ENTRY.fullmatch(entry)
        what = (found["six"] or found["host"] or found["bare"] or found["all"]) if found else entry
        port = int(found["port"]) if found and found["port"] else None
        if port is not None and not 1 <= port <= 65535:
            raise BadAllowance(f"{entry[:80]!r} is neither a host nor a network (ports are 1 to 65535)")
        try:
            networks.append((ip_network(what), port))
            continue
        except ValueError as error:
            is_host = _HOST.fullmatch(what) and not what.rpartition(".")[2].isdigit()
            if not is_host:
                raise BadAllowance(f"{entry[:80]!r} is neither a host nor a network ({error})") from None
        hosts.add((what, port))
    return Allowed(frozenset(hosts), tuple(networks))


LONGEST = 1_000
PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<server>[^/?#]*)(?P<rest>.*)", re.DOTALL)
_SERVER = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*)(?::(?P<port>[0-9]{0,5}))?")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
# Printable characters, without those that parsers disagree about.
_TARGET = re.compile(r"[!$-;=?-\[\]_a-z~%]*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class BadAddress(ValueError):
    """A URL that is not requested. The message gives the reason, without any part of its path."""


@dataclass(frozen=True, slots=True)
class WebAddress:
    scheme: str  # http, https
    host: str  # lower case; an IPv6 address without its brackets
    port: int
    target: str  # path and query

    @property
    def literal(self) -> Address | None:
        """Host as an IP address; None if it is a name."""
        return read(self.host)

    @property
    def server(self) -> str:
        """Value of the header `Host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def without_path(self) -> str:
        """Address without path and query, which may contain a secret."""
        return f"{self.scheme}://{self.server}" + ("/…" if self.target not in ("", "/") else "/")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.server}{self.target}"


def parse(url: str) -> WebAddress:
    """Parse a URL. Raises BadAddress."""
    if len(url) > LONGEST:
        raise BadAddress(f"A URL must have at most {LONGEST} characters.")
    if not url.isascii() or any(c <= " " or c == "\x7f" for c in url):
        raise BadAddress(
            "A URL must not contain spaces or non-ASCII characters: write international domain names as xn--…."
        )
    found = _URL.fullmatch(url)
    if found is None or found["scheme"].lower() not in PORTS:
        raise BadAddress("A URL must begin with https:// or http://.")
    scheme, server, rest = found["scheme"].lower(), found["server"], found["rest"]
    if "@" in server:
        raise BadAddress("A URL must not contain a user or password.")
    if "#" in rest:
        raise BadAddress("A URL must not contain a fragment (#): servers never receive it.")
    server_parts = _SERVER.fullmatch(server)
    if server_parts is None or not server_parts["host"]:
        raise BadAddress("The host of the URL cannot be read.")
    port = int(server_parts["port"] or PORTS[scheme])
    if not 1 <= port <= 65535:
        raise BadAddress("A port must be a number from 1 to 65535.")
    target = rest if rest.startswith("/") else f"/{rest}"
    if not _TARGET.fullmatch(target):
        raise BadAddress('Escape ", <, >, \\, ^, `, {, | and } in path and query, such as " as %22.')
    return WebAddress(scheme, _host(server_parts["host"].lower()), port, target)


def _host(host: str) -> str:
    if host.startswith("["):
        address = read(host[1:-1])
        if address is None or address.version != 6 or "%" in host:
            raise BadAddress("The host in brackets is not an IPv6 address.")
        return str(address)
    if host.endswith("."):
        raise BadAddress("The host must not end with a dot.")
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadAddress(
            "The host of the URL cannot be read. Use a name, or an address such as 203.0.113.7 or [2001:db8::7]."
        )
    # 0x7f.1, 127.1, 2130706433 and 0177.0.0.1 are 127.0.0.1 to a lenient parser, and names to another.
    if _NUMBER.fullmatch(labels[-1]) and read(host) is None:
        raise BadAddress("Write an IPv4 address as four numbers from 0 to 255, without leading zeros.")
    return host
