"""Scripts run in a Redis while a job waits: 100 ms at most for each, and nothing at all while that Redis is away.

Used in a pool's children and in the main process alike. A child has no thread of ours that could keep a connection:
it dials its own when first asked, and the job waits no longer for that than for an answer.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import redis

from jobs_admin.core import worker_acl
from jobs_admin.core.reconnect_delay import ReconnectDelay
from jobs_admin.worker.line import CALL_TIMEOUT, Line

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 5.0  # between two tries to connect
CONNECT_SECONDS = 1.0

logger = logging.getLogger("redrive.worker")


class Script:
    """A Lua script, by its text. It must not answer nil, which means that no answer came."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode()).hexdigest()  # noqa: S324  (the name that Redis gives it)


@dataclass(frozen=True, slots=True)
class _Call:
    script: Script
    keys: Sequence[str]
    args: Sequence[str | bytes | int]
    unheard: Callable[[], None] | None = None  # called where nobody answered; it may have been done all the same

    def was_unheard(self) -> None:
        if self.unheard is not None:
            self.unheard()

    @property
    def by_name(self) -> tuple[str | bytes | int, ...]:
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    @property
    def by_text(self) -> tuple[str | bytes | int, ...]:
        return ("EVAL", self.script.text, len(self.keys), *self.keys, *self.args)


_NOTHING = Script("")
_REFUSED = ("NOPERM", "NOAUTH", "WRONGPASS")  # how the store's errors of rights begin


