"""The floor of `bench/pages.py`: the least that Django needs for a page of 50 rows from SQLite. No session, no login."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.urls import path

_ROWS = """<!doctype html><title>Rows</title><table>{% for row in rows %}<tr><td>{{ row.id }}<td>{{ row.state }}
<td>{{ row.queue }}<td>{{ row.task }}<td>{{ row.error }}<td>{{ row.message }}<td>{{ row.at }}{% endfor %}</table>"""

settings.configure(
    SECRET_KEY="floor",  # noqa: S106  (signs nothing)
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    USE_TZ=True,
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ["FLOOR_DATABASE"],
            "CONN_MAX_AGE": None,
        }
    },
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
django.setup()

from django.db import models  # noqa: E402


class Row(models.Model):
    state = models.CharField(max_length=12)
    queue = models.CharField(max_length=200)
    task = models.CharField(max_length=255)
    error = models.CharField(max_length=255)
    message = models.TextField()
    at = models.DateTimeField()

    class Meta:
        app_label = "floor"


def index(request: HttpRequest) -> HttpResponse:
    return HttpResponse(_page.render({"rows": Row.objects.order_by("-id")[:50]}, request))


def still(request: HttpRequest) -> HttpResponse:
    """The same rows, at hand: what only the template and the server need."""
    return HttpResponse(_page.render({"rows": _at_hand}, request))


def fill(rows: int = 1_000) -> None:
    """Make the table and `rows` rows in it."""
    from django.db import connection
    from django.utils import timezone

    with connection.schema_editor() as editor:
        editor.create_model(Row)
    Row.objects.bulk_create(
        Row(
            state="dead",
            queue="webhooks",
            task="shop.hooks.send",
            error="TimeoutError",
            message="x" * 80,
            at=timezone.now(),
        )
        for _ in range(rows)
    )


_page = engines["django"].from_string(_ROWS)
_at_hand = [
    Row(
        id=n,
        state="dead",
        queue="webhooks",
        task="shop.hooks.send",
        error="TimeoutError",
        message="x" * 80,
        at=datetime.now(UTC),
    )
    for n in range(50)
]
urlpatterns = [path("", index), path("still/", still)]
application = get_wsgi_application()

if __name__ == "__main__":
    fill()
