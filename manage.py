#!/usr/bin/env python3
"""Redrive's commands. Needs Python 3.11 or newer and nothing else: `up` installs what it needs into `.venv`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from dashboard.setup import bootstrap

    sys.exit(bootstrap.main(sys.argv))
