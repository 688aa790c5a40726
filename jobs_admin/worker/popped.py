"""The element that a message was in the broker's list, kept beside what kombu made of it.

kombu parses the JSON of an element and forgets the text. Written anew it has the same meaning, not the same bytes:
producers in other languages put no space behind a colon, and leave UTF-8 as it is.
"""

from __future__ import annotations

from typing import Any


class Popped(dict[str, Any]):
    """The payload, as kombu passes it on; with the bytes that it was read from."""

    __slots__ = ("element",)
    element: bytes


def keep_elements(channel: Any) -> bool:
    """From now on each message of this channel carries its element. Costs a reference, and no call.

    False, and nothing changed, for a channel that is not kombu's on Redis. A kombu that reads in another way than
    the one this was written for (5.7) leaves its messages without an element; it is not kept from working.
    """
    read = getattr(channel, "handlers", {}).get("BRPOP")
    deliver = getattr(channel.connection, "_deliver", None)
    if read is None or deliver is None or getattr(channel, "redrive_keeps", False):
        return False
    between: list[bytes] = []  # the element between its arrival and its delivery, in one call of `read_on`

    def read_on(**options: Any) -> Any:
        client = channel.client  # of this channel alone; only BRPOP is read with it
        if "parse_response" not in vars(client):
            client.parse_response = noting(client.parse_response)
        try:
            return read(**options)
        finally:
            # What was not delivered (not JSON, a lost connection) must not stick to the next message.
            between.clear()

    def noting(parse_response: Any) -> Any:
        def noted(connection: Any, command: Any, **options: Any) -> Any:
            answer = parse_response(connection, command, **options)
            if command == "BRPOP" and answer and len(answer) == 2 and isinstance(answer[1], bytes):
                between[:] = [answer[1]]
            return answer

        return noted

    def deliver_on(message: Any, queue: Any) -> Any:
        if between and type(message) is dict:
            message = Popped(message)
            message.element = between.pop()
        return deliver(message, queue)

    channel.handlers["BRPOP"] = read_on
    channel.connection._deliver = deliver_on
    channel.redrive_keeps = True
    return True
