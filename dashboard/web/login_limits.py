"""Limits of wrong passwords: ten for a name from an address, a hundred for all names from an address, in 15 minutes.

The address is the client's, also behind proxies: X-Forwarded-For is read from its right end, and only as far as trusted
proxies (REDRIVE_TRUSTED_PROXIES) wrote it. What stands further left was written by the client and says nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from axes.attempts import get_cool_off_threshold
from axes.handlers.database import AxesDatabaseHandler
from axes.models import AccessAttempt
from django.conf import settings
from django.db.models import Sum
from django.http import HttpRequest

from jobs_admin import config

FAILURES_OF_ADDRESS = 100
_MOST_HOPS = 20
_SITE_BITS = 64  # of IPv6: who has one address of such a network has all of them

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


def client_address(request: HttpRequest) -> str | None:
    """Return the address that wrong passwords are counted for; None where the server gives none."""
    return counted_address(request.META.get("REMOTE_ADDR", ""), request.META.get("HTTP_X_FORWARDED_FOR", ""))


def counted_address(peer: str, forwarded: str) -> str | None:
    """Return the address of a client, of IPv6 its /64 network's; None where `peer` is no address."""
    found = find_client(peer, forwarded, config.setting("TRUSTED_PROXIES"))
    if (
        isinstance(found, IPv6Address)
        and not found.is_loopback
        and not is_within(found, config.setting("TRUSTED_PROXIES"))
    ):
        return str(ip_network((found, _SITE_BITS), strict=False).network_address)
    return str(found) if found is not None else None


def find_client(peer: str, forwarded: str, trusted: Collection[Network]) -> Address | None:
    """The nearest hop that is no trusted proxy, or the last readable one. None where `peer` is no address."""
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
    """`192.0.2.1`, `192.0.2.1:4711`, `2001:db8::1` or `[2001:db8::1]:4711`; None for anything else."""
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
    """Return whether many clients share this address: the loopback or a trusted proxy, with the client's unknown."""
    found = parse_address(address)
    return found is None or found.is_loopback or is_within(found, config.setting("TRUSTED_PROXIES"))


class Handler(AxesDatabaseHandler):
    """The counters of axes, and a bound for each address over all names."""

    def get_failures(self, request: HttpRequest, credentials: dict | None = None) -> int:
        failures = super().get_failures(request, credentials)
        return max(failures, settings.AXES_FAILURE_LIMIT) if self._has_tried_many_names(request) else failures

    def _has_tried_many_names(self, request: HttpRequest) -> bool:
        address = client_address(request)
        # A shared address would lock everyone out: only its pairs with a name are locked.
        if address is None or is_shared(address):
            return False
        recent = AccessAttempt.objects.filter(ip_address=address, attempt_time__gte=get_cool_off_threshold(request))
        return (recent.aggregate(n=Sum("failures_since_start"))["n"] or 0) >= FAILURES_OF_ADDRESS
