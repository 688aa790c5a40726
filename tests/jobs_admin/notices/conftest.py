"""Channels that lead to the loopback, and the desk allows them."""

from __future__ import annotations

import pytest

from jobs_admin.notices import delivering
from tests.kit.alerts import desk
from tests.kit.endpoints import Endpoint, opened


@pytest.fixture(autouse=True)
def loopback(settings):
    settings.REDRIVE = settings.REDRIVE | {"WEBHOOK_ALLOW": ["127.0.0.0/8", "localhost"]}
    delivering._lanes.clear()
    yield settings
    delivering._lanes.clear()


@pytest.fixture
def endpoint():
    """Opens endpoints that behave so, and closes them at the end."""
    servers = []

    def start(behave, tls=None) -> Endpoint:
        context = opened(behave, tls=tls)
        (found,) = context.__enter__()
        servers.append(context)
        return found

    yield start
    for context in servers:
        context.__exit__(None, None, None)
