"""Redrive mounted in another project: another user model, language, zone, middleware and admin, an app of our label.

The project has what the package has, put together as pyproject.toml says; it runs by its own settings: on this Python and
the locked Django, and on the latest Python of this machine with the latest Django.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.kit.programs import latest_python
from tests.workers.environments import OutOfReach, locked

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
MOUNT = "/ops/redrive/"
DATABASE = "house.sqlite3"


# What the project's manage.py does, for one command after the other.
_EACH = """
import contextlib, io, json, sys
from django.core.management import execute_from_command_line
answers = []
for command in sys.argv[1:]:
    code, output = 0, io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            execute_from_command_line(["manage.py", *command.split()])
        except SystemExit as end:
            code = int(end.code or 0)
    answers.append((code, output.getvalue()))
print(json.dumps(answers))
"""


class Project:
    def __init__(self, folder: Path, store: str, python: str) -> None:
        self.folder, self.python = folder, python
        self.site = folder / "site"
        table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
        for name in table["packages"]:
            shutil.copytree(ROOT / name, self.site / name, ignore=shutil.ignore_patterns("__pycache__"))
        for source, target in table["force-include"].items():
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, self.site / target)
        paths = [self.site, HERE / "project", ROOT]
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "DJANGO_SETTINGS_MODULE": "house.settings",
            "FOREIGN_FOLDER": str(folder),
            "FOREIGN_STORE": store,
        }

    def run(self, *command: str, is_mounted: bool = True, **more: str) -> subprocess.CompletedProcess:
        environment = self.environment | ({"FOREIGN": "mounted"} if is_mounted else {}) | more
        return subprocess.run(
            [self.python, *command], cwd=HERE / "project", env=environment, capture_output=True, text=True, timeout=900
        )

    def manage(self, *command: str, **more) -> str:
        done = self.run("manage.py", *command, **more)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def manage_each(self, *commands: str, **more) -> list[tuple[int, str]]:
        """Return the exit code and the output of each command, all of one process."""
        done = self.run("-c", _EACH, *commands, **more)
        assert done.returncode == 0, done.stderr[-5000:]
        return [tuple(answer) for answer in json.loads(done.stdout)]

    def visit(self, *what: str, **more) -> dict:
        done = self.run(str(HERE / "visit.py"), *what, **more)
        assert done.returncode == 0, done.stderr[-5000:]
        return json.loads(done.stdout)


@pytest.fixture(scope="module", params=["locked", pytest.param("latest", marks=pytest.mark.extras)])
def python(request) -> str:
    if request.param == "locked":
        return sys.executable
    try:
        return str(locked(ROOT / "tests/latest.txt", latest_python()))
    except OutOfReach as error:
        pytest.skip(str(error))


OF_ONE_VERSION = pytest.mark.parametrize(
    "python", ["locked", pytest.param("latest", marks=[pytest.mark.extras, pytest.mark.endurance])], indirect=True
)


@pytest.fixture(scope="module")
def database(tmp_path_factory, engine, python) -> Path:
    """The project's database, migrated by that Django."""
    made = Project(tmp_path_factory.mktemp("migrated"), engine.url, python)
    made.manage("migrate", "-v0")
    return made.folder / DATABASE


@pytest.fixture
def project(tmp_path, store, engine, python, database):
    shutil.copyfile(database, tmp_path / DATABASE)
    return Project(tmp_path, engine.url, python)


def check_answers(found: dict, mount: str = MOUNT) -> None:
    assert found["acts"].pop("results") in ([True, True, True], None)  # None: on this Python without Django Tasks
    assert found["addresses"] > 200
    odd = {name: one["status"] for name, one in found["answers"].items() if one["status"] not in {200, 302, 404, 409}}
    assert odd == {"readyz": 503}, {name: found["answers"][name]["why"] for name in odd}
    absent = {name for name, one in found["answers"].items() if one["status"] == 404}
    assert absent == {"demo", "account", "second-factor", "api:api-root", "api:"}  # accounts are the project's own
    links = {link for one in found["answers"].values() for link in one["links"]}
    admin = mount.removesuffix("ops/redrive/") + "admin/"
    assert [link for link in links if not link.startswith((mount, "/assets/", admin))] == []
    for name, one in found["answers"].items():
        assert "default-src 'none'" in one["headers"]["Content-Security-Policy"], name
        assert one["headers"]["Content-Language"] == "en" and not one["is_invalid"], name
        # Outside of the views the language and the zone are the project's.
        assert one["headers"]["House"] == "Europe/Lisbon de", name
    for name, (right, where, path) in found["strangers"].items():
        if right != "anyone":
            inner = mount.removesuffix(MOUNT)
            assert where == f"{inner}/enter/?next={inner}{path}", name
    assert found["acts"] == {
        "without a token": [403, "dead"],
        "with it": [302, "discarded"],
        "audit": ["failure.discard", "root@house.example", True],
        "in the admin": [200, True],
        "missing": [404, False],
    }


