"""Installation of this Redrive, and how its commands are run. Standard library only: usable before Django is set up."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IS_CHECKOUT = (ROOT / "manage.py").is_file()  # otherwise ROOT is the folder of all packages
_IS_MOUNTED = os.environ.get("DJANGO_SETTINGS_MODULE", "dashboard.settings") != "dashboard.settings"

# The start of a command line, for texts. A project in which the desk is mounted runs its commands by its own manage.py.
if _IS_MOUNTED:
    COMMAND = "python3 manage.py redrive"
else:
    COMMAND = "python3 manage.py" if IS_CHECKOUT else "redrive"
