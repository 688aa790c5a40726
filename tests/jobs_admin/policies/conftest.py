from __future__ import annotations

import pytest

from jobs_admin import policies
from tests.kit.people import ANN
from tests.kit.policies import EMAILS
from tests.kit.sources import demo_worker as worker


@pytest.fixture
def publish():
    """One version of a policy for the shop's e-mails, or as the fields say."""

    def published(name="emails", viewer=ANN, expected=None, **fields):
        return policies.publish(viewer, name, {**EMAILS, **fields}, expected_version=expected)

    return published
