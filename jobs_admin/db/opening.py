"""A process that decrypts messages for its parent: `python -m jobs_admin.db.opening`.

Decryption is the most expensive Python work per sent job, and a second thread would only compete with the one that
claims and marks. The process uses no Django, table or queue, and ends with the pipe that it reads.
"""

from __future__ import annotations

import contextlib
import pickle
import select
import subprocess
import sys
from collections.abc import Sequence

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from jobs_admin.installation import ROOT

PIPE_BYTES = 1 << 20  # allowed to every user on Linux


class OpenerGone(Exception):
    """The process ended. Its last request is not decrypted, and has to be done elsewhere."""


class Opener:
    """A process that decrypts. One request at a time: with two, both ends could wait for the other to read."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Start the process with an empty first request, and return immediately.

        `keys` are those of REDRIVE_PAYLOAD_KEYS.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-m", "jobs_admin.db.opening"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pipesize=PIPE_BYTES,
            start_new_session=True,  # a signal from the terminal ends the parent, and the pipe then ends the process
        )
        self._write(list(keys))  # the response is empty

    def has_answered(self) -> bool:
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def submit(self, bodies: Sequence[bytes]) -> None:
        """Start decrypting these. Does not block if they have fewer bytes than PIPE_BYTES. Raises OpenerGone."""
        self._write(list(bodies))

    def answer(self) -> list[bytes | None]:
        """Return the decrypted bodies, in the order of the request; None if no key decrypts one. Raises OpenerGone."""
        assert self._process.stdout
        try:
            found: list[bytes | None] = pickle.load(self._process.stdout)  # noqa: S301 - written below
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise OpenerGone from error
        return found

    def close(self) -> None:
        self._process.kill()  # it has no state to save
        self._process.communicate()

    def _write(self, what: list[bytes] | list[str]) -> None:
        assert self._process.stdin
        try:
            pickle.dump(what, self._process.stdin, protocol=5)
            self._process.stdin.flush()
        except OSError as error:
            raise OpenerGone from error


def _serve() -> None:
    keys = MultiFernet([Fernet(key) for key in pickle.load(sys.stdin.buffer)])  # noqa: S301 - written above
    bodies: list[bytes] = []
    while True:
        pickle.dump([_opened(keys, body) for body in bodies], sys.stdout.buffer, protocol=5)
        sys.stdout.buffer.flush()
        bodies = pickle.load(sys.stdin.buffer)  # noqa: S301


def _opened(keys: MultiFernet, body: bytes) -> bytes | None:
    try:
        return keys.decrypt(body)
    except InvalidToken:
        return None


if __name__ == "__main__":
    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent is gone
        _serve()
