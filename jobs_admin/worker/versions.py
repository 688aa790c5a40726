"""The version of Redrive and of its guard, and the versions of Celery that the guard supports. Imports nothing, so that the
packager reads it here.
"""

VERSION = "0.1.0"

# Of Celery. Between these it is accepted; beyond them it installs nothing.
OLDEST, LATEST = (5, 3), (5, 7)
# With a worker of each, tests/jobs_admin/worker/test_versions.py runs.
TESTED = ((5, 3), (5, 5), (5, 7))

OLDEST_REDIS_PY = "4.5.2"  # what Celery 5.3 asks for, and what it is tested with
OLDEST_PYTHON = (3, 10)  # held by the types of `core` and `worker`, read as those of that version
