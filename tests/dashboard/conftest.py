"""People of the desk, and something that broke."""

from __future__ import annotations

import pytest

from dashboard.web.middleware import identity
from jobs_admin.desk import activity, overview
from tests.kit.api import call_api
from tests.kit.matrix import desk
from tests.kit.metrics import fleet, history
from tests.kit.openid import fresh_provider, openid_server, provider
from tests.kit.people import as_, log_in
from tests.kit.sources import shop, shop_and_web, sources, watched


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    """Cache the viewer and the overview for the whole test, so that a stall causes no second query."""
    monkeypatch.setattr(identity, "REMEMBERED_S", 3600)
    monkeypatch.setattr(overview, "BOARD_CACHED_S", 3600)
    monkeypatch.setattr(activity, "CACHED_S", 3600)


@pytest.fixture
def ann(db, django_user_model):
    """Admin of every source."""
    return log_in(django_user_model, "ann", every="admin")


@pytest.fixture
def otto(db, django_user_model):
    """Operator of the shop."""
    return log_in(django_user_model, "otto", shop="operator")


@pytest.fixture
def vera(db, django_user_model):
    """Viewer of the shop."""
    return log_in(django_user_model, "vera", shop="viewer")


@pytest.fixture
def without_role(db, django_user_model):
    """Logged in, without any role."""
    return log_in(django_user_model, "nobody")
