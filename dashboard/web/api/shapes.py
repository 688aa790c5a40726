"""API shapes that more than one package answers with. Fields may be added, and none is removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from ninja import Schema

T = TypeVar("T")


class NearItem(Schema):
    q: str  # a search that finds something
    why: str  # what it is, in words
    count: int
    count_is_capped: bool
    failure: int | None  # it is this one job


class Listed(Schema, Generic[T]):
    items: list[T]
    next: str | None = None  # hand it over as `after`; null on the last page
    count: int
    count_is_capped: bool = False  # there are more than `count`
    count_is_estimate: bool = False  # `count` is an estimate of two figures
    reading: str | None = None  # how `q` was read
    hints: list[str] = []
    searched: int | None = None  # only so many, the newest in scope, were looked at; null: all of them
    near: list[NearItem] = []  # where a search of failures found nothing: what it may have meant


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
