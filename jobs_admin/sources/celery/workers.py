"""Celery's remote control, with kombu only: consumers of queues, and the switch of events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis
from amqp.exceptions import AMQPError
from kombu.connection import Connection
from kombu.exceptions import KombuError
from kombu.pidbox import Mailbox

from jobs_admin.core import sentinel_url
from jobs_admin.sources.base import SourceUnreachable

_ANSWER_S = 0.8  # workers answer each other within milliseconds, except while they run a job
_BROKER_S = 2.0


def consumers(url: str, transport_options: Mapping[str, Any], ssl: Any = None) -> dict[str, set[str]] | None:
    """Return the answer of `celery inspect active_queues`: queue -> names of workers.

    None if the broker does not answer: unreachable, or it counts but refuses the query (a command firewall).
    """
    found: dict[str, set[str]] = {}
    try:
        for answer in _answers(url, dict(transport_options), ssl):
            for node, queues in answer.items():
                for queue in queues if isinstance(queues, list) else ():
                    found.setdefault(str(queue["name"]), set()).add(str(node))
    except (redis.RedisError, AMQPError, KombuError, OSError, KeyError):  # KeyError: a scheme unknown to kombu
        return None
    return found


def _answers(url: str, transport_options: dict[str, Any], ssl: Any) -> list[dict[str, Any]]:
    with _connection(url, transport_options, ssl) as connection:
        if connection.transport.driver_type == "amqp":
            connection.connect()
            # Otherwise a broker that hangs while we declare our queue would block us forever.
            connection.connection.transport.sock.settimeout(_BROKER_S)
        mailbox = Mailbox("celery", type="fanout", accept=["json"])(connection)  # type: ignore[no-untyped-call]
        return list(mailbox.multi_call("active_queues", timeout=_ANSWER_S) or ())


def _connection(url: str, options: dict[str, Any], ssl: Any) -> Any:
    address, of_sentinels, tls = sentinel_url.for_kombu(url)
    return Connection(  # type: ignore[no-untyped-call]
        address,
        transport_options=options | of_sentinels,
        connect_timeout=_BROKER_S,
        ssl=(ssl if tls is None else tls) or False,
    )


def switch_events(url: str, on: bool, transport_options: Mapping[str, Any], ssl: Any = None) -> None:
    """Publish Celery's remote control `enable_events` or `disable_events` to all workers. Raises SourceUnreachable."""
    options = dict(transport_options)
    try:
        with _connection(url, options, ssl) as connection:
            connection.ensure_connection(max_retries=1, timeout=_BROKER_S)
            mailbox = Mailbox("celery", type="fanout", accept=["json"])(connection)  # type: ignore[no-untyped-call]
            mailbox.abcast("enable_events" if on else "disable_events")
    except (redis.RedisError, AMQPError, KombuError, OSError, KeyError) as error:
        raise SourceUnreachable(f"The broker did not accept the command ({type(error).__name__}).") from error
