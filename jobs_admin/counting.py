"""Sums of counters over time, made by the database."""

from __future__ import annotations

from django.db.models import F, Func, IntegerField, Value


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
