"""Limits of wrong passwords: in 15 minutes ten per name and address, and a hundred per address.

Codes of the second factor have their own limit, per account (`jobs_admin.rights.second_factor`).
"""

from __future__ import annotations

from axes.attempts import get_cool_off_threshold
from axes.handlers.database import AxesDatabaseHandler
from axes.models import AccessAttempt
from django.conf import settings
from django.db.models import Sum
from django.http import HttpRequest

from dashboard.web.addresses import client_address, is_shared

FAILURES_OF_ADDRESS = 100


class Handler(AxesDatabaseHandler):
    """Counters of axes, with a limit per address over all names."""

    def get_failures(self, request: HttpRequest, credentials: dict | None = None) -> int:
        failures = super().get_failures(request, credentials)
        return max(failures, settings.AXES_FAILURE_LIMIT) if self._has_tried_many_names(request) else failures

    def _has_tried_many_names(self, request: HttpRequest) -> bool:
        address = client_address(request)
        # A lock of a shared address would lock everyone out: only its pairs with a name are locked.
        if address is None or is_shared(address):
            return False
        recent = AccessAttempt.objects.filter(ip_address=address, attempt_time__gte=get_cool_off_threshold(request))
        return (recent.aggregate(n=Sum("failures_since_start"))["n"] or 0) >= FAILURES_OF_ADDRESS
