"""Why nothing was changed."""

from __future__ import annotations

from collections.abc import Mapping


class NoSuchRule(Exception):
    """There is none of this number, or who asks may not see it."""


class NoSuchAlert(Exception):
    """There is none of this number, or who asks may not see it."""


class NoSuchSilence(Exception):
    """There is none of this number, or who asks may not see it."""


class NoSuchRunbook(Exception):
    """There is none of this number."""


class AlertRefused(Exception):
    """Nothing was changed. `field` names the input that is to blame, `problems` all of them with their sentences.

    Codes: forbidden, read_only, invalid, taken, stale, too_many, wrong_state.
    """

    def __init__(
        self, code: str, message: str, field: str | None = None, problems: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.field, self.problems = code, message, field, dict(problems or {})
