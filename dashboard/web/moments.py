"""Times as people and programs name them. Those of other ages are refused before anybody reckons with them."""

from __future__ import annotations

from datetime import UTC, datetime

FIRST_YEAR, LAST_YEAR = 2000, 2999
BOUNDS = f"The year must be between {FIRST_YEAR} and {LAST_YEAR}"


def sane(at: datetime) -> datetime:
    """The same moment, in UTC where it names its zone. Raises ValueError with BOUNDS."""
    try:
        found = at.astimezone(UTC) if at.tzinfo is not None else at
    except (OverflowError, ValueError):
        raise ValueError(BOUNDS) from None
    if not FIRST_YEAR <= found.year <= LAST_YEAR:
        raise ValueError(BOUNDS)
    return found
