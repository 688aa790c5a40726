"""The setting REDRIVE: one reader, defaults, and sentences for what cannot be used."""

from __future__ import annotations

import json
import subprocess
import sys
from ipaddress import ip_network

import pytest

from dashboard.setup import environment
from jobs_admin import config
from jobs_admin.core.desk_settings import SETTINGS, BadSetting, parse
from jobs_admin.installation import ROOT


def test_a_project_that_sets_nothing_has_the_defaults(settings):
    del settings.REDRIVE
    assert config.setting("URL") == "http://127.0.0.1:8000" and config.setting("READ_ONLY") is False


def test_values_are_read_from_text_and_from_python_alike():
    python = {
        "READ_ONLY": True,
        "APPROVE_ABOVE": 1000,
        "DANGEROUS_TASKS": ["a", "b"],
        "TRUSTED_PROXIES": ["10.2.0.0/16"],
    }
    text = {"READ_ONLY": "1", "APPROVE_ABOVE": "1000", "DANGEROUS_TASKS": "a, b", "TRUSTED_PROXIES": "10.2.0.0/16"}
    assert parse(python) == parse(text)
    assert parse(text)["TRUSTED_PROXIES"] == [ip_network("10.2.0.0/16")]
    assert parse(parse(text)) == parse(text)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"READONLY": True}, "REDRIVE has an unknown key 'READONLY'; did you mean 'READ_ONLY'?"),
        ({"REDRIVE_KEEP": "7d"}, "REDRIVE has an unknown key 'REDRIVE_KEEP'; did you mean 'KEEP'?"),
        ({"zebra": 1}, f"REDRIVE has an unknown key 'zebra'; known: {', '.join(SETTINGS)}."),
        ({"READ_ONLY": "perhaps"}, "REDRIVE['READ_ONLY'] must be 1 or 0, not 'perhaps'."),
        ({"PAYLOAD_KEYS": 7}, "REDRIVE['PAYLOAD_KEYS'] must be a list of strings, not int."),
        ({"URL": None}, "REDRIVE['URL'] must be a string, not NoneType."),
        ({"TRUSTED_PROXIES": 7}, "REDRIVE['TRUSTED_PROXIES'] must be a list of addresses and networks, not int."),
        (["READ_ONLY"], "REDRIVE must be a dict of settings."),
    ],
)
def test_what_cannot_be_used_is_one_sentence(given, sentence):
    with pytest.raises(BadSetting) as refused:
        parse(given)
    assert str(refused.value) == sentence


def test_a_change_of_the_setting_is_seen(settings):
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    assert config.is_read_only()
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": False}
    assert not config.is_read_only()


def test_the_environment_has_a_variable_for_each_key_but_those_that_follow_from_others():
    assert SETTINGS.keys() - environment.VARIABLES.keys() == {"SENDS_MAIL", "TEST_BACKENDS"}


def test_each_key_is_in_the_documentation():
    page = (environment.ROOT / "docs/how-to/mount-into-a-django-project.md").read_text()
    table = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `") and line.count("|") == 4]
    assert [key for key in SETTINGS if not any(f"`{key}`" in keys for keys in table)] == []


def test_relative_paths_are_absolute_for_the_processes_of_up_which_run_in_another_folder(tmp_path):
    given = {
        "REDRIVE_DATA": "var",
        "REDRIVE_SOURCES": "sources.toml",
        "SECRET_KEY_FILE": "secret",
        "REDRIVE_ADMIN_PASSWORD_FILE": "password",
        "DATABASE_URL": "sqlite:///desk.sqlite3",
    }
    script = "import json, os; from dashboard.setup import environment; environment.prepare_first_run([])"
    (tmp_path / "secret").write_text("given")
    shown = subprocess.run(
        [sys.executable, "-c", f"{script}; print(json.dumps(dict(os.environ)))"],
        cwd=tmp_path,
        env={**given, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
    ).stdout
    assert {name: path for name, path in json.loads(shown).items() if name in given} == {
        "REDRIVE_DATA": f"{tmp_path}/var",
        "REDRIVE_SOURCES": f"{tmp_path}/sources.toml",
        "SECRET_KEY_FILE": f"{tmp_path}/secret",
        "REDRIVE_ADMIN_PASSWORD_FILE": f"{tmp_path}/password",
        "DATABASE_URL": f"sqlite:///{tmp_path}/desk.sqlite3",
    }
