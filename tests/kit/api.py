"""Calls of the API by a program."""

from __future__ import annotations

import json

import pytest

from jobs_admin.management.commands.token import create
from jobs_admin.models import ApiToken


@pytest.fixture
def call_api(client):
    """A call by a program: call_api("GET", "failures", role=…)."""

    def call(method, path, body=None, *, role="admin", source="*", token=None, **query):
        if token is None:
            name = f"{role} of {source}"
            ApiToken.objects.filter(name=name).delete()
            token = create(name, role, source)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        content = {} if body is None else {"data": json.dumps(body), "content_type": "application/json"}
        return client.generic(method, f"/api/{path}", **content, headers=headers, query_params=query or None)

    return call
