"""Commands in a second terminal, before the first start, and with an argument too many."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys

import pytest
from django.core.management import get_commands, load_command_class
from django.core.management.base import CommandError

from dashboard.setup import command_line
from tests.kit import migrated
from tests.kit.up import ROOT, SILENT, Desk, terminal

pytestmark = [pytest.mark.server]


@pytest.mark.long("Starts a desk and runs commands in processes of their own.")
@pytest.mark.usefixtures("store")  # empty: the switch of the guard is on
def test_a_second_terminal_finds_the_desk_that_was_shown_its_addresses(tmp_path, engine):
    (tmp_path / "key").write_text("k" * 50)
    variables = {"REDRIVE_REDIS_URL": engine.url, "CELERY_BROKER_URL": engine.url.removesuffix("0") + "1"}
    variables |= {"DATABASE_URL": f"sqlite:///{tmp_path}/elsewhere.sqlite3", "SECRET_KEY_FILE": str(tmp_path / "key")}
    migrated.into(tmp_path, "elsewhere.sqlite3"), migrated.into(tmp_path / "data")
    desk = Desk(tmp_path / "data", "--no-demo", **variables).is_ready()
    try:
        message = terminal(desk.data, "doctor").stdout
        assert "source celery: " in message and "REDRIVE_REDIS_URL is not set" not in message, message
        assert "Read as" not in message and terminal(desk.data, "failures").returncode == 0
        assert "The guard is off: workers" in terminal(desk.data, "off").stdout
        severe = terminal(desk.data, "doctor")
        assert severe.returncode == 1
        assert "The guard is off: no failures are recorded." in severe.stdout
        assert "The guard is on." in terminal(desk.data, "on").stdout
        assert "chain breaks" not in terminal(desk.data, "doctor").stdout  # written with the desk's own key
        assert stat.S_IMODE((desk.data / "up.json").stat().st_mode) == 0o600
    finally:
        desk.send(signal.SIGTERM).ends()
    again = Desk(desk.data, "--no-demo").is_ready()
    try:
        assert json.loads((desk.data / "up.json").read_text())["run"] == {}
        assert "No source is configured" in terminal(desk.data, "doctor").stdout
    finally:
        again.send(signal.SIGTERM).ends()


@pytest.mark.parametrize("command", ["failures", "groups", "replay", "off", "on", "token", "watch"])
def test_a_command_before_the_first_start_shows_that_there_is_no_desk(tmp_path, command):
    done = terminal(tmp_path, command, SECRET_KEY="x" * 50)
    assert done.returncode == 1
    assert done.stdout.startswith("No desk in ") and done.stdout.count("\n") == 1, done.stdout
    assert not (tmp_path / "redrive.sqlite3").exists()


def test_a_database_without_tables_is_no_desk_either(tmp_path):
    (tmp_path / "redrive.sqlite3").touch()
    done = terminal(tmp_path, "failures", SECRET_KEY="x" * 50)
    assert done.stdout.startswith("No desk in ") and "Traceback" not in done.stdout, done.stdout


@pytest.mark.parametrize("arguments", [(), ("help",), ("--help",)])
def test_the_list_of_commands_needs_no_secret_and_begins_with_ours(tmp_path, arguments):
    done = terminal(tmp_path, *arguments)
    assert done.returncode == 0
    assert list(command_line.OURS) == [line.split()[0] for line in done.stdout.split("Django's:")[0].splitlines()[2:-1]]
    assert "changepassword" in done.stdout.split("Django's:")[1]


@pytest.mark.parametrize("command", ["up", "doctor", "failures", "alerts", "policies", "token"])
def test_help_of_a_command_needs_no_desk_and_makes_none(tmp_path, command):
    done = terminal(tmp_path / "data", command, "--help")
    assert (done.returncode, done.stdout.startswith(f"usage: manage.py {command} ")) == (0, True), done.stdout
    assert not (tmp_path / "data").exists()


def test_help_is_given_where_a_setting_cannot_be_used(tmp_path):
    done = terminal(tmp_path, "doctor", "--help", REDRIVE_READ_ONLY="perhaps", DATABASE_URL="mysql://h/d")
    assert done.returncode == 0 and done.stdout.startswith("usage: manage.py doctor "), done.stdout


def test_every_command_of_ours_is_listed():
    files = [*ROOT.glob("dashboard/management/commands/*.py"), *ROOT.glob("jobs_admin/management/commands/*.py")]
    assert {file.stem for file in files} - {"__init__"} == {name.replace("-", "_") for name in command_line.OURS} - {
        "test",
        "worker_wheel",
        "node_package",
    }


@pytest.mark.parametrize(
    ("command", "acts"),
    [
        ("workers", "{list,gone,return}"),
        ("failure", "{show,why,compare}"),
        ("groups", "{list,show,resolve,reopen,mute,assign,unassign,note,runbook,issue,undo}"),
        ("alerts", "{list,show,acknowledge,unacknowledge}"),
        ("silences", "{list,add,end}"),
        ("depth", "{list,history}"),
        ("replays", "{list,bring-back,discard}"),
        ("policies", "{lint,list,show,publish,restore,withdraw}"),
        ("audit", "{verify,accept,export}"),
        ("token", "{create,give,list,revoke}"),
    ],
)
def test_a_command_without_an_act_names_the_acts(command, acts):
    loaded = load_command_class(get_commands()[command], command)
    with pytest.raises(CommandError, match=re.escape(f"the following arguments are required: {acts}")):
        loaded.create_parser("manage.py", command).parse_args([])


@pytest.mark.parametrize("port", ["99999", "0", "-1"])
def test_a_port_that_is_none_is_refused_in_one_sentence(tmp_path, port):
    done = terminal(tmp_path, "up", f"--port={port}")
    assert done.returncode == 1
    assert done.stdout == f"--port must be from 1 to 65535, not {port}. Nothing was started.\n"


def test_a_reader_that_ends_early_is_no_fault(tmp_path):
    stored = {name: value for name, value in os.environ.items() if not name.startswith(SILENT)}
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, str(ROOT / "manage.py"), "doctor"]
    environment = {**stored, "REDRIVE_DATA": str(tmp_path), "SECRET_KEY": "x" * 50}
    done = subprocess.run(command, env=environment, stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")
