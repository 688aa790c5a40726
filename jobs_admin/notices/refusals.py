"""Why nothing was changed."""

from __future__ import annotations


class NoSuchChannel(Exception):
    """There is none of this number, or who asks may see none."""


class NoSuchDelivery(Exception):
    """There is none of this number, or its notice is of a source that is out of sight."""


class ChannelRefused(Exception):
    """Nothing was changed. `field` names the input that is to blame.

    Codes: forbidden, read_only, invalid, taken, in_use, wrong_state, too_many.
    """

    def __init__(self, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.field = code, message, field


def invalid(message: str, field: str | None) -> ChannelRefused:
    return ChannelRefused("invalid", f"{message} Nothing was changed.", field)
