"""A child process that does not outlive its parent."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1
# Resolved before any fork: loading a library between fork and exec is unsafe.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Make the kernel end this process when its parent dies, even by SIGKILL.

    Call it in the child (`preexec_fn`, or first after fork).

    Linux only; a no-op elsewhere. SIGTERM is sent when the *thread* that forked ends, so fork from a permanent one.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
