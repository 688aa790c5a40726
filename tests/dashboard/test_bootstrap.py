"""From a bare Python: what is installed when, and what is said where it cannot be."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from dashboard.setup import bootstrap

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(autouse=True)
def outside_any_environment(monkeypatch):
    """The Python that a person types: it has the system's pip where ensurepip is missing; that of our `.venv` may have none."""
    monkeypatch.setattr(sys, "executable", getattr(sys, "_base_executable", sys.executable))


def make_checkout(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Return a checkout with locks that need nothing, so that installing takes no network."""
    for name in ("requirements", "requirements-test"):
        (folder / f"{name}.txt").write_text("# nothing\n")
        (folder / f"{name}.in").write_text("# nothing\n")
    patch.setattr(bootstrap, "ROOT", folder)
    patch.setattr(bootstrap, "VENV", folder / ".venv")
    return folder


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    return make_checkout(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def one_install(tmp_path_factory):
    """A checkout in which the locks are installed: to be copied."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", getattr(sys, "_base_executable", sys.executable))
        folder = make_checkout(tmp_path_factory.mktemp("installed"), patch)
        bootstrap._install(lock(folder))
    return folder


@pytest.fixture
def installed(one_install, checkout):
    """The checkout, with its locks installed."""
    shutil.copytree(one_install / ".venv", checkout / ".venv", symlinks=True)
    assert bootstrap._is_stamped(lock(checkout))
    return checkout


def lock(checkout: Path) -> list[Path]:
    return [checkout / "requirements.txt"]


def test_an_install_is_stamped_and_not_repeated(checkout, capsys):
    bootstrap._install(lock(checkout))
    assert bootstrap._is_stamped(lock(checkout))
    capsys.readouterr()
    bootstrap._install(lock(checkout))
    assert capsys.readouterr().err == ""


def test_a_changed_lock_is_installed_again(installed):
    (installed / "requirements.txt").write_text("# something else\n")
    assert not bootstrap._is_stamped(lock(installed))


def test_an_environment_of_another_python_is_not_taken_for_ours(installed):
    configuration = installed / ".venv/pyvenv.cfg"
    configuration.write_text(configuration.read_text().replace("version = 3.", "version = 3.1"))
    assert not bootstrap._is_stamped(lock(installed))


def test_an_install_that_was_cut_short_starts_afresh(installed):
    (installed / ".venv/half-unpacked").touch()
    (installed / ".venv/.unfinished").touch()
    (installed / ".venv/requirements.stamp").unlink()
    bootstrap._install(lock(installed))
    assert not (installed / ".venv/half-unpacked").exists()
    assert bootstrap._is_stamped(lock(installed))


def test_an_environment_whose_python_is_gone_is_made_again(installed):
    (installed / ".venv/bin/python").unlink()
    assert not bootstrap._is_stamped(lock(installed))
    bootstrap._install(lock(installed))
    assert bootstrap._works()


def test_two_installs_at_once_take_turns(checkout):
    program = (
        "import sys; from pathlib import Path; from dashboard.setup import bootstrap\n"
        "bootstrap.ROOT = Path(sys.argv[1]); bootstrap.VENV = bootstrap.ROOT / '.venv'\n"
        "bootstrap._install([bootstrap.ROOT / 'requirements.txt'])"
    )
    command = [sys.executable, "-c", program, str(checkout)]
    both = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    lines = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], lines
    assert sum("Making .venv" in text for text in lines) == 1, lines


def test_a_lock_without_hashes_is_refused(checkout):
    (checkout / "requirements.txt").write_text("celery==5.7.0\n")
    with pytest.raises(bootstrap.CannotStart, match=r"requirements\.txt could not be installed"):
        bootstrap._install(lock(checkout))
    assert not bootstrap._is_stamped(lock(checkout))


def test_an_environment_that_satisfies_the_ranges_is_used_as_it_is():
    assert bootstrap._satisfies([ROOT / "requirements.in"])


@pytest.mark.parametrize("line", ["Django>=99", "no-such-distribution-of-ours"])
def test_an_environment_that_lacks_a_requirement_is_not(tmp_path, line):
    (tmp_path / "requirements.in").write_text(f"celery\n{line}\n")
    assert not bootstrap._satisfies([tmp_path / "requirements.in"])


def test_a_requirement_of_another_platform_is_not_missed(tmp_path):
    (tmp_path / "requirements.in").write_text("no-such-distribution-of-ours ; sys_platform == 'other'\n")
    assert bootstrap._satisfies([tmp_path / "requirements.in"])


def test_a_python_without_pip_ensurepip_and_uv_is_shown_what_to_install(checkout, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False, symlinks=True)
    # ensurepip belongs to the interpreter: a module of the same name that fails hides it, and pip's absence is real.
    (tmp_path / "hidden" / "ensurepip").mkdir(parents=True)
    (tmp_path / "hidden" / "ensurepip" / "__init__.py").touch()
    (tmp_path / "hidden" / "ensurepip" / "__main__.py").write_text("raise SystemExit(1)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "hidden"))
    monkeypatch.setattr(sys, "executable", str(bare / "bin/python"))
    with pytest.raises(bootstrap.CannotStart, match="apt install python3-venv"):
        bootstrap._install(lock(checkout))


def test_a_folder_that_cannot_be_written_is_shown(checkout, monkeypatch):
    (checkout / ".venv").write_text("in the way")
    with pytest.raises(bootstrap.CannotStart, match="cannot be written"):
        bootstrap._install(lock(checkout))


def test_an_old_python_is_shown_in_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "version_info", (3, 9, 2, "final", 0))
    with pytest.raises(bootstrap.CannotStart, match=r"3\.11 or newer and this is 3\.9"):
        bootstrap.need_python(["manage.py", "up"])


