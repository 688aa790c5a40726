"""The command `redrive`, and `python -m dashboard`."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the command in Redrive's own project, regardless of the shell's settings; return its exit code."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
    from dashboard.setup import command_line

    return command_line.main(sys.argv)


if __name__ == "__main__":
    sys.exit(main())
