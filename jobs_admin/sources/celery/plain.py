"""A captured message in the form that Celery itself writes, made ready to run again without being parsed.

It is what nearly all messages are, and a replay sends tens of thousands of them a second: here one costs some 7 µs, by
way of JSON some 17. The pattern is the whole grammar of that form, each string to its closing quote, so that no text
inside a message can be taken for a part of it. Whatever differs by a byte is left to `message`.
"""

from __future__ import annotations

import json
import re
from json.encoder import encode_basestring_ascii as quoted

from jobs_admin.sources.base import OutgoingMessage

# Only single characters repeat possessively: Python before 3.11.5 loses matches of a possessive group (CPython issue 106052).
# A value without escapes can be compared as it stands.
_SIMPLE = r'"[^"\\\x00-\x1f]*+"'
_STRING = r'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*"'
_NUMBER = r"-?(?:0|[1-9]\d*+)(?:\.\d++)?(?:[eE][+-]?\d++)?"
_SCALAR = rf"(?:{_STRING}|null|true|false|{_NUMBER})"
_LIST = rf"\[(?:{_SCALAR}(?:, {_SCALAR})*)?\]"
_OBJECT = rf"\{{(?:{_STRING}: {_SCALAR}(?:, {_STRING}: {_SCALAR})*)?\}}"
# Not a second one of those that are renewed, and none that a broker or a replay leaves behind.
_NO_OTHER = r'(?!"(?:id|eta|expires|retries|root_id|parent_id|redelivered|redrive(?:_waited)?|x-[a-z-]++)")'
_MORE = rf"(?:, {_NO_OTHER}{_STRING}: (?:{_SCALAR}|{_LIST}|{_OBJECT}))*"

# The rest behind the body. In the order in which Celery 5.3 to 5.7 and kombu write them (tested with 5.7).
_REST = re.compile(
    (
        rf'(", "content-encoding": {_SIMPLE}, "content-type": {_SIMPLE}, "headers": \{{"lang": {_SIMPLE}, '
        rf'"task": (?!""){_STRING}, "id": )(?P<id>{_SIMPLE})(, "shadow": {_SCALAR}, "eta": ){_SCALAR}(, "expires": ){_SCALAR}'
        rf'(, "group": {_SCALAR}, "group_index": {_SCALAR}, "retries": )(?P<retries>0|[1-9]\d*+)'
        rf'(, "timelimit": {_LIST}, "root_id": )(?P<root>{_SIMPLE}|null)(, "parent_id": )(?P<parent>{_SIMPLE}|null)'
        rf'({_MORE})(?:, "redrive": {_OBJECT}({_MORE}))?\}}, "properties": \{{"correlation_id": {_SIMPLE}'
        rf'((?:, "reply_to": {_SCALAR})?, "delivery_mode": \d)(?:, "expiration": {_SIMPLE})?(, "delivery_info": '
        rf'\{{"exchange": )(?P<exchange>{_SIMPLE})(, "routing_key": )(?P<key>{_SIMPLE})(\}}, "priority": )(?P<priority>\d)'
        rf'(, "body_encoding": "base64", "delivery_tag": ){_SIMPLE}\}}\}}'
    ).encode()
)
_HEAD = b'{"body": "'
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="


def renew(outgoing: OutgoingMessage, tag: str) -> tuple[int, bytes] | None:
    """Return the same bytes as `message.renew`; None for a message of another form."""
    raw = outgoing.raw
    if not raw.startswith(_HEAD) or outgoing.args is not None or outgoing.kwargs is not None or not raw.isascii():
        return None
    end = raw.find(b'"', len(_HEAD))
    if raw[len(_HEAD) : end].translate(None, _BASE64):
        return None
    found = _REST.fullmatch(raw, end)
    if found is None:
        return None
    (
        to_id, old_id, to_eta, to_expires, to_retries, retries, to_root, root, to_parent, parent, before, after,
        mode, to_exchange, exchange, to_key, key, to_priority, priority, to_tag,
    ) = found.groups()  # fmt: skip
    new_id, queue = quoted(outgoing.job_id).encode(), quoted(outgoing.queue).encode()
    if new_id != old_id:
        parent = old_id
    if root in (b"null", b'""'):
        root = old_id
    if outgoing.retries is not None:
        retries = b"%d" % outgoing.retries
    if outgoing.priority is not None:
        priority = b"%d" % outgoing.priority
    if queue != key if exchange == b'""' else outgoing.queue != outgoing.lineage.get("queue"):
        exchange, key = b'""', queue
    return int(priority), b"".join((
        raw[:end], to_id, new_id, to_eta, b"null", to_expires, b"null", to_retries, retries, to_root, root,
        to_parent, parent, before, b', "redrive": ', json.dumps(outgoing.lineage).encode(), after or b"",
        b'}, "properties": {"correlation_id": ', new_id, mode, to_exchange, exchange, to_key, key, to_priority, priority,
        to_tag, quoted(tag).encode(), b"}}",
    ))  # fmt: skip