def test_an_old_python_hands_over_to_a_newer_one(monkeypatch, tmp_path):
    newer = tmp_path / "python3.12"
    newer.write_text('#!/bin/sh\n[ "$1" = -c ] && exit 0\necho "$@" >"$0.called"\n')
    newer.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "version_info", (3, 9, 2, "final", 0))
    child = os.fork()
    if child == 0:
        bootstrap.need_python(["manage.py", "up", "--no-demo"])
        os._exit(1)
    os.waitpid(child, 0)
    assert (tmp_path / "python3.12.called").read_text() == "manage.py up --no-demo\n"


def test_the_files_that_an_old_python_reads_have_no_newer_syntax():
    for file in ("manage.py", "dashboard/__init__.py", "dashboard/setup/__init__.py", "dashboard/setup/bootstrap.py"):
        ast.parse((ROOT / file).read_text(), feature_version=(3, 7))


def test_the_locks_name_no_registry_and_hash_every_package():
    for name in (
        "requirements.txt",
        "requirements-test.txt",
        "requirements-strict.txt",
        "requirements-sqs.txt",
        "requirements-oidc.txt",
    ):
        text = (ROOT / name).read_text()
        assert "://" not in text
        assert "--index" not in text
        pinned = [line for line in text.splitlines() if "==" in line and not line.lstrip().startswith("#")]
        assert pinned
        assert all(line.rstrip().endswith("\\") for line in pinned)


def test_what_is_imported_is_required_by_name():
    named = set()
    for file in ("requirements.in", "requirements-test.in", "requirements-strict.in"):
        for line in (ROOT / file).read_text().splitlines():
            if line and not line.startswith(("#", "-")):
                named.add(Requirement(line).name.lower().replace("_", "-"))
    homes = metadata.packages_distributions()
    unnamed = {
        module: homes[module]
        for module in imported()
        if module in homes and not {home.lower().replace("_", "-") for home in homes[module]} & named
    }
    assert unnamed == {}


IMPORTED = re.compile(
    r"^[ \t]*(?:import +([\w.]+(?: as \w+)?(?:, *[\w.]+(?: as \w+)?)*)|from +(\w[\w.]*) +import )", re.MULTILINE
)


def imported() -> set[str]:
    """The first words of every import in the project."""
    found = set()
    for folder in ("jobs_admin", "dashboard", "demo", "clients", "bench", "tests"):
        for file in (ROOT / folder).rglob("*.py"):
            if "fingerprints" in file.parts:  # what raised the errors: run in environments of their own
                continue
            for modules, module in IMPORTED.findall(file.read_text()):
                found |= {name.strip().partition(" ")[0].partition(".")[0] for name in (modules or module).split(",")}
    return found


SHARED = "-n {} --dist loadfile --no-loadscope-reorder"
CORES = os.cpu_count() or 1
WITH_SERVERS, WITHOUT_SERVERS = SHARED.format(min(5, 2 * CORES + 1)), SHARED.format(min(5, CORES + 1))


@pytest.mark.parametrize(
    ("arguments", "run"),
    [
        ("", WITH_SERVERS),
        ("--strict", WITH_SERVERS),
        ("--endurance --strict", WITH_SERVERS),
        ("--database postgresql", WITHOUT_SERVERS),
        ("--database=postgresql tests/search", "tests/search"),
        ("--durations=20", f"{WITH_SERVERS} --durations=20"),
        ("-m server", f"{WITH_SERVERS} -m server"),
        ("-m 'not server'", f"{WITHOUT_SERVERS} -m not server"),
        ("-n0", "-n0"),
        ("tests/search", "tests/search"),
        ("tests/test_node.py::test_none -x", "tests/test_node.py::test_none -x"),
    ],
)
def test_the_suite_runs_in_several_processes_unless_tests_are_named(tmp_path, monkeypatch, arguments, run):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$REDRIVE_STRICT,$REDRIVE_ENDURANCE,$REDRIVE_TEST_DATABASE $@" >"$0.called"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    for name in ("STRICT", "ENDURANCE", "TEST_DATABASE"):
        monkeypatch.delenv(f"REDRIVE_{name}", raising=False)
    monkeypatch.setattr(bootstrap, "enter_environment", lambda argv, locks: None)
    child = os.fork()
    if child == 0:
        bootstrap.main(["manage.py", "test", *shlex.split(arguments)])
        os._exit(1)
    os.waitpid(child, 0)
    strict, endurance = ("1" if option in arguments else "" for option in ("--strict", "--endurance"))
    database = "postgresql" if "postgresql" in arguments else ""
    assert (tmp_path / "python.called").read_text() == f"{strict},{endurance},{database} -m pytest {run}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["help"], ["--version"]])
def test_help_and_version_install_nothing(tmp_path, arguments):
    """In a checkout of its own, whose Python has no Django."""
    for folder in ("dashboard", "jobs_admin"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("manage.py", "requirements.txt"):
        shutil.copy(ROOT / name, tmp_path)
    command = [sys.executable, "-I", "-c", f"import runpy, sys; sys.path.insert(0, '.'); sys.argv = {['manage.py', *arguments]!r}; "
               "runpy.run_path('manage.py', run_name='__main__')"]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not (tmp_path / ".venv").exists(), done.stderr
    assert done.stdout.startswith("Redrive 0" if arguments == ["--version"] else "Redrive's commands")
