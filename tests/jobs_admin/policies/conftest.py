from __future__ import annotations

import pytest

from jobs_admin import policies
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer

ANN = Viewer("ann", {"*": OPERATOR})
SHOP = Viewer("sam", {"shop": OPERATOR})
LOOKS = Viewer("lou", {"shop": VIEWER})

EMAILS = {"match": {"source": "shop", "task": "shop.mail"}, "max_attempts": 4, "cap_s": 60}


@pytest.fixture
def publish():
    """One version of a policy for the shop's e-mails, or as the fields say."""

    def published(name="emails", viewer=ANN, expected=None, **fields):
        return policies.publish(viewer, name, {**EMAILS, **fields}, expected_version=expected)

    return published
