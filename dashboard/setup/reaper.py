"""Ends the processes of a desk whose `up` was killed without a chance to do so itself.

Run as a script by the supervisor, in a process group of its own. It reads process groups from its standard input,
one a line (`+123` started, `-123` ended); when the input ends, `up` is gone, and what is left of them goes too.
The kernel's parent-death signal is not enough: it does not exist on macOS, and a pool's children outlive their parent.
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
    """Ask them to end, in vain after two seconds, then make them."""
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
