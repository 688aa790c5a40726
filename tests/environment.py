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
for name in set(os.environ) - {"REDRIVE_DATA", "REDRIVE_STRICT"}:
    given = name.removesuffix("_FILE")
    if given.startswith("REDRIVE_") or given in {
        "CELERY_BROKER_URL",
        "REDIS_URL",
        "ALLOWED_HOSTS",
        "CSRF_TRUSTED_ORIGINS",
    }:
        del os.environ[name]
