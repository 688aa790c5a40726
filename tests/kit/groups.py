"""Groups of failures."""

from __future__ import annotations

import hashlib

from django.utils import timezone

from jobs_admin.models import Group


def group(error_type: str = "TimeoutError", message: str = "no answer", **changes) -> Group:
    now = timezone.now()
    value = "v1-" + hashlib.sha256(f"{error_type}{message}".encode()).hexdigest()[:24]
    fields = {"fingerprint": value, "error_type": error_type, "message": message, "first_seen": now, "last_seen": now}
    return Group.objects.create(**fields | changes)


TRACE = """Traceback (most recent call last):
  File "/app/.venv/lib/python3.11/site-packages/celery/app/trace.py", line 479, in trace_task
    R = retval = fun(*args, **kwargs)
  File "/app/shop/tasks.py", line 44, in deliver
    raise TimeoutError("no answer")
TimeoutError: no answer
"""
