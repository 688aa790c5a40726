"""Failures with stacks, grouped by rules."""

from __future__ import annotations

import pytest

from jobs_admin.db import grouping_rules
from jobs_admin.models import Failure
from jobs_admin.models.access import OPERATOR, Viewer
from tests.kit.reports import file, report

ANN = Viewer("ann", {"*": OPERATOR})
TRACE = """Traceback (most recent call last):
  File "/srv/shop/tasks.py", line 88, in {task}
    again(partner.post, order)
  File "/srv/shop/retry.py", line 5, in again
    return work(order)
shop.Refused: {message}
"""


@pytest.fixture
def fresh():
    """Each test begins without what this process remembers of another test's rules."""
    grouping_rules.forget()
    yield
    grouping_rules.forget()


def bury(number, *, message="order 17 refused", task="charge", **fields):
    trace = TRACE.format(task=task, message=message)
    file(*(report(f"{task}-{message}-{n}", message=message, trace=trace, task=task, **fields) for n in range(number)))
    return Failure.objects.latest("pk").group
