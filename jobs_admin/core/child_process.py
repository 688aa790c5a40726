"""A child process that does not outlive its parent."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1
# Looked up before any fork: loading a library between fork and exec is not safe.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Call in the child (`preexec_fn`, or first after fork): the kernel ends it when its parent dies, even by SIGKILL.

    Linux only; elsewhere it does nothing. SIGTERM is sent when the *thread* that forked ends, so fork from one that stays.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
