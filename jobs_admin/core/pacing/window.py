"""The hours of a day in which a replay may send."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timedelta, timezone
from typing import Any

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True)
class Window:
    """From a time of day until another, in UTC, on days of the week. One that goes past midnight belongs to the day it opens on."""

    opens: time
    closes: time  # not included; the same as `opens` means a whole day
    days: tuple[str, ...] = DAYS  # those on which it opens

    def as_dict(self) -> dict[str, Any]:
        """Return the window as the API writes it."""
        hours = {"from": f"{self.opens:%H:%M}", "to": f"{self.closes:%H:%M}"}
        return hours if self.days == DAYS else {**hours, "days": list(self.days)}

    def is_open(self, at: datetime) -> bool:
        return any(opened <= at < closing for opened, closing in self._around(at))

    def opens_at(self, at: datetime) -> datetime:
        """`at` itself while it is open, else when it opens next."""
        if self.is_open(at):
            return at
        return min(opened for opened, _ in self._around(at) if opened > at)

    def _around(self, at: datetime) -> list[tuple[datetime, datetime]]:
        """Opening and closing, from the day before until a week ahead."""
        today = at.astimezone(timezone.utc).date()
        found = []
        for ahead in range(-1, 8):
            day = today + timedelta(days=ahead)
            if DAYS[day.weekday()] in self.days:
                closing_day = day if self.closes > self.opens else day + timedelta(days=1)
                found.append(
                    (
                        datetime.combine(day, self.opens, tzinfo=timezone.utc),
                        datetime.combine(closing_day, self.closes, tzinfo=timezone.utc),
                    )
                )
        return found