class Calls:
    """One connection a process, shared by its threads. No method raises, but what a signal raises in the midst of it.

    After a call that was not answered in time no job waits any more, until a thread has connected again and had a quick
    answer to a PING.

    A script that is only sent (`notify`) is sent at once, and its answer is read before the next call: a job that has
    ended waits for nothing.
    """

    def __init__(self, url: str, what_for: str, timeout_s: float = CALL_TIMEOUT) -> None:
        self._timeout_s = timeout_s
        self._url = url
        self._what_for = what_for  # what is done without while it is away, for the log
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._line: Line | None = None
        self._unread: _Call | None = None  # whose answer is still to be read
        self._known: set[str] = set()  # names of scripts that were run on this line
        self._dial: _Dial | None = None
        self._dial_at = 0.0  # monotonic: not again before
        self._pauses = ReconnectDelay(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, least_s=FIRST_PAUSE_SECONDS / 2)
        self._is_logged = False

    def connect(self) -> None:
        """Connect in a process that was just forked, where nothing waits yet. Takes a second at most, and may be in
        vain.
        """
        self._check_process()
        with self._lock:
            self._dialled(time.monotonic() + CONNECT_SECONDS)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            self._begin()  # forked: the connection and the lock are the parent's

    def run(self, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any | None:
        """Return what the script answers; None where the Redis did not within 100 ms, or did not just before."""
        return self._locked(self._query, _Call(script, keys, args))

    def notify(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[str | bytes | int],
        unheard: Callable[[], None] | None = None,
    ) -> None:
        """Run a script whose answer is not needed. It comes before all later calls, or not at all.

        `unheard` is called where it is not known to have run, at once or when that is found out: by the next call, or
        `listen`. It must not call anything here.
        """
        call = _Call(script, keys, args, unheard)
        if self._locked(self._send, call) is None:
            call.was_unheard()

    def listen(self) -> None:
        """Find out whether the last `notify` was heard. Waits for 100 ms at most."""
        if self._unread is not None:
            self._locked(lambda call, deadline: None, _Call(_NOTHING, (), ()))

    def _locked(self, act: Callable[[_Call, float], Any], call: _Call) -> Any:
        """Return what `act` answers, while no other thread has the line; None where there is none."""
        self._check_process()
        deadline = time.monotonic() + self._timeout_s
        if not self._lock.acquire(timeout=self._timeout_s):
            return None
        try:
            ready_until = self._ready(deadline)
            return act(call, ready_until) if ready_until else None
        except (redis.RedisError, OSError, ValueError) as error:
            self._went_wrong(error)
            self._dial = _Dial(self._url)  # for those who ask later; nobody waits for it
            return None
        except BaseException:
            # A soft time limit is raised in any line of a child. The answer that is still to come must be nobody else's.
            self._hang_up()
            raise
        finally:
            self._lock.release()

    def _ready(self, deadline: float) -> float | None:
        """Until when the line may be used; None where there is none now. Raises as `Line.read`."""
        self._settle(deadline)
        if self._line is not None and self._line.is_stale():
            self._hang_up()
        if self._line is None:
            if not self._dialled(deadline):
                return None
            deadline = time.monotonic() + self._timeout_s  # the first call of a process may take both
        if self._line is None or deadline - time.monotonic() < self._timeout_s / 2:
            return None  # spent behind other threads, which says nothing against the store
        return deadline

    def _settle(self, deadline: float) -> None:
        """Read the answer to the last `notify`."""
        if self._unread is None or self._line is None:
            return
        try:
            self._answered(self._line, self._unread, deadline)
            self._unread = None
        except (redis.ConnectionError, ConnectionError):  # it hung up, and may well be there again
            self._hang_up()

    def _query(self, call: _Call, deadline: float) -> Any | None:
        assert self._line is not None
        self._line.send(call.by_name, deadline)
        answer = self._answered(self._line, call, deadline)
        self._pauses.succeeded()
        if self._is_logged:
            self._is_logged = False
            logger.info("Redrive's store answers again: %s.", self._what_for)
        return answer

    def _send(self, call: _Call, deadline: float) -> bool:
        assert self._line is not None
        # By its name alone it would wait for our next call, where that Redis is new or was started anew: for that of a
        # process that now idles, perhaps an hour.
        self._line.send(call.by_name if call.script.sha in self._known else call.by_text, deadline)
        self._unread = call
        return True

    def _answered(self, line: Line, call: _Call, deadline: float) -> Any:
        """The answer to a call that was sent. Raises as `Line.read`."""
        try:
            answer = line.read(deadline)
        except redis.ResponseError as error:
            if not str(error).startswith("NOSCRIPT"):
                raise
            answer = line.query(call.by_text, deadline)
        self._known.add(call.script.sha)
        return answer

    def _dialled(self, deadline: float) -> bool:
        """Return whether there is a line now. Only the thread that begins to dial waits for it."""
        if self._line is not None:
            return True
        dial = self._dial
        if dial is None:
            if time.monotonic() < self._dial_at:
                return False
            dial = self._dial = _Dial(self._url)
            dial.join(deadline - time.monotonic())
        if dial.is_alive():
            return False
        self._dial, self._line = None, dial.line
        if dial.error is not None:
            self._went_wrong(dial.error)
        return self._line is not None

    def _went_wrong(self, error: Exception) -> None:
        self._hang_up()
        self._dial_at = time.monotonic() + self._pauses.failed()
        if not self._is_logged:
            self._is_logged = True
            if refusal := _refusal(self._url, error):
                logger.warning("%s. Until then jobs go on without %s.", refusal, self._what_for)
                return
            logger.warning(
                "Redrive's store does not answer (%s: %s); jobs go on without %s until it does.",
                type(error).__name__,
                str(error)[:200],
                self._what_for,
            )

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        unread, self._unread = self._unread, None
        self._known.clear()
        if unread is not None:
            unread.was_unheard()
        if line is not None:
            line.close()


def _refusal(url: str, error: Exception) -> str:
    """Return that the store refuses this user, and what to run; "" where the error is another. Holds no password."""
    text = str(error)[:200].rstrip(".")
    if not isinstance(error, redis.AuthenticationError) and not text.startswith(_REFUSED):
        return ""
    user = urlsplit(url).username or "default"
    source = user.removeprefix(worker_acl.user_of("")) if user.startswith(worker_acl.user_of("")) else ""
    if not source:
        return f"Redrive's store refuses user {user} ({text}): check REDRIVE_REDIS_URL and what the user may do"
    return (
        f"Redrive's store refuses user {user} for source {source} ({text}): run Redrive's command worker-acl {source} --apply, and set the "
        "REDRIVE_REDIS_URL that --new-password prints where the password changed"
    )


class _Dial(threading.Thread):
    """Connects in a thread of its own: a name may take seconds to be resolved, and no job waits for it."""

    def __init__(self, url: str) -> None:
        super().__init__(name="redrive-dial", daemon=True)
        self.line: Line | None = None
        self.error: redis.RedisError | OSError | ValueError | None = None
        self._url = url
        self.start()

    def run(self) -> None:
        try:
            self.line = Line(self._url)
        except (redis.RedisError, OSError, ValueError) as error:
            self.error = error
