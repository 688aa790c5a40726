"""Position of a moment in a table: ids rise in the order of arrival, so that no index on the time is needed."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Model


def first_since(model: type[Model], column: str, moment: datetime) -> int:
    """About the lowest id of a row that came at that moment or later; one more than the highest where none did."""
    rows = model._default_manager.values_list("pk", column)
    latest = rows.order_by("-pk").first()
    low, high = 0, (latest[0] if latest else 0) + 1
    while low < high:
        middle = (low + high) // 2
        found = rows.filter(pk__gte=middle).order_by("pk").first()
        if found is None or found[1] >= moment:
            high = middle
        else:
            low = found[0] + 1
    return low
