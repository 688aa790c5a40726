"""The wait that a server requests with an error: `Retry-After`. Read from plain attributes, otherwise by the error's
own code, in a thread of ours.

That code may take any time, and a job waits for it for 20 ms at most. One such thread exists in a process at a time:
while it hangs no other error's code is run, so that an error that hangs costs one thread and not one a job.
"""

from __future__ import annotations

import logging
import os
import threading
import time

from jobs_admin.core import retry_after

LONGEST_WAIT_S = 0.02

logger = logging.getLogger("redrive.worker")


def retry_after_s(error: BaseException) -> float | None:
    """Seconds from now that the server wants to be left alone; None where that is not said, or could not be found out."""
    wish = retry_after.find_wish(error) if retry_after.is_at_hand(error) else _others.find_wish_of(error)
    return None if wish is None else retry_after.seconds(wish, time.time())


class WishReader:
    """Run code of others that holds a wish; from any thread."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_logged = False

    def find_wish_of(self, error: BaseException) -> retry_after.Wish | None:
        """Return the error's wish; None too where its code takes too long, or code of an earlier error still runs."""
        if os.getpid() != self._pid:
            self._begin()  # forked: that thread and the lock are the parent's
        ends = time.monotonic() + LONGEST_WAIT_S
        if not self._lock.acquire(timeout=LONGEST_WAIT_S):
            return None
        try:
            if self._thread is not None and self._thread.is_alive():
                return None
            wishes: list[retry_after.Wish | None] = []
            self._thread = threading.Thread(
                target=lambda: wishes.append(retry_after.find_wish(error)), name="redrive-asking", daemon=True
            )
            self._thread.start()
            self._thread.join(max(0.0, ends - time.monotonic()))
            if self._thread.is_alive() and not wishes:
                self._hangs(error)
            return wishes[0] if wishes else None
        except RuntimeError:  # the process may have no more threads
            self._thread = None
            return None
        finally:
            self._lock.release()

    def _hangs(self, error: BaseException) -> None:
        if not self._is_logged:
            self._is_logged = True
            logger.warning(
                "Redrive does not wait for what a %s says of Retry-After: its code takes longer than %.0f ms. Until that has "
                "ended, no error's own code is asked in this process.",
                type.__getattribute__(type(error), "__qualname__"),
                LONGEST_WAIT_S * 1000,
            )


_others = WishReader()
