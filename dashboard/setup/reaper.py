"""Termination of a desk's processes after its `up` was killed.

The supervisor runs this file as a script, in its own process group. It reads process groups from standard input, one
per line (`+123` started, `-123` ended); at the end of the input `up` is gone, and the remaining groups are terminated.
The kernel's parent-death signal is not sufficient: it does not exist on macOS, and children of a pool outlive their
parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

PATIENCE_S = 2.0


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def end(groups: set[int]) -> None:
    """Terminate the groups, and kill those that have not ended after two seconds."""
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE_S
    while any(map(alive, groups)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        (groups.add if line[0] == "+" else groups.discard)(group)
    end(groups)


if __name__ == "__main__":
    main()
