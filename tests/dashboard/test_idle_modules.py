"""Libraries that an idle desk does not hold in memory: each is loaded by the first request or source that needs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from tests.kit import migrated

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]
# A line each: what needs it.
LATER = {
    "ninja", "pydantic", "pydantic_core", "django.test", "unittest",  # the API
    "celery", "kombu", "amqp", "billiard", "vine", "click",  # a source on Celery or RabbitMQ
    "pygments",  # a traceback of Python
    "prometheus_client",  # a scrape
    "pyotp", "segno",  # a second factor
    "psycopg",  # a database or a jobs table on PostgreSQL
}  # fmt: skip

WEB = """
import os, sys
sys.path.insert(0, {root!r})
os.environ["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
from django.conf import settings
settings.STORAGES["staticfiles"]["BACKEND"] = "django.contrib.staticfiles.storage.StaticFilesStorage"
from dashboard.wsgi import application
from django.contrib.auth import get_user_model
from django.contrib.sessions.backends.db import SessionStore
user = get_user_model().objects.create_superuser("admin", password="x" * 20)
session = SessionStore()
session.update({{
    "_auth_user_id": str(user.pk),
    "_auth_user_backend": "dashboard.web.second_step.Passwords",
    "_auth_user_hash": user.get_session_auth_hash(),
}})
session.create()
for path in ("/login/", "/", "/groups/", "/failures/", "/queues/", "/replays/", "/policies/", "/alerts/", "/audit/"):
    found = []
    environ = {{
        "REQUEST_METHOD": "GET", "PATH_INFO": path, "QUERY_STRING": "", "SERVER_NAME": "127.0.0.1", "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1", "HTTP_HOST": "127.0.0.1", "wsgi.url_scheme": "http", "wsgi.input": sys.stdin.buffer,
        "HTTP_COOKIE": "" if path == "/login/" else "sessionid=" + session.session_key,
    }}
    body = b"".join(application(environ, lambda status, headers: found.append(status)))
    assert found == ["200 OK"] and body, (path, found)
print(*sys.modules)
"""

WATCH = """
import os, sys
sys.path.insert(0, {root!r})
os.environ["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
import django; django.setup()
from jobs_admin.watch import steps
for step in steps().values():
    step.run("here:1:0")
print(*sys.modules)
"""


@pytest.mark.parametrize("program", [WEB, WATCH], ids=["web", "watch"])
def test_an_idle_process_has_not_loaded_what_only_some_desks_need(engine, tmp_path, program):
    migrated.into(tmp_path, "idle.sqlite3")
    environment = {
        **{name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"},
        "SECRET_KEY": "x" * 50,
        "REDRIVE_DATA": str(tmp_path),
        "REDRIVE_PAYLOAD_KEYS": Fernet.generate_key().decode(),
        "REDRIVE_REDIS_URL": engine.url.removesuffix("0") + "6",
        "DATABASE_URL": f"sqlite:///{tmp_path}/idle.sqlite3",
    }
    done = subprocess.run(
        [sys.executable, "-c", program.format(root=str(ROOT))],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not LATER & set(done.stdout.split())
