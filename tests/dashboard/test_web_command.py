"""`web` and `watch` outside `up`: what stops a start is one sentence, and then nothing has started."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from dashboard.setup.engine import free_port
from tests.kit import migrated
from tests.kit.up import ROOT, terminal
from tests.kit.waiting import wait_until


@pytest.fixture
def collected(settings, store, tmp_path):
    """Collected static files, as far as the start checks for them."""
    (tmp_path / "staticfiles.json").write_text("{}")
    settings.STATIC_ROOT = tmp_path


@pytest.mark.parametrize("bind", ["8000", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999", "::1:8000", "a b:80", ":8000"])
def test_an_address_without_host_or_port_is_refused(bind):
    with pytest.raises(CommandError, match=r"--bind must be HOST:PORT, .* Nothing was started\."):
        call_command("web", bind=bind)


@pytest.mark.server
@pytest.mark.parametrize("family", ["127.0.0.1", "[::1]"])
def test_a_port_in_use_is_refused_by_its_address(collected, family):
    host = family.strip("[]")
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=kind) as other:
        bind = f"{family}:{other.getsockname()[1]}"
        with pytest.raises(CommandError) as refused:
            call_command("web", bind=bind)
    assert str(refused.value) == f"{bind} cannot be opened (Address already in use). Nothing was started."


@pytest.mark.server
def test_an_address_of_another_machine_is_refused(collected):
    with pytest.raises(CommandError, match=r"192\.0\.2\.1:8000 cannot be opened \(Cannot assign requested address\)"):
        call_command("web", bind="192.0.2.1:8000")


@pytest.mark.server
def test_without_collected_static_files_no_page_would_have_styles(settings, store, tmp_path):
    settings.STATIC_ROOT = tmp_path / "static"
    with pytest.raises(
        CommandError, match=r"run `python3 manage.py collectstatic --noinput`, then start again\. Nothing was"
    ):
        call_command("web")


@pytest.mark.server
@pytest.mark.parametrize("command", ["web", "watch"])
def test_a_database_without_this_version_s_tables_names_the_command(tmp_path, command):
    (tmp_path / "redrive.sqlite3").touch()
    done = terminal(tmp_path, command, SECRET_KEY="x" * 50)
    assert done.returncode == 1 and done.stdout.count("\n") == 1, done.stdout
    assert "The database lacks " in done.stdout and "run `python3 manage.py migrate`, then start again" in done.stdout


@pytest.mark.server
def test_a_database_that_does_not_answer_is_one_sentence_without_its_password(tmp_path):
    away = "postgresql://redrive:hunter22@127.0.0.1:1/redrive"
    done = terminal(tmp_path, "web", SECRET_KEY="x" * 50, DATABASE_URL=away)
    assert done.returncode == 1 and done.stdout.count("\n") == 1, done.stdout
    assert done.stdout.startswith("DATABASE_URL cannot be used: postgresql://127.0.0.1:1 ("), done.stdout
    assert done.stdout.endswith("Nothing was started.\n") and "hunter22" not in done.stdout


@pytest.mark.server
@pytest.mark.parametrize("processes", ["1", "2"])
def test_static_files_are_collected_without_secrets_and_the_pages_served_from_read_only_code(
    tmp_path, engine, processes
):
    static, data = tmp_path / "static", tmp_path / "data"
    collected = terminal(data, "collectstatic", "--noinput", REDRIVE_STATIC=str(static))
    assert collected.returncode == 0 and not data.exists(), collected.stdout
    migrated.into(data)
    port = free_port()
    variables = {
        "PATH": "/usr/bin:/bin", "SECRET_KEY": "x" * 50, "REDRIVE_DATA": str(data), "REDRIVE_STATIC": str(static),
        "REDRIVE_REDIS_URL": engine.url, "REDRIVE_PAYLOAD_KEYS": "A" * 43 + "=",
    }  # fmt: skip
    command = [sys.executable, str(ROOT / "manage.py"), "web", "--bind", f"127.0.0.1:{port}", "--processes", processes]
    variables["PYTHONVERBOSE"] = "1"  # Python then reports on stderr how its interpreter ends
    with (tmp_path / "errors").open("w") as errors:
        web = subprocess.Popen(command, cwd="/", env=variables, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert web.stdout.readline() == f"Serving http://127.0.0.1:{port}/\n"
        wait_until(lambda: _page(port, "/healthz") == b"ok")
        login = _page(port, "/login/")
        style = login.partition(b'rel="stylesheet" href="')[2].partition(b'"')[0].decode()
        assert style.startswith("/static/") and _page(port, style)
    finally:
        web.send_signal(signal.SIGTERM)
        assert web.wait(90) == 0
    # A thread of the server that calls Python while the interpreter ends aborts the process: it ends before that.
    ends = "# cleanup" in (tmp_path / "errors").read_text()
    assert ends == (processes == "2")  # whose threads are in processes of their own
    shutil.rmtree(static)


def _page(port: int, path: str) -> bytes | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.read()
    except OSError:
        return None
