"""A password in a URL is never said, however the URL is mistyped: neither by `up`, nor by any command, nor by a page."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dashboard.setup import connections, environment
from dashboard.setup.engine import free_port
from dashboard.setup.environment import Misconfigured
from jobs_admin import config
from jobs_admin.core.service_url import Unreadable, display_url, for_redis_py
from jobs_admin.sources import connect
from jobs_admin.sources.base import SourceError
from tests.kit import migrated
from tests.kit.up import ROOT, SILENT

SPELLINGS = [
    "{scheme}://127.0.0.1:1/0?password=hunter2pw",
    "{scheme}:hunter2pw@127.0.0.1:1",
    "{scheme}://127.0.0.1:notaport-hunter2pw/0",
    "{scheme}://:hun@ter2pw#x@127.0.0.1:1",
    "{scheme}://:hunter2pw@127.0.0.1:1/0",
    "{scheme}://u:hunter2pw@127.0.0.1:1/hunter2pw",
    "{scheme}://u:hunter2pw@[::1/0",
    "{scheme}://:hunter2pw#x@127.0.0.1:1/0",
    "{scheme}://:1/hunter2pw@127.0.0.1:1/0",
    "{scheme}://:1?hunter2pw@127.0.0.1:1/0",
    "{scheme}://:hunter2pw",
    "{scheme}://:hunter2pw@:1/0",
    "{scheme}:/:hunter2pw@127.0.0.1:1/0",
    ":hunter2pw@127.0.0.1:1/0",
    "hunter2pw",
    "hunter2pw://127.0.0.1:1/0",
    "{scheme}://u:hunter2pw @127.0.0.1:1/0",
    "{scheme}://u:hunter2pw@127.0.0.1:99999/0",
    "http://u:hunter2pw@127.0.0.1:1/0",
]
redis_spelling = pytest.mark.parametrize("url", [text.format(scheme="redis") for text in SPELLINGS])
database_spelling = pytest.mark.parametrize("url", [text.format(scheme="postgresql") for text in SPELLINGS])


def is_without_password(text: str) -> None:
    assert text.strip() and "Traceback" not in text, text
    assert "hunter2" not in text and "ter2pw" not in text, text


@redis_spelling
def test_a_store_or_broker_that_cannot_be_used_is_refused_without_its_password(url):
    for check in (
        lambda: connections.check_redis("REDRIVE_REDIS_URL", url),
        lambda: connections.check_broker(config.SourceConfig("celery", "celery", url)),
    ):
        with pytest.raises(Misconfigured, match=r"^(REDRIVE_REDIS_URL|CELERY_BROKER_URL) cannot be used: ") as refused:
            check()
        assert "\n" not in str(refused.value)
        is_without_password(str(refused.value))


@redis_spelling
def test_an_adapter_names_its_server_without_the_password(url):
    with pytest.raises(SourceError) as refused:
        connect("celery", "celery", url).depths()
    is_without_password(str(refused.value))


@pytest.mark.django_db
@redis_spelling
def test_the_page_of_queues_and_the_doctor_show_no_password(client, django_user_model, store, settings, url):
    from django.core.management import call_command

    from jobs_admin.queues import sampling
    from tests.kit.sources import forget_configuration

    settings.REDRIVE = settings.REDRIVE | {"CELERY_BROKER_URL": url}
    forget_configuration(config)
    from django.utils import timezone

    sampling.sample(timezone.now())
    client.force_login(django_user_model.objects.create_superuser("a"))
    page = client.get("/queues/").content.decode()
    is_without_password(page)
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": url}
    forget_configuration(config)
    message = run_doctor(call_command)
    assert "REDRIVE_REDIS_URL" in message and "CELERY_BROKER_URL" in message
    is_without_password(message)


def run_doctor(call_command) -> str:
    from io import StringIO

    message = StringIO()
    with pytest.raises(SystemExit):
        call_command("doctor", stdout=message)
    return message.getvalue()


@database_spelling
def test_a_database_that_cannot_be_used_is_refused_without_its_password(url):
    try:
        environment.database(url)
    except Misconfigured as refused:
        is_without_password(str(refused))
    is_without_password(display_url(url))


@pytest.mark.server
@pytest.mark.parametrize("url", [SPELLINGS[number].format(scheme="postgresql") for number in (2, 4, 6)])
@pytest.mark.parametrize("command", ["up --no-demo", "doctor", "failures"])
def test_a_command_with_an_unusable_database_shows_one_sentence(tmp_path, command, url):
    done = run(tmp_path, command, DATABASE_URL=url)
    assert done.returncode == 1
    assert "DATABASE_URL" in done.stdout
    is_without_password(done.stdout)


@pytest.mark.server
@pytest.mark.parametrize("url", [SPELLINGS[number].format(scheme="redis") for number in (2, 3)])
@pytest.mark.parametrize("command", ["up --no-demo", "off", "watch"])
def test_a_command_with_an_unusable_store_shows_one_sentence(tmp_path, command, url):
    done = run(tmp_path, command, REDRIVE_REDIS_URL=url, has_tables=command != "up --no-demo")
    assert done.returncode == 1
    assert "REDRIVE_REDIS_URL" in done.stdout
    is_without_password(done.stdout)


def run(tmp_path, command: str, *, has_tables: bool = False, **variables: str) -> subprocess.CompletedProcess[str]:
    stored = {name: value for name, value in os.environ.items() if not name.startswith(SILENT)}
    stored |= {
        "REDRIVE_DATA": str(tmp_path),
        "SECRET_KEY": "x" * 50,
        "REDRIVE_PAYLOAD_KEYS": "a" * 43 + "=",
        **variables,
    }
    manage = [sys.executable, str(ROOT / "manage.py")]
    if has_tables:
        migrated.into(tmp_path)
    arguments = command.split() + (["--port", str(free_port())] if command.startswith("up") else [])
    return subprocess.run(
        [*manage, *arguments],
        env=stored,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://u:secret@cache.example:6380/2", "redis://cache.example:6380"),
        ("rediss://:a@b@cache.example/2?ssl_cert_reqs=none", "rediss://cache.example"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379"),
        ("sqlite:////srv/redrive.sqlite3", "sqlite:////srv/redrive.sqlite3"),
        ("postgresql://u:secret@db/redrive", "postgresql://db"),
    ],
)
def test_scheme_host_and_port_are_shown_where_they_are_beyond_doubt(url, message):
    assert display_url(url) == message


@pytest.mark.parametrize("url", ["redis://h/zero", "redis://:p#w@h/0", "redis://:p/w@h/0"])
def test_a_url_that_redis_py_would_read_otherwise_than_meant_is_refused(url):
    with pytest.raises(Unreadable):
        for_redis_py(url)
