"""Fixtures of the tests of the engine: a source in memory, jobs to replay, staff."""

from __future__ import annotations

import pytest

from tests.kit.bullmq import bull, bullmq_client, server
from tests.kit.following import broker, follow, stock
from tests.kit.grouping import fresh
from tests.kit.people import as_
from tests.kit.replays import buried, new_senders
from tests.kit.sources import shop_and_web as shop
from tests.kit.sources import sources


@pytest.fixture
def bury():
    return buried
