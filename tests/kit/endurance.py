"""The rounds of a test: a few times in an ordinary run, and as often as it takes under `manage.py test --endurance`."""

from __future__ import annotations

import os

IS_ON = bool(os.environ.get("REDRIVE_ENDURANCE"))


def times(few: int, many: int) -> int:
    return many if IS_ON else few
