"""Versions of Redrive and its guard, and the Celery versions that the guard supports.

Without imports, because the packager reads it.
"""

VERSION = "0.1.0"

# Celery versions, inclusive. On others the guard installs nothing.
OLDEST, LATEST = (5, 3), (5, 7)
# Versions that tests/jobs_admin/worker/test_versions.py runs a worker of.
TESTED = ((5, 3), (5, 5), (5, 7))

OLDEST_REDIS_PY = "4.5.2"  # minimum of Celery 5.3, and tested with it
OLDEST_PYTHON = (3, 10)  # type checks of `core` and `worker` run for this version
