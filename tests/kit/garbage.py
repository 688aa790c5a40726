"""Elements of a list in Redis that no producer of Celery writes, and what becomes of a worker that pops them."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

JSON = "application/json"


def message(n: int, body: Any = None, **changes: Any) -> dict[str, Any]:
    """A sound one, of the task `ok`, but for `changes`: of headers, or of whole members by their name with `_`."""
    text = json.dumps([[f"garbage {n}"], {}, {}]) if body is None else body
    sound: dict[str, Any] = {
        "body": base64.b64encode(text.encode() if isinstance(text, str) else text).decode(),
        "content-encoding": "utf-8",
        "content-type": JSON,
        "headers": {"lang": "py", "task": "ok", "id": f"garbage-{n}", "retries": 0, "eta": None, "expires": None,
                    "timelimit": [None, None], "root_id": f"garbage-{n}", "parent_id": None},
        "properties": {"correlation_id": f"garbage-{n}", "delivery_tag": f"tag-{n}", "body_encoding": "base64",
                       "delivery_mode": 2, "priority": 0, "delivery_info": {"exchange": "", "routing_key": "celery"}},
    }  # fmt: skip
    members = {name[1:].replace("_", "-"): value for name, value in changes.items() if name.startswith("_")}
    sound["headers"].update({name: value for name, value in changes.items() if not name.startswith("_")})
    return sound | members


def without(n: int, *path: str) -> dict[str, Any]:
    made = message(n)
    place = made
    for name in path[:-1]:
        place = place[name]
    del place[path[-1]]
    return made


def _properties(n: int, **changes: Any) -> dict[str, Any]:
    made = message(n)
    made["properties"] |= changes
    return made


def _old(n: int, **changes: Any) -> dict[str, Any]:
    """A message of Celery's first protocol: everything in the body."""
    fields = {"task": "ok", "id": f"garbage-{n}", "args": [f"garbage {n}"], "kwargs": {}} | changes
    return message(n, json.dumps({name: value for name, value in fields.items() if value is not ...}), _headers={})


@cache
def _compressed() -> bytes:
    return zlib.compress(b"[" + b" " * 50_000_000 + b"x")


def _bomb(n: int) -> dict[str, Any]:
    return message(n, _compressed(), compression="application/x-gzip")


