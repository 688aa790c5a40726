from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks


class DashboardConfig(AppConfig):
    name = "dashboard"

    def ready(self) -> None:
        checks.register(_check_rights, checks.Tags.security)
        checks.register(_check_links, checks.Tags.urls)


def _check_rights(**options: Any) -> list[checks.CheckMessage]:
    from dashboard.web import rights  # with every view, which few processes need

    return rights.every_address_declares_its_right(**options)


def _check_links(**options: Any) -> list[checks.CheckMessage]:
    from dashboard.web import rights

    return rights.links_lead_to_the_mount(**options)
