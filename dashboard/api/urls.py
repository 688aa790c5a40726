"""`/api/`: the calls, and an answer in their shape for every other address."""

from __future__ import annotations

from django.urls import re_path

from dashboard.api import (  # noqa: F401  (they add their calls)
    alert_calls,
    channel_calls,
    depth_calls,
    group_calls,
    incident_calls,
    lint_calls,
    policy_calls,
    replay_calls,
    retry_calls,
    rule_calls,
    source_calls,
    view_calls,
    worker_calls,
)
from dashboard.api.calls import api
from dashboard.api.errors import door, unknown_address

app_name = "api"
_patterns = api.urls[0]
for _pattern in _patterns:
    # The library's own root is a page of HTML; the description of the calls needs its name.
    _pattern.callback = door(unknown_address if _pattern.name == "api-root" else _pattern.callback)

urlpatterns = [*_patterns, re_path(r"^.*\Z", door(unknown_address))]

__all__ = ["app_name", "urlpatterns"]
