from __future__ import annotations

import pytest

from demo import attempts, partner


@pytest.fixture(scope="module")
def stage():
    """The shop in this process: its tasks, a partner of its own, a broker in memory."""
    with attempts.stage("http://partner.example") as stage:
        yield stage


@pytest.fixture
def service():
    """The partner, listening on a free port."""
    running = partner.Partner().serve_in_thread()
    yield running
    running.shutdown()
    running.server_close()
