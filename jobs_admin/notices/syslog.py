"""Sending of syslog messages over UDP, TCP and Unix datagram sockets."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress

from jobs_admin.core.syslog import Target

WITHIN_S = 10.0  # for a connection, and again for its messages
_REFUSED_WITHIN_S = 0.1  # in which a host reports that its UDP port is closed
_POLL_S = 0.005


class NotSent(Exception):
    """Messages that were not sent, or may not have arrived. The text says why."""


def send(messages: Sequence[bytes], target: Target) -> None:
    """Send the messages in order. Raises NotSent; then the receiver may have some of them.

    Over TCP and a Unix socket, the receiver has read all of them. Over UDP, they were sent, and no closed port was
    reported.
    """
    try:
        if target.kind == "tcp":
            with socket.create_connection((target.name, target.port), WITHIN_S) as connection:
                _send_stream(messages, connection)
        else:
            _send_datagrams(messages, target)
    except TimeoutError as error:
        raise NotSent(f"It did not take the messages within {WITHIN_S:.0f} s.") from error
    except (OSError, UnicodeError) as error:
        raise NotSent(f"{getattr(error, 'strerror', None) or error}.") from error


def _send_stream(messages: Sequence[bytes], connection: socket.socket) -> None:
    """Send octet-counted messages (RFC 6587) and wait until the receiver has read the end of the connection.

    Syslog has no acknowledgement. A receiver that ends with unread messages resets the connection, as does the host of
    one that has ended before; so an end without a reset, after all was received, proves that all was read.
    """
    ends = time.monotonic() + WITHIN_S
    connection.sendall(b"".join(b"%d %s" % (len(one), one) for one in messages))
    while _count_unreceived(connection):
        _check(connection)
        if time.monotonic() > ends:
            raise TimeoutError
        time.sleep(_POLL_S)
    _check(connection)
    connection.shutdown(socket.SHUT_WR)
    while True:
        connection.settimeout(max(0.001, ends - time.monotonic()))
        try:
            if not connection.recv(4096):
                break
        except TimeoutError as error:
            raise NotSent(f"It did not close the connection within {WITHIN_S:.0f} s after its end.") from error
    _check(connection)


def _count_unreceived(connection: socket.socket) -> int:
    """Return the number of sent bytes that the receiver's host has not acknowledged; 0 where that is unknown."""
    with suppress(ImportError, OSError):
        import fcntl
        import termios

        return int(struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, struct.pack("i", 0)))[0])
    return 0


def _check(connection: socket.socket) -> None:
    """Raise OSError if the connection was reset."""
    if number := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(number, "The receiver reset the connection")


def _send_datagrams(messages: Sequence[bytes], target: Target) -> None:
    if target.kind == "unix":
        family, address = socket.AF_UNIX, target.name
    else:
        family, _, _, _, address = socket.getaddrinfo(target.name, target.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as connection:
        connection.settimeout(WITHIN_S)
        connection.connect(address)
        for one in messages:
            connection.send(one)
        if target.kind == "udp" and select.select([connection], [], [], _REFUSED_WITHIN_S)[0]:
            connection.recv(4096)
