"""Allowed imports (pyproject.toml), and workers without Django."""

from __future__ import annotations

import ast
import fnmatch
import importlib.util
import os
import pkgutil
import re
import shutil
import site
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.kit import durations

ROOT = Path(__file__).resolve().parent.parent
CONTRACTS = (
    "Everything points down",
    "No cycle inside a package",
    "The engine does not know the face",
    "Workers and adapters run without Django",
    "The core touches nothing outside the standard library",
    "Screens never talk to a queue",
    "The face points down",
    "A view is known by its address alone",
)


def test_every_import_contract_holds():
    verdict = lint_imports(ROOT)
    assert verdict.returncode == 0, verdict.stdout


def test_every_import_contract_notices_an_offence(tmp_path):
    for package in ("jobs_admin", "dashboard", "demo"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    offend(tmp_path / "jobs_admin/failures/triage.py", "import jobs_admin.retries.pulling")
    offend(tmp_path / "jobs_admin/queues/depths/steps.py", "import jobs_admin.queues.depths.reading")
    offend(tmp_path / "jobs_admin/models/group.py", "import dashboard.web.htmx")
    offend(tmp_path / "jobs_admin/worker/spool.py", "import django.db")
    offend(tmp_path / "jobs_admin/core/keys.py", "import redis")
    offend(tmp_path / "dashboard/web/views.py", "import jobs_admin.sources.celery.on_redis")
    offend(tmp_path / "dashboard/web/links.py", "import dashboard.groups.page")
    offend(tmp_path / "dashboard/replays/page.py", "import dashboard.replays.views")
    verdict = lint_imports(tmp_path)
    assert [name for name in CONTRACTS if f"{name} BROKEN" not in verdict.stdout] == []


def test_no_module_of_the_face_but_the_start_and_the_checks_may_talk_to_a_queue():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (bound,) = [c["source_modules"] for c in contracts if c["name"] == "Screens never talk to a queue"]
    modules = {f"dashboard.{found.name}" for found in pkgutil.iter_modules([str(ROOT / "dashboard")])}
    ground = "__main__ management settings setup wsgi"
    assert modules - set(bound) == {f"dashboard.{name}" for name in ground.split()}


def test_every_view_is_protected():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (protected,) = [c["protected_modules"] for c in contracts if c["type"] == "protected"]
    views = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in ROOT.glob("dashboard/**/*_views.py")}
    assert set(protected) == {"dashboard.**.views", *views}
    addresses = "".join((ROOT / path).read_text() for path in ("dashboard/routes/__init__.py", "dashboard/urls.py"))
    routed = re.findall(r"^from (dashboard\.\S+) import (\w+)", addresses, re.MULTILINE)
    modules = {
        f"{package}.{name}"
        for package, name in routed
        if name.islower() and name not in {"door", "include_lazily", "chained", "error_pages"}
    }
    assert {module for module in modules if module.endswith(".views")} | views == modules


def test_the_api_knows_no_page():
    imports = imports_of_the_face()
    calls = {name for name in imports if is_call(name)}
    assert set().union(*(pages_of(imports, name) for name in calls)) == set()
    imports["dashboard.web.api.shapes"].add("dashboard.failures.timeline")
    assert pages_of(imports, "dashboard.failures.api") == {"dashboard.failures.timeline"}


def is_call(module: str) -> bool:
    return (
        module.startswith("dashboard.")
        and module.endswith((".api", ".api_shapes"))
        and module != "dashboard.routes.api"
    )


def pages_of(imports: dict[str, set[str]], call: str) -> set[str]:
    """Return the modules of nouns that a call imports, directly or not, but for calls and the files that pages share."""
    seen, found = set(), {call}
    while found:
        seen |= found
        found = set().union(*(imports.get(name, set()) for name in found)) - seen
    shared = {
        "dashboard.audit.downloads",
        "dashboard.failures.comparison",
        "dashboard.failures.downloads",
        "dashboard.holds.breaker_page",
        "dashboard.incidents.document",
    }
    return {
        name
        for name in seen - shared
        if name in imports and not is_call(name) and not name.startswith("dashboard.web.")
    }


def imports_of_the_face() -> dict[str, set[str]]:
    """Return the modules that each module of the face imports; of `from a import b` both `a` and `a.b`."""
    imports = {}
    for path in ROOT.glob("dashboard/**/*.py"):
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        names = {f"{node.module}.{one.name}" for node in nodes for one in node.names} | {node.module for node in nodes}
        imports[".".join(path.relative_to(ROOT).with_suffix("").parts)] = names
    return imports


