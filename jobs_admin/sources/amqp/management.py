"""Queue statistics from RabbitMQ's management plugin, over HTTP, read only, with limits of time and size."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from jobs_admin.sources.base import SourceUnreachable

_ANSWER_S = 3.0
_PAGE = 500  # queues an answer, the most that RabbitMQ gives
_MOST_PAGES = 20
_MOST_BYTES = 4_000_000
# Celery's own remote control and events: not exclusive in every version.
_IS_TALK = re.compile(r"(?:^|\.)(?:reply\.)?celery\.pidbox\Z|^celeryev(?:\.|\Z)")
_COLUMNS = "name,type,messages_unacknowledged,exclusive,durable,arguments,effective_policy_definition,consumers"


@dataclass(frozen=True, slots=True)
class QueueState:
    """State of one queue. Counts are about five seconds old; None: unknown."""

    unacknowledged: int | None
    is_ours: bool  # not private, unlike the queues for workers' own messages
    acknowledged: int  # or delivered without acknowledgement, since its statistics started; 0 if not requested
    settings: dict[str, Any]  # effective settings: its arguments, then the broker's policies
    consumers: int = 0


class Management:
    def __init__(self, url: str, user: str, password: str, virtual_host: str) -> None:
        """`user` and `password`: used if the URL has none. Raises ValueError for an invalid URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it begins with http:// or https:// and names a host")
        self._connects = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 15672)
        self._api = f"{parts.path.rstrip('/')}/api"
        self._host_path = quote(virtual_host, safe="")
        login = f"{unquote(parts.username or user)}:{unquote(parts.password or password)}"
        self._login = "Basic " + base64.b64encode(login.encode()).decode()
        self.where = f"RabbitMQ's management at {self._host}:{self._port}"

    def queues(self) -> dict[str, QueueState]:
        """Return the queues of the virtual host, at most 10,000, the first by name. Raises SourceUnreachable."""
        found: dict[str, QueueState] = {}
        with self._border():
            for page in range(1, _MOST_PAGES + 1):
                answer = self._get(f"queues/{self._host_path}?page={page}&page_size={_PAGE}&columns={_COLUMNS}")
                found |= {str(one["name"]): _parse_queue(one) for one in answer["items"]}
                if page >= answer["page_count"]:
                    break
        return found

    def bindings(self) -> list[tuple[str, str]]:
        """Return (exchange, queue) of the virtual host's bindings, without the default exchange's.

        Raises SourceUnreachable.
        """
        with self._border():
            answer = self._get(f"bindings/{self._host_path}?columns=source,destination,destination_type")
            return [
                (str(one["source"]), str(one["destination"]))
                for one in answer
                if one["destination_type"] == "queue" and one["source"]
            ]

    def queue(self, name: str) -> QueueState:
        """Return the state of one queue, with its count of acknowledged messages. Raises SourceUnreachable."""
        with self._border():
            answer = self._get(f"queues/{self._host_path}/{quote(name, safe='')}?columns={_COLUMNS},message_stats")
            return _parse_queue(answer)

    @contextmanager
    def _border(self) -> Iterator[None]:
        try:
            yield
        except (OSError, HTTPException) as error:
            raise SourceUnreachable(f"{self.where} cannot be reached ({type(error).__name__}).") from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise SourceUnreachable(f"{self.where} gave an answer that cannot be read.") from error

    def _get(self, path: str) -> Any:
        connection = self._connects(self._host, self._port, timeout=_ANSWER_S)
        try:
            connection.request(
                "GET", f"{self._api}/{path}", headers={"Authorization": self._login, "Accept": "application/json"}
            )
            answer = connection.getresponse()  # redirects are not followed: the password is for this host
            if answer.status == 401:
                raise SourceUnreachable(f"{self.where} refused the login. Check the user and password.")
            if answer.status != 200:
                raise SourceUnreachable(f"{self.where} answered {answer.status}.")
            body = answer.read(_MOST_BYTES + 1)
        finally:
            connection.close()
        if len(body) > _MOST_BYTES:
            raise ValueError("too much")
        return json.loads(body)


def _parse_queue(one: dict[str, Any]) -> QueueState:
    count = one.get("messages_unacknowledged")
    settings: dict[str, Any] = {}
    for name, value in (one.get("effective_policy_definition") or {}).items():
        settings[name] = value
    # An argument is named `x-max-length`, a policy's setting `max-length`; the queue's own argument takes precedence.
    for name, value in (one.get("arguments") or {}).items():
        settings[str(name).removeprefix("x-")] = value
    settings.setdefault("type", str(one.get("type") or ""))
    settings["durable"] = bool(one.get("durable", True))
    is_private = bool(one.get("exclusive")) or _IS_TALK.search(str(one["name"])) is not None
    consumers = one.get("consumers")
    return QueueState(
        count if isinstance(count, int) else None,
        not is_private,
        _acknowledged(one),
        settings,
        consumers if isinstance(consumers, int) else 0,
    )


def _acknowledged(one: dict[str, Any]) -> int:
    stats = one.get("message_stats") or {}  # missing if the queue was never used
    return sum(int(stats.get(name, 0)) for name in ("ack", "deliver_no_ack", "get_no_ack"))
