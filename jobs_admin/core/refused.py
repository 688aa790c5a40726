"""Exceptions of all actions and lookups: refused, with nothing changed; and not found."""

from __future__ import annotations

from typing import Any

_INVALID = 422  # for codes not listed here: invalid input
_STATUS = {
    "forbidden": 403,
    "read_only": 403,
    "already_open": 409,
    "changed": 409,
    "conflict": 409,
    "wrong_state": 409,
    "taken": 409,
    "in_use": 409,
    "stale": 409,
    "equal_match": 409,
    "key_reused": 409,
    "not_gone": 409,
    "unreachable": 503,
}


class Refused(Exception):
    """Nothing was changed. `code` is for programs, `message` for people, `field` names the invalid input.

    `details`: more fields of the API's response, such as `problems`, all errors of a document.
    """

    def __init__(self, code: str, message: str, field: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.code, self.message, self.field, self.details = code, message, field, details

    @property
    def status(self) -> int:
        """HTTP status of the response."""
        return _STATUS.get(self.code, _INVALID)


class NotFound(Exception):
    """The object is missing or hidden from the viewer; the message, for people, does not distinguish these."""
