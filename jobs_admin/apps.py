from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class JobsAdminConfig(AppConfig):
    name = "jobs_admin"
    verbose_name = "Redrive"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from jobs_admin.models.failure_count import install_triggers
        from jobs_admin.models.terms import install_terms

        # After every migrate, not in a migration: SQLite rebuilds a table to alter it and drops its triggers.
        post_migrate.connect(install_triggers, sender=self)
        post_migrate.connect(install_terms, sender=self)
