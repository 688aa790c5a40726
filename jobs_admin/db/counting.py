"""Steps of time that counters count in, and sums over them made by the database."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from datetime import datetime, timedelta

from django.db.models import F, Func, IntegerField, Value


def start_of(at: datetime, step: int) -> datetime:
    """The start of the step of `step` seconds in which `at` lies; a day is a whole number of steps."""
    since_midnight = at.hour * 3600 + at.minute * 60 + at.second
    return at.replace(microsecond=0) - timedelta(seconds=since_midnight % step)


def in_steps(
    counts: Mapping[tuple[Hashable, datetime], list[float]], steps: Iterable[int]
) -> list[tuple[Hashable, int, datetime, list[float]]]:
    """(key, step, start, numbers) of every step, sorted: what is counted in a moment is counted in all around it."""
    found: dict[tuple[Hashable, int, datetime], list[float]] = {}
    for (key, at), numbers in counts.items():
        for step in steps:
            place = key, step, start_of(at, step)
            held = found.get(place)
            found[place] = [a + b for a, b in zip(held, numbers, strict=True)] if held else numbers
    return [(*place, numbers) for place, numbers in sorted(found.items())]


class StepOf(Func):
    """The number of the step of `seconds` in which a moment lies, counted from 1970."""

    output_field = IntegerField()

    def __init__(self, name: str, seconds: int, **more) -> None:
        super().__init__(F(name), Value(int(seconds), output_field=IntegerField()), **more)

    def as_sqlite(self, compiler, connection, **more):
        name, seconds = self.get_source_expressions()
        sql, parameters = compiler.compile(name)
        return f"CAST(strftime('%%s', {sql}) AS INTEGER) / {int(seconds.value)}", parameters

    def as_postgresql(self, compiler, connection, **more):
        name, seconds = self.get_source_expressions()
        sql, parameters = compiler.compile(name)
        return f"(EXTRACT(EPOCH FROM {sql})::bigint / {int(seconds.value)})", parameters