# name -> (the element, made with a number of its own; the kind that the guard files it as, None where it runs or fails as a job)
CORPUS: dict[str, tuple[Callable[[int], Any], str | None]] = {
    "not JSON": (lambda n: b"hello %d" % n, "undecodable"),
    "not UTF-8": (lambda n: b"\xff\xfe\x00%d" % n, "undecodable"),
    "empty": (lambda n: b"", "undecodable"),
    "cut off": (lambda n: json.dumps(message(n)).encode()[:-40], "undecodable"),
    "nested 100,000 deep": (lambda n: b"[" * 100_000, "undecodable"),
    "a pickle": (lambda n: b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94.", "undecodable"),
    "a JSON list": (lambda n: [1, 2, n], "unknown_format"),
    "a JSON text": (lambda n: f"hello {n}", "unknown_format"),
    "a JSON number": (lambda n: n, "unknown_format"),
    "null": (lambda n: None, "unknown_format"),
    "another object": (lambda n: {"hello": n}, "unknown_format"),
    "no properties": (lambda n: without(n, "properties"), "unknown_format"),
    "no delivery tag": (lambda n: without(n, "properties", "delivery_tag"), "unknown_format"),
    "no delivery info": (lambda n: without(n, "properties", "delivery_info"), "unknown_format"),
    "a delivery tag that is an object": (lambda n: _properties(n, delivery_tag={"a": n}), "unknown_format"),
    "headers that are a list": (lambda n: message(n, _headers=["task", "id"]), "unknown_format"),
    "headers that are a text": (lambda n: message(n, _headers="task"), "unknown_format"),
    "a body in broken base64": (lambda n: message(n, _body="a"), "undecodable"),
    "a body that is a number": (lambda n: message(n, _body=7), "unknown_format"),
    "an unknown body encoding": (lambda n: _properties(n, body_encoding="rot13"), "unknown_format"),
    "a date that is none": (lambda n: message(n, x={"__type__": "datetime", "__value__": "never"}), "undecodable"),
    "a body that is no JSON": (lambda n: message(n, "not JSON"), "undecodable"),
    "a body that is not UTF-8": (lambda n: message(n, b"\xff\xfe\x00"), "undecodable"),
    "a body cut off": (lambda n: message(n, "[[1, 2"), "undecodable"),
    "a body that is a mapping": (lambda n: message(n, '{"a": 1}'), "unknown_format"),
    "a body that is a number in JSON": (lambda n: message(n, "5"), "unknown_format"),
    "a body that is null": (lambda n: message(n, "null"), "unknown_format"),
    "a body of two": (lambda n: message(n, "[[], {}]"), "unknown_format"),
    "no body": (lambda n: without(n, "body"), "unknown_format"),
    "compressed with what nobody knows": (lambda n: message(n, compression="x-none"), "undecodable"),
    "compression that is none": (lambda n: message(n, compression="application/x-gzip"), "undecodable"),
    "a bomb of 50 MB": (_bomb, "undecodable"),
    "a pickled body": (lambda n: message(n, b"\x80\x04N.", _content_type="application/x-python-serialize",
                                         _content_encoding="binary"), "bad_content"),
    "a content type that is a number": (lambda n: message(n, _content_type=5), "bad_content"),
    "no id": (lambda n: without(n, "headers", "id"), "unknown_format"),
    "an id that is a list": (lambda n: message(n, id=[1]), "unknown_format"),
    "a task that is a list": (lambda n: message(n, task=["ok"]), "unknown_format"),
    "a task that is a number": (lambda n: message(n, task=5), "unknown_task"),
    "a task that nobody knows": (lambda n: message(n, task="never.heard.of"), "unknown_task"),
    "an unknown task without an id": (lambda n: message(n, task="never.heard.of", id=...), "unknown_task"),
    "no task": (lambda n: without(n, "headers", "task"), "unknown_format"),
    "an eta that is no time": (lambda n: message(n, eta="tomorrow"), "unknown_format"),
    "an eta that is a number": (lambda n: message(n, eta=17), "unknown_format"),
    "an expires that is no time": (lambda n: message(n, expires="never"), "unknown_format"),
    "an expires that is an object": (lambda n: message(n, expires={"a": 1}), "unknown_format"),
    "an eta beyond the calendar": (lambda n: message(n, eta="0001-01-01T00:00:00+14:00"), "unknown_format"),
    "an eta far ahead": (lambda n: message(n, eta="9999-12-31T23:59:59-14:00"), "unknown_format"),
    "time limits that are a text": (lambda n: message(n, timelimit="never"), "unknown_format"),
    "time limits of text": (lambda n: message(n, timelimit=["a", "b"]), "unknown_format"),
    "time limits of one": (lambda n: message(n, timelimit=[1]), "unknown_format"),
    "protocol 1 without an id": (lambda n: _old(n, id=...), None),
    "protocol 1 with arguments by name that are a list": (lambda n: _old(n, kwargs=[1]), "unknown_format"),
    "protocol 1 of an unknown task": (lambda n: _old(n, task="never.heard.of"), "unknown_task"),
    "protocol 1 of an unknown task without an id": (lambda n: _old(n, task="never.heard.of", id=...), "unknown_task"),
}  # fmt: skip


def element(name: str, n: int) -> bytes:
    made = CORPUS[name][0](n)
    if isinstance(made, bytes):
        return made
    if isinstance(made, dict) and isinstance(made.get("headers"), dict):
        made["headers"] = {name: value for name, value in made["headers"].items() if value is not ...}
    return json.dumps(made).encode()
