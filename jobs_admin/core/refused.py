"""Two answers of every act and of every reading of one thing: refused, with nothing changed; and not found."""

from __future__ import annotations

from typing import Any

_INVALID = 422  # of every code that is not named here: the caller's input is to blame
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
    """Nothing was changed. `code` is for programs, `message` for people, `field` names the input to blame.

    `details`: further fields of the API's answer, such as `problems`: all that is wrong with a document.
    """

    def __init__(self, code: str, message: str, field: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.code, self.message, self.field, self.details = code, message, field, details

    @property
    def status(self) -> int:
        """The HTTP status of the answer."""
        return _STATUS.get(self.code, _INVALID)


class NotFound(Exception):
    """The object is missing or hidden from the viewer: the text does not say which. The text is for people."""
