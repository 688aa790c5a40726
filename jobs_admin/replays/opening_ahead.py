"""Messages of a line, decrypted in a process beside it while it makes letters of those before.

The line never waits for it: on a busy machine the other process may not run for as long as a hundred jobs take.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from django.conf import settings

from jobs_admin.db.opening import Opener, OpenerGone
from jobs_admin.replays.claiming import Claimed

log = logging.getLogger(__name__)

_ASKED_AT_ONCE = 400  # some 7 ms
_BYTES = 700_000  # so that no question waits for the other process to read it
_WORTH_IT = 1_000  # claimed jobs that wait: the process costs what opening some thousand here does


class Ahead:
    """Opens what it can. What it does not, the writer of letters opens: nothing depends on it but the speed."""

    def __init__(self) -> None:
        self._opener: Opener | None = None
        self._asked: list[Claimed] = []
        self._is_asked = True  # with a process that begins
        self._is_over = False

    def open(self, coming: Iterable[Claimed], waiting: int) -> None:
        """Notes what is open meanwhile, and has more opened: some of `coming`. `waiting`: how many jobs there are."""
        if self._is_over:
            return
        try:
            if self._opener is None and waiting >= _WORTH_IT:
                self._opener = Opener(settings.REDRIVE_PAYLOAD_KEYS)
            if self._opener is not None and self._opener.has_answered():
                self._take(self._opener)
            if self._opener is not None and not self._is_asked and (some := _some(coming)):
                self._asked, self._is_asked = some, True
                self._opener.ask([item.body for item in some])
        except (OpenerGone, OSError):
            log.warning("the process that decrypts beside the line ended; messages are decrypted here")
            self.close()

    def _take(self, opener: Opener) -> None:
        for item, raw in zip(self._asked, opener.answer(), strict=True):
            # Without a body: the line was faster.
            if raw is not None and item.body:
                item.body, item.is_open = raw, True
        self._asked, self._is_asked = [], False

    def close(self) -> None:
        self._is_over = True
        if self._opener is not None:
            self._opener.close()
            self._opener = None


def _some(coming: Iterable[Claimed]) -> list[Claimed]:
    some, size = [], 0
    for item in coming:
        if item.body and not item.is_open and size + len(item.body) < _BYTES:
            some.append(item)
            size += len(item.body)
    return some[:_ASKED_AT_ONCE]
