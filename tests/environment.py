"""Loaded before Django reads its settings: tests never touch the data folder or the servers of a desk in use."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile

_folder = tempfile.mkdtemp(prefix="redrive-test-")
atexit.register(shutil.rmtree, _folder, ignore_errors=True)
os.mkdir(os.path.join(_folder, "static"))  # where collected files would be
os.environ["REDRIVE_DATA"] = _folder
os.environ.setdefault("SECRET_KEY", secrets.token_urlsafe(50))
for name in ("REDRIVE_SOURCES", "CELERY_BROKER_URL", "REDRIVE_DEMO_BROKER_URL", "REDRIVE_REDIS_URL", "REDIS_URL"):
    os.environ.pop(name, None)
