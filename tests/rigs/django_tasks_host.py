"""A Django project that uses Django Tasks in its database `DATABASE`: its commands (`migrate`, `db_worker` …) as they
are, or `serve`: one call in each line of the input, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from urllib.parse import unquote, urlsplit

import django
from django.conf import settings
from django.core.management import call_command, execute_from_command_line


def configure(url: str) -> None:
    parts = urlsplit(url)
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": unquote(parts.path[1:])}
    if parts.scheme == "postgresql":
        database["ENGINE"] = "django.db.backends.postgresql"
        database |= {"HOST": parts.hostname, "PORT": parts.port, "USER": parts.username, "PASSWORD": parts.password}
    settings.configure(
        DATABASES={"default": database},
        INSTALLED_APPS=[*([] if find_spec("django.tasks") else ["django_tasks"]), "django_tasks_db"],
        TASKS={"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}},
        USE_TZ=True,
    )
    django.setup()


def serve() -> None:
    from django.db import connection

    from tests.rigs.django_tasks_jobs import deliver

    for line in sys.stdin:
        call = json.loads(line)
        connection.close()
        connection.settings_dict["NAME"] = call["database"]
        answer: object = None
        if call["name"] == "enqueue":
            answer = [deliver.enqueue(n=n).id for n in call["numbers"]]
        elif call["name"] == "work":
            call_command("db_worker", batch=True, interval=0, startup_delay=False, reload=False, verbosity=0)
        else:
            call_command("migrate", *call.get("to", []), verbosity=0)
        connection.close()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    configure(os.environ["DATABASE"])
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        execute_from_command_line(sys.argv)
