"""Address of a client, also behind proxies.

X-Forwarded-For is read from the right, only as far as trusted proxies (REDRIVE_TRUSTED_PROXIES) wrote it. Anything
further left was written by the client and proves nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from django.http import HttpRequest

from jobs_admin import config

_MOST_HOPS = 20
_SITE_BITS = 64  # of IPv6: the holder of one address has the complete network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


def client_address(request: HttpRequest) -> str | None:
    """Return the address for which wrong passwords are counted; None if the server gives none."""
    return counted_address(request.META.get("REMOTE_ADDR", ""), request.META.get("HTTP_X_FORWARDED_FOR", ""))


def counted_address(peer: str, forwarded: str) -> str | None:
    """Return the address of a client, for IPv6 its /64 network; None if `peer` is not an address."""
    found = find_client(peer, forwarded, config.setting("TRUSTED_PROXIES"))
    if (
        isinstance(found, IPv6Address)
        and not found.is_loopback
        and not is_within(found, config.setting("TRUSTED_PROXIES"))
    ):
        return str(ip_network((found, _SITE_BITS), strict=False).network_address)
    return str(found) if found is not None else None


def find_client(peer: str, forwarded: str, trusted: Collection[Network]) -> Address | None:
    """Return the nearest hop that is no trusted proxy, or the last readable one; None if `peer` is not an address."""
    current = parse_address(peer)
    for hop in reversed(forwarded.rsplit(",", _MOST_HOPS)):
        if current is None or not is_within(current, trusted):
            break
        before = parse_address(hop)
        if before is None:
            break
        current = before
    return current


def parse_address(text: str) -> Address | None:
    """Parse `192.0.2.1`, `192.0.2.1:4711`, `2001:db8::1` or `[2001:db8::1]:4711`; None for anything else."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    if "%" in text:
        return None
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found


def is_within(address: Address, networks: Collection[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def is_shared(address: str) -> bool:
    """Return whether clients share this address: the loopback, or a trusted proxy that does not name its client."""
    found = parse_address(address)
    return found is None or found.is_loopback or is_within(found, config.setting("TRUSTED_PROXIES"))
