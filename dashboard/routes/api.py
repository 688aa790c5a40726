"""`/api/`: the calls, and an answer in their shape for every other address."""

from __future__ import annotations

from django.urls import re_path

# They add their calls. The description lists them in this order.
# isort: off
from dashboard.queues import api as queue_calls  # noqa: F401
from dashboard.failures import api as failure_calls  # noqa: F401
from dashboard.audit import api as audit_calls  # noqa: F401
from dashboard.alerts import api as alert_calls  # noqa: F401
from dashboard.automations import api as automation_calls  # noqa: F401
from dashboard.alerts.channels import api as channel_calls  # noqa: F401
from dashboard.groups import api as group_calls  # noqa: F401
from dashboard.dependencies import api as dependency_calls  # noqa: F401
from dashboard.holds import api as pause_calls  # noqa: F401
from dashboard.incidents import api as incident_calls  # noqa: F401
from dashboard.policies.lint import api as lint_calls  # noqa: F401
from dashboard.policies import api as policy_calls  # noqa: F401
from dashboard.replays import api as replay_calls  # noqa: F401
from dashboard.retries import api as retry_calls  # noqa: F401
from dashboard.queues.sources import api as source_calls  # noqa: F401
from dashboard.saved_views import api as view_calls  # noqa: F401

# isort: on
from dashboard.web.api.base import api
from dashboard.web.api.errors import door, unknown_address

app_name = "api"
# An address that is spelled out comes before one that takes names in its place, whichever module was imported first.
_patterns = sorted(api.urls[0], key=lambda one: ["<" in part for part in str(one.pattern).split("/")])
for _pattern in _patterns:
    # The library's root view is an HTML page; the description of the calls needs its name.
    _pattern.callback = door(unknown_address if _pattern.name == "api-root" else _pattern.callback)

urlpatterns = [*_patterns, re_path(r"^.*\Z", door(unknown_address))]