def test_every_relative_link_of_a_page_of_documentation_resolves():
    broken = []
    for page in tracked("*.md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            path = urlsplit(target)
            if not path.scheme and path.path and not (page.parent / unquote(path.path)).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_every_anchor_of_a_link_is_a_heading_of_its_page():
    broken, count = [], 0
    for page in tracked("*.md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            path = urlsplit(target)
            there = (page.parent / unquote(path.path)).resolve() if path.path else page
            if path.scheme or not path.fragment or there.suffix != ".md":
                continue
            count += 1
            if path.fragment not in anchors_of(there):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == [] and count > 50


@cache
def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub and the site give to the headings of a page."""
    text = re.sub(r"^( *)```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    found: Counter[str] = Counter()
    anchors = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        anchors.add(f"{anchor}-{found[anchor]}" if found[anchor] else anchor)
        found[anchor] += 1
    return anchors


def test_the_tests_that_prove_failure_modes_exist():
    page = (ROOT / "tests/failure-modes.md").read_text()
    modules = list((ROOT / "tests").rglob("*.py"))
    named = re.findall(r"`(?:[\w/]+/)?(test_\w+)(?:\.py)?`", page)
    assert sorted(set(named) - {path.stem for path in modules}) == []
    names = re.findall(r"def test_(\w+)\(", "\n".join(path.read_text() for path in modules))
    known = " ".join(compact_name(name) for name in names)
    proofs = [cell.rsplit(" | ", 1)[1] for cell in page.splitlines() if cell.startswith("|") and " | " in cell]
    sentences = [re.sub(r"`[^`]*`|\([^)]*\)", "", part) for cell in proofs for part in cell.split(" · ")]
    assert len(sentences) > 250
    left = [text for text in sentences if compact_name(text) not in known and text.strip(" |") != "held by"]
    assert left == []


def compact_name(text: str) -> str:
    """Return the letters and digits of a sentence, by which it is compared with the name of a test."""
    return re.sub(r"[\W_]", "", text.lower())


def test_no_text_cites_a_page_that_readers_do_not_have():
    private = re.compile(r"\bseeds? 00\d\b|\bthe\s+contract\b|\bcontract\.md\b|\b(?:shared|facts)/", re.IGNORECASE)
    binary = {".png", ".pyc"}
    cited = []
    for path in tracked("*"):
        place = path.relative_to(ROOT).as_posix()
        # The programs in tests/fingerprints bill customers by their contracts. A folder with a dot is a cache.
        if path.is_file() and path.suffix not in binary and not place.startswith(("tests/fingerprints/", ".")):
            cited += [f"{place}: {found[0]!r}" for found in private.finditer(path.read_text(errors="replace"))]
    assert cited == []


def test_the_command_of_an_upgrade_loads_the_environment_first():
    page = (ROOT / "docs/how-to/upgrade.md").read_text()
    [block] = [block for block in page.split("```")[1::2] if "redrive upgrade --check" in block]
    assert "set -a; . /etc/redrive/environment" in block.partition("/opt/redrive")[0]


def test_a_module_without_a_place_in_the_layers_is_noticed(tmp_path):
    for package in ("jobs_admin", "dashboard", "demo"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "jobs_admin/placeless.py").touch()
    assert "placeless" in lint_imports(tmp_path).stdout


def test_workers_and_adapters_import_where_django_is_absent(tmp_path):
    for entry in Path(packages()).iterdir():
        if not entry.name.lower().startswith("django"):
            (tmp_path / entry.name).symlink_to(entry)
    program = f"""
import importlib, importlib.util, pkgutil, sys
sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]
assert importlib.util.find_spec("django") is None
for name in ("jobs_admin.core", "jobs_admin.worker", "jobs_admin.sources"):
    package = importlib.import_module(name)
    for found in pkgutil.walk_packages(package.__path__, name + "."):
        importlib.import_module(found.name)
        print(found.name)
"""
    # -S: without the site-packages that has Django.
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "jobs_admin.worker.celery" in done.stdout


@pytest.mark.long("Runs mypy over the packages that it is about.")
@pytest.mark.extras
def test_types_of_core_worker_and_sources_hold():
    run_tool("mypy")


# What Python 3.11 and later brought: names, methods and words that a worker of 3.10 would stumble over.
TOO_NEW = {
    "utc": "from datetime import UTC",
    "tomllib": "import tomllib",
    "self": "from typing import Self",
    "group": "found = ExceptionGroup",
    "star": "try:\n    pass\nexcept* ValueError:\n    pass",
    "note": "ValueError().add_note('why')",
    "enum": "from enum import StrEnum",
    "alias": "type Text = str",
}


@pytest.mark.long("Runs mypy over the packages that it is about.")
@pytest.mark.extras
def test_core_and_worker_hold_nothing_that_python_3_10_does_not_know():
    run_tool("mypy", "--python-version", "3.10", "jobs_admin/core", "jobs_admin/worker")


@pytest.mark.extras
def test_what_python_3_10_does_not_know_is_noticed(tmp_path):
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed: `python3 manage.py test --strict` installs it")
    for name, line in TOO_NEW.items():
        (tmp_path / f"too_new_{name}.py").write_text(f"{line}\n")
    command = [sys.executable, "-m", "mypy", "--python-version", "3.10", "--config-file", ROOT / "pyproject.toml"]
    found = subprocess.run([*command, *tmp_path.iterdir()], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert set(re.findall(r"too_new_(\w+)\.py:\d+: error: ", found.stdout)) == TOO_NEW.keys(), (
        found.stdout + found.stderr
    )


@pytest.mark.extras
def test_the_code_has_no_lint_and_is_formatted():
    run_tool("ruff", "check", "--output-format", "concise")
    run_tool("ruff", "format", "--check")


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    program = "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports_command as c; c()"
    command = [sys.executable, "-c", program, "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@cache
def tracked(pattern: str) -> list[Path]:
    """Files of the project, as opposed to those of an environment or a data folder in it."""
    aside = {".venv", "var", "node_modules", ".git", ".pytest_cache"}
    found = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in aside]  # not even looked into
        found += [Path(folder) / name for name in fnmatch.filter(files, pattern)]
    return found


def offend(module: Path, line: str) -> None:
    assert module.exists(), module
    module.write_text(module.read_text() + f"\n{line}\n")


def packages() -> str:
    return next(path for path in site.getsitepackages() if (Path(path) / "celery").exists())


def run_tool(name: str, *arguments: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: `python3 manage.py test --strict` installs it")
    command = [sys.executable, "-m", name, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("package", ("jobs_admin", "dashboard", "demo"))
def test_a_function_of_sixty_lines_or_fifteen_branches_states_why_it_is_one(package):
    long = []
    for path in (ROOT / package).rglob("*.py"):
        if "migrations" in path.parts:
            continue
        lines = path.read_text().splitlines()
        for node in ast.walk(ast.parse("\n".join(lines))):
            if not isinstance(node, ast.FunctionDef):
                continue
            source = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            is_long = node.end_lineno - node.lineno >= 60 or "noqa: C901" in source.partition('"""')[0]
            if is_long and "# In one function: " not in source:
                long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert long == []


def test_no_test_imports_another_test_or_a_bench():
    borrowed = []
    for path in ROOT.glob("tests/**/*.py"):
        place = path.relative_to(ROOT).as_posix()
        if place.startswith("tests/fingerprints/"):  # programs that fail, each with modules of its own
            continue
        imported = imports_of(path)
        borrowed += [f"{place}: {name}" for name in imported if name.startswith("bench") or is_test(name)]
    assert borrowed == []
    assert is_test("tests.jobs_admin.test_ingest.report") and not is_test("tests.kit.reports.report")


def test_no_fixture_is_imported_over_a_name_that_tests_use():
    marked = "noqa: " + "F811"
    assert [path for path in ROOT.glob("tests/**/*.py") if marked in path.read_text()] == []


def is_test(name: str) -> bool:
    """Return whether a module of tests, or a name in one, is a test module or belongs to one."""
    return name.startswith("tests.") and any(part.startswith("test_") for part in name.split("."))


def imports_of(module: Path) -> set[str]:
    """Return all that a module imports, also in functions: of `from a import b`, `a.b`."""
    nodes = list(ast.walk(ast.parse(module.read_text())))
    plain = {one.name for node in nodes if isinstance(node, ast.Import) for one in node.names}
    return plain | {
        f"{node.module}.{one.name}" for node in nodes if isinstance(node, ast.ImportFrom) for one in node.names
    }


def test_a_long_test_reports_why():
    silent = []
    for test, seconds in durations.recorded()["tests"].items():
        file, *names = test.partition("[")[0].split("::")
        is_there = (ROOT / file).exists()
        if seconds > durations.LONG_S and is_there and not is_long((ROOT / file).read_text(), names):
            silent.append(f"{test}: {seconds:g} s")
    assert silent == [], "give it less to do, or the mark `long` with the reason"


def test_the_reason_of_a_long_test_is_a_sentence():
    code = '@pytest.mark.long("{}")\ndef test_a(): pass\nclass TestB:\n    def test_c(self): pass\n'
    assert is_long(code.format("Starts a desk twice."), ["test_a"]) and not is_long(code.format(""), ["test_a"])
    assert not is_long(code.format("Starts a desk twice."), ["TestB", "test_c"])


@cache
def parsed(code: str) -> ast.Module:
    return ast.parse(code)


def is_long(code: str, names: list[str]) -> bool:
    """Return whether a test, its class or its module carries the mark with a reason. A test that is gone counts as marked."""
    scope: ast.AST = parsed(code)
    marks = [node for one in scope.body if "pytestmark" in ast.unparse(one)[:10] for node in ast.walk(one)]
    for name in names:
        scope = next((node for node in ast.walk(scope) if getattr(node, "name", "") == name), None)
        if scope is None:
            return True
        marks += scope.decorator_list
    calls = [mark for mark in marks if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.long"]
    return any(len(ast.literal_eval(call.args[0])) > 10 for call in calls)


def test_settings_are_read_and_set_as_keys_of_the_setting_redrive():
    """Elsewhere they are `config.setting("KEY")`; in tests `settings.REDRIVE = settings.REDRIVE | {"KEY": value}`."""
    old = re.compile(r"\bsettings\.REDRIVE_[A-Z]+|settings, \"REDRIVE_[A-Z]+")
    files = [
        path
        for folder in ("jobs_admin", "dashboard", "demo", "bench", "tests")
        for path in (ROOT / folder).rglob("*.py")
    ]
    found = [str(path) for path in files if path != Path(__file__) and old.search(path.read_text())]
    assert found == [], "write settings.REDRIVE | {...}, or read config.setting(...)"
