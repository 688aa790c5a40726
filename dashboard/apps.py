from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks


class DashboardConfig(AppConfig):
    name = "dashboard"
    label = "redrive_dashboard"  # projects often have an app named `dashboard`

    def ready(self) -> None:
        from jobs_admin import config

        checks.register(_check_rights, checks.Tags.security)
        if not config.is_own_project():
            from dashboard.mounted import publish_commands

            publish_commands()
            checks.register(_check_project, checks.Tags.compatibility)


def _check_rights(**options: Any) -> list[checks.CheckMessage]:
    from dashboard.web import rights  # imports every view, which few processes need

    return rights.every_address_declares_its_right(**options)


def _check_project(**options: Any) -> list[checks.CheckMessage]:
    from dashboard import mounted

    return mounted.check_project(**options)
