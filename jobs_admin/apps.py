from __future__ import annotations

from typing import TYPE_CHECKING

from django.apps import AppConfig
from django.db.models.signals import post_migrate, pre_delete

if TYPE_CHECKING:
    from jobs_admin.models import SavedView


class JobsAdminConfig(AppConfig):
    name = "jobs_admin"
    verbose_name = "Redrive"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from jobs_admin import config

        config.setting("URL")  # a setting that cannot be used ends the start

        from jobs_admin.models import SavedView
        from jobs_admin.models.failure_count import install_triggers
        from jobs_admin.models.terms import install_terms
        from jobs_admin.models.text_filters import install_text_filters
        from jobs_admin.models.trust import open_unsigned_reports

        # After every migrate, not in a migration: SQLite rebuilds a table to alter it and drops its triggers.
        post_migrate.connect(install_triggers, sender=self)
        post_migrate.connect(install_terms, sender=self)
        post_migrate.connect(install_text_filters, sender=self)
        # There too, as the tests of a database that is emptied need it again.
        post_migrate.connect(open_unsigned_reports, sender=self)
        # Whoever deletes a view, or the account that it belongs to, and by whichever road.
        pre_delete.connect(_view_is_deleted, sender=SavedView, dispatch_uid="rules-on-a-view")


def _view_is_deleted(instance: SavedView, **_: object) -> None:
    """Loaded when it is needed: most processes never delete a view."""
    from jobs_admin.alerts.closing import switch_off_rules_on

    switch_off_rules_on(instance)
