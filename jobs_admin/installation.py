"""How this Redrive is installed, and so how its commands are run. Standard library only: known before Django is."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IS_CHECKOUT = (ROOT / "manage.py").is_file()  # else ROOT is the folder of all packages
_IS_MOUNTED = os.environ.get("DJANGO_SETTINGS_MODULE", "dashboard.settings") != "dashboard.settings"

# The start of a command line, for texts. A project that mounts the desk runs our commands by its own manage.py.
if _IS_MOUNTED:
    COMMAND = "python3 manage.py redrive"
else:
    COMMAND = "python3 manage.py" if IS_CHECKOUT else "redrive"
