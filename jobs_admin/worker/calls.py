"""Redis scripts run while a job waits: at most 100 ms each, and no calls while that Redis is unavailable.

Used in the main process and in the pool's children. A child has no background thread of ours to maintain a connection,
so it connects at its first call; the job waits for that no longer than for an answer.
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

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 5.0  # between two attempts to connect
CONNECT_SECONDS = 1.0

logger = logging.getLogger("redrive.worker")


class Script:
    """A Lua script. It must not return nil, which stands for no answer."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode()).hexdigest()  # noqa: S324  (the name that Redis gives it)


@dataclass(frozen=True, slots=True)
class _Call:
    script: Script
    keys: Sequence[str]
    args: Sequence[str | bytes | int]
    unheard: Callable[[], None] | None = None  # called if there was no answer; the script may have run

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
_REFUSED = ("NOPERM", "NOAUTH", "WRONGPASS")  # prefixes of the store's permission errors


class Calls:
    """One connection per process, shared by its threads.

    No method raises, except an exception raised by a signal handler.

    After a call without an answer in time, jobs wait no longer until a thread has reconnected and received a quick
    answer to PING.

    `notify` sends a script at once, and its answer is read before the next call: a job that has ended does not wait.
    """

    def __init__(self, url: str, what_for: str, timeout_s: float = CALL_TIMEOUT) -> None:
        self._timeout_s = timeout_s
        self._url = url
        self._what_for = what_for  # what is unavailable without this Redis, for the log
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._line: Line | None = None
        self._unread: _Call | None = None  # call whose answer is not read yet
        self._known: set[str] = set()  # SHA-1 of the scripts that were run on this connection
        self._dial: _Dial | None = None
        self._dial_at = 0.0  # monotonic: no attempt to connect before
        self._pauses = ReconnectDelay(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, least_s=FIRST_PAUSE_SECONDS / 2)
        self._is_logged = False

    def connect(self) -> None:
        """Connect in a newly forked process where nothing waits yet. Takes at most a second, and may fail."""
        self._check_process()
        with self._lock:
            self._dialled(time.monotonic() + CONNECT_SECONDS)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            self._begin()  # forked: connection and lock are the parent's

    def run(self, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any | None:
        """Return the script's answer; None if Redis did not answer within 100 ms, or did not shortly before."""
        return self._locked(self._query, _Call(script, keys, args))

    def notify(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[str | bytes | int],
        unheard: Callable[[], None] | None = None,
    ) -> None:
        """Run a script whose answer is not needed. It runs before all later calls, or not at all.

        `unheard` is called if the script may not have run: at once, or when the next call or `listen` finds out. It
        must not call this object.
        """
        call = _Call(script, keys, args, unheard)
        if self._locked(self._send, call) is None:
            call.was_unheard()

    def listen(self) -> None:
        """Find out whether the last `notify` was answered. Waits at most 100 ms."""
        if self._unread is not None:
            self._locked(lambda call, deadline: None, _Call(_NOTHING, (), ()))

    def _locked(self, act: Callable[[_Call, float], Any], call: _Call) -> Any:
        """Return the result of `act`, with exclusive use of the connection; None without a connection."""
        self._check_process()
        deadline = time.monotonic() + self._timeout_s
        if not self._lock.acquire(timeout=self._timeout_s):
            return None
        try:
            ready_until = self._ready(deadline)
            return act(call, ready_until) if ready_until else None
        except (redis.RedisError, OSError, ValueError) as error:
            self._went_wrong(error)
            self._dial = _Dial(self._url)  # for later calls; nothing waits for it
            return None
        except BaseException:
            # A soft time limit can be raised in any line of a child. No other call may read the pending answer.
            self._hang_up()
            raise
        finally:
            self._lock.release()

    def _ready(self, deadline: float) -> float | None:
        """Return the deadline for using the connection; None if there is no connection now. Raises like `Line.read`."""
        self._settle(deadline)
        if self._line is not None and self._line.is_stale():
            self._hang_up()
        if self._line is None:
            if not self._dialled(deadline):
                return None
            deadline = time.monotonic() + self._timeout_s  # the first call of a process may take both
        if self._line is None or deadline - time.monotonic() < self._timeout_s / 2:
            return None  # time was spent waiting for other threads: no sign of a slow store
        return deadline

    def _settle(self, deadline: float) -> None:
        """Read the answer to the last `notify`."""
        if self._unread is None or self._line is None:
            return
        try:
            self._answered(self._line, self._unread, deadline)
            self._unread = None
        except (redis.ConnectionError, ConnectionError):  # the server closed the connection and may accept a new one
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
        # Sent by SHA alone to a new or restarted Redis, the script would not run until our next call, which in an idle
        # process may come an hour later.
        self._line.send(call.by_name if call.script.sha in self._known else call.by_text, deadline)
        self._unread = call
        return True

    def _answered(self, line: Line, call: _Call, deadline: float) -> Any:
        """Return the answer to a sent call. Raises like `Line.read`."""
        try:
            answer = line.read(deadline)
        except redis.ResponseError as error:
            if not str(error).startswith("NOSCRIPT"):
                raise
            answer = line.query(call.by_text, deadline)
        self._known.add(call.script.sha)
        return answer

    def _dialled(self, deadline: float) -> bool:
        """Return whether there is a connection now. Only the thread that starts connecting waits for it."""
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
    """Return a message that the store refuses this user, with the command to run; "" for other errors.

    Contains no password.
    """
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
    """Connects in its own thread: name resolution may take seconds, and no job waits for it."""

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
