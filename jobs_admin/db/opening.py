"""A process beside this one that decrypts messages: `python -m jobs_admin.db.opening`.

Decrypting is the most that Python itself has to do for a job that is sent, and a second thread would only take turns
with what claims and marks. It knows no Django, no table and no queue, and ends with the pipe that it reads.
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

PIPE_BYTES = 1 << 20  # what everybody may have on Linux


class OpenerGone(Exception):
    """The process ended. Its last request is not decrypted, and has to be done elsewhere."""


class Opener:
    """A process that decrypts. One request at a time: of two, each could wait for the other to be read."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Start the process with an empty first request, and return at once. `keys` are those of REDRIVE_PAYLOAD_KEYS."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "jobs_admin.db.opening"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pipesize=PIPE_BYTES,
            start_new_session=True,  # who ends us at a terminal ends it by the pipe
        )
        self._write(list(keys))  # its answer is empty

    def has_answered(self) -> bool:
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def submit(self, bodies: Sequence[bytes]) -> None:
        """Begin to decrypt these. Waits for nothing where they are fewer bytes than PIPE_BYTES. Raises OpenerGone."""
        self._write(list(bodies))

    def answer(self) -> list[bytes | None]:
        """The decrypted bodies, in the order of the request; None where no key opens one. Raises OpenerGone."""
        assert self._process.stdout
        try:
            found: list[bytes | None] = pickle.load(self._process.stdout)  # noqa: S301 - written below
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise OpenerGone from error
        return found

    def close(self) -> None:
        self._process.kill()  # it holds nothing
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
