"""`/api/`: the calls, and an answer in their shape for every other address."""

from __future__ import annotations

from django.urls import re_path

# They add their calls, in this order: an address that is spelt out comes before one that takes names in its place.
# isort: off
from dashboard.api import queue_calls  # noqa: F401
from dashboard.api import failure_calls  # noqa: F401
from dashboard.api import audit_calls  # noqa: F401
from dashboard.api import alert_calls  # noqa: F401
from dashboard.api import channel_calls  # noqa: F401
from dashboard.api import depth_calls  # noqa: F401
from dashboard.api import rule_calls  # noqa: F401
from dashboard.api import group_calls  # noqa: F401
from dashboard.api import incident_calls  # noqa: F401
from dashboard.api import lint_calls  # noqa: F401
from dashboard.api import policy_calls  # noqa: F401
from dashboard.api import replay_calls  # noqa: F401
from dashboard.api import retry_calls  # noqa: F401
from dashboard.api import source_calls  # noqa: F401
from dashboard.api import view_calls  # noqa: F401
from dashboard.api import worker_calls  # noqa: F401
# isort: on
from dashboard.api.calls import api
from dashboard.api.errors import door, unknown_address

app_name = "api"
_patterns = api.urls[0]
for _pattern in _patterns:
    # The library's own root is a page of HTML; the description of the calls needs its name.
    _pattern.callback = door(unknown_address if _pattern.name == "api-root" else _pattern.callback)

urlpatterns = [*_patterns, re_path(r"^.*\Z", door(unknown_address))]

__all__ = ["app_name", "urlpatterns"]
