"""API shapes shared by several packages, and their JSON for commands. Fields may be added; none is removed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from ninja import Schema
from ninja.responses import NinjaJSONEncoder

T = TypeVar("T")


class NearItem(Schema):
    q: str  # a search with results
    why: str  # description
    count: int
    count_is_capped: bool
    failure: int | None  # the only job that the search finds


class Listed(Schema, Generic[T]):
    items: list[T]
    next: str | None = None  # value of `after` for the next page; null on the last page
    count: int
    count_is_capped: bool = False  # there are more than `count`
    count_is_estimate: bool = False  # `count` is an estimate with two significant figures
    reading: str | None = None  # how `q` was read
    hints: list[str] = []
    searched: int | None = None  # only this many latest failures in scope were searched; null: all of them
    near: list[NearItem] = []  # suggestions for a search of failures with no or few results, on its first page


class ErrorBody(Schema):
    code: str
    message: str
    field: str | None = None


class Error(Schema):
    error: ErrorBody


class Count(Schema):
    value: str
    count: int


def listed(
    rows: Iterable[T], shape: Callable[[T], Any], *, next: str | None, count: int, **more: Any
) -> dict[str, Any]:
    return {"items": [shape(row) for row in rows], "next": next, "count": count, **more}


def counts(pairs: list[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{"value": value, "count": n} for value, n in pairs]


def render_json(shape: type[Schema], answer: Any) -> str:
    """Return the answer as the API renders it, on one line."""
    return json.dumps(shape.model_validate(answer).model_dump(), cls=NinjaJSONEncoder)
