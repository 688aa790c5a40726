"""`/api/`: the calls, and an answer in their shape for every other address."""

from __future__ import annotations

from django.urls import re_path

from dashboard.api.calls import api
from dashboard.api.errors import door, unknown_address

app_name = "api"
_patterns = api.urls[0]
for _pattern in _patterns:
    _pattern.callback = door(_pattern.callback)

urlpatterns = [*_patterns, re_path(r"^.*\Z", door(unknown_address))]

__all__ = ["app_name", "urlpatterns"]
