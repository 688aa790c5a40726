"""What a server asked for with an error: `Retry-After`. Read where it lies, else asked of the error's own code, in a thread of ours.

That code may take any time, and a job waits for it for 20 ms at most. One such thread is there in a process at a time: while
it hangs nobody else's code is asked, so that an error that hangs costs one thread and not one a job.
"""

from __future__ import annotations

import logging
import os
import threading
import time

from jobs_admin.core import retry_after

LONGEST_ASKING_S = 0.02

logger = logging.getLogger("redrive.worker")


def retry_after_s(error: BaseException) -> float | None:
    """Seconds from now that the server wants to be left alone; None where that is not said, or could not be found out."""
    wish = retry_after.find_wish(error) if retry_after.is_at_hand(error) else _others.ask(error)
    return None if wish is None else retry_after.seconds(wish, time.time())


class Asking:
    """Asks code of others; from any thread."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_told = False

    def ask(self, error: BaseException) -> retry_after.Wish | None:
        """None too where it takes too long, or somebody else's question still does."""
        if os.getpid() != self._pid:
            self._begin()  # forked: that thread and the lock are the parent's
        ends = time.monotonic() + LONGEST_ASKING_S
        if not self._lock.acquire(timeout=LONGEST_ASKING_S):
            return None
        try:
            if self._thread is not None and self._thread.is_alive():
                return None
            told: list[retry_after.Wish | None] = []
            self._thread = threading.Thread(
                target=lambda: told.append(retry_after.find_wish(error)), name="redrive-asking", daemon=True
            )
            self._thread.start()
            self._thread.join(max(0.0, ends - time.monotonic()))
            if self._thread.is_alive() and not told:
                self._hangs(error)
            return told[0] if told else None
        except RuntimeError:  # the process may have no more threads
            self._thread = None
            return None
        finally:
            self._lock.release()

    def _hangs(self, error: BaseException) -> None:
        if not self._is_told:
            self._is_told = True
            logger.warning(
                "Redrive does not wait for what a %s says of Retry-After: its code takes longer than %.0f ms. Until that has "
                "ended, no error's own code is asked in this process.",
                type.__getattribute__(type(error), "__qualname__"),
                LONGEST_ASKING_S * 1000,
            )


_others = Asking()
