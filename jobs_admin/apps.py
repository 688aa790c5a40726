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

        config.setting("URL")  # an invalid setting prevents the start

        from jobs_admin.models import SavedView
        from jobs_admin.models.failure_count import install_triggers
        from jobs_admin.models.terms import install_terms
        from jobs_admin.models.text_filters import install_text_filters
        from jobs_admin.models.trust import open_unsigned_reports

        # After every migrate, not in a migration: SQLite rebuilds a table to alter it, which drops its triggers.
        post_migrate.connect(install_triggers, sender=self)
        post_migrate.connect(install_terms, sender=self)
        post_migrate.connect(install_text_filters, sender=self)
        # Also here, because tests that empty the database need it again.
        post_migrate.connect(open_unsigned_reports, sender=self)
        # For every way in which a view, or its owner's account, is deleted.
        pre_delete.connect(_view_is_deleted, sender=SavedView, dispatch_uid="rules-on-a-view")


def _view_is_deleted(instance: SavedView, **_: object) -> None:
    """Import lazily: most processes never delete a view."""
    from jobs_admin.alerts.closing import switch_off_rules_on

    switch_off_rules_on(instance)