@pytest.mark.server
@pytest.mark.long("three processes of another project, and each address of the desk in it")
def test_the_desk_works_in_it_and_its_own_pages_stay_byte_for_byte(project):
    before = project.visit("own", is_mounted=False)["own"]
    found = project.visit("own", "redrive")
    changed = {key for key in before if _timeless(before[key]) != _timeless(found["own"][key])}
    assert changed == set() and len(before) > 10
    check_answers(found["redrive"])


def _timeless(page):
    status, headers, cookies, body = page
    return status, [one for one in headers if one[0] != "Expires"], cookies, body


@pytest.mark.server
@OF_ONE_VERSION
@pytest.mark.parametrize(
    ("at", "prefix", "mount"),
    [("", "", "/"), ("ops/redrive/", "/inner", "/inner/ops/redrive/")],
    ids=["root", "prefix"],
)
def test_it_may_be_at_the_root_and_below_a_prefix(project, at, prefix, mount):
    code = (
        "import django; django.setup(); from django.urls import reverse; from jobs_admin import config;"
        "print(reverse('redrive:alert-detail', args=[7]), config.page_at('alerts/7/'))"
    )
    done = project.run("-c", code, FOREIGN_AT=at, FOREIGN_PREFIX=prefix)
    assert done.stdout.split() == [f"{mount}alerts/7/", f"https://house.example{mount}alerts/7/"], done.stderr


@pytest.mark.server
@OF_ONE_VERSION
def test_its_commands_and_checks_are_its_own(project):
    assert project.manage("groups") == "the groups of the house\n"
    of_both = ("check --deploy", "help --commands")
    alone = project.manage_each(*of_both, is_mounted=False)
    mounted = project.manage_each(*of_both)
    assert alone[0] == mounted[0] and alone[0][0] == 0
    assert set(mounted[1][1].split()) - set(alone[1][1].split()) == {"redrive"}
    ends = {  # with which exit code, and what it says
        "makemigrations --check --dry-run": (0, "No changes detected"),
        "redrive": (0, "  watch  "),
        "redrive groups --help": (0, "usage: manage.py redrive groups"),
        "redrive failures state:dead": (0, "No failures yet."),
        "findstatic redrive/css/tokens.css": (0, str(project.site)),
        "redrive doctor": (None, "store"),
        "redrive up": (1, "Redrive has no command 'up' here"),
    }
    for (command, (code, words)), answer in zip(ends.items(), project.manage_each(*ends), strict=True):
        assert code in (None, answer[0]) and words in answer[1], (command, answer)


@pytest.mark.server
@OF_ONE_VERSION
def test_a_setting_that_cannot_be_used_and_what_is_missing_are_named(project):
    project.environment["FOREIGN_READ_ONLY"] = "perhaps"
    done = project.run("manage.py", "check")
    assert "REDRIVE['READ_ONLY'] must be 1 or 0, not 'perhaps'." in done.stderr.splitlines()[-1]
    project.environment["FOREIGN_READ_ONLY"] = "0"
    code = (
        "import django; from django.conf import settings as s; "
        "s.MIDDLEWARE = [m for m in s.MIDDLEWARE if 'Csrf' not in m]; s.USE_TZ = False; s.LOGIN_URL = '/accounts/login/'; django.setup(); "
        "from dashboard.mounted import check_project; print(*(one.id for one in check_project()))"
    )
    assert project.run("-c", code).stdout.split() == ["redrive.E004", "redrive.E006", "redrive.W002"]
