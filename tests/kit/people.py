"""People of the desk."""

from __future__ import annotations

import pytest

from jobs_admin.models import Role
from jobs_admin.models.access import ADMIN, OPERATOR, VIEWER, Viewer
from tests.kit.browsing import Browser


def log_in(django_user_model, name: str, **roles: str) -> Browser:
    """A browser in which `name` is logged in; `roles`: source (`every` for all) -> role."""
    user = django_user_model.objects.create_user(name, password="correct horse battery")
    for source, role in roles.items():
        Role.objects.create(user=user, source="*" if source == "every" else source, role=role)
    client = Browser()
    client.force_login(user)
    return client


PASSWORD = "correct horse battery"

ANN = Viewer("ann", {"*": OPERATOR})
BOB = Viewer("bob", {"shop": OPERATOR})
EVE = Viewer("eve", {"*": VIEWER})

ROOT = Viewer("root", {"*": ADMIN})
SAM = Viewer("sam", {"shop": OPERATOR})
LOU = Viewer("lou", {"shop": VIEWER})
BEA = Viewer("bea", {"bank": OPERATOR})


@pytest.fixture
def as_(client, django_user_model):
    """The browser of a member of staff with a role, or of the superuser."""

    def log_in(role="", source="shop"):
        user = django_user_model.objects.create_user(f"staff-{role}-{source}", is_staff=True, is_superuser=not role)
        if role and role != "none":
            Role.objects.create(user=user, role=role, source=source)
        client.force_login(user)
        return client

    return log_in
