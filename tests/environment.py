"""Loaded before Django reads its settings: tests never touch the data folder or the servers of a desk in use."""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
import tempfile

_folder = tempfile.mkdtemp(prefix="redrive-test-")
atexit.register(shutil.rmtree, _folder, ignore_errors=True)
os.mkdir(os.path.join(_folder, "static"))  # where collected files would be
os.environ["REDRIVE_DATA"] = _folder
os.environ.setdefault("SECRET_KEY", secrets.token_urlsafe(50))
for name in set(os.environ) - {
    "REDRIVE_DATA",
    "REDRIVE_STRICT",
    "REDRIVE_ENDURANCE",
    "REDRIVE_DURATIONS",
    "REDRIVE_TEST_DATABASE",
}:
    given = name.removesuffix("_FILE")
    if given.startswith("REDRIVE_") or given in {
        "CELERY_BROKER_URL",
        "REDIS_URL",
        "ALLOWED_HOSTS",
        "CSRF_TRUSTED_ORIGINS",
    }:
        del os.environ[name]

if os.environ.get("REDRIVE_TEST_DATABASE") == "postgresql" and "PYTEST_XDIST_WORKER" not in os.environ:
    # One server a run: the test processes inherit its URL, and each makes a database of its own.
    from tests.kit import postgresql_server

    _server = contextlib.ExitStack()
    atexit.register(_server.close)
    os.environ["DATABASE_URL"] = _server.enter_context(postgresql_server.running())
