"""People of the desk."""

from __future__ import annotations

from django.test import Client

from jobs_admin.models import Role


def log_in(django_user_model, name: str, **roles: str) -> Client:
    """A browser in which `name` is logged in; `roles`: source (`every` for all) -> role."""
    user = django_user_model.objects.create_user(name, password="correct horse battery")
    for source, role in roles.items():
        Role.objects.create(user=user, source="*" if source == "every" else source, role=role)
    client = Client()
    client.force_login(user)
    return client


PASSWORD = "correct horse battery"
