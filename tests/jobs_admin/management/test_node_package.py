"""The Node agent for BullMQ workers as a package: what npm installs without asking a registry, the same bytes each time."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile

import pytest

from jobs_admin.management import node_package
from jobs_admin.worker.versions import VERSION
from tests.kit import node

ROOT = node_package.ROOT
COMMAND = [sys.executable, "-E", "-S", str(ROOT / "manage.py"), "node-package"]  # -S: without what is installed


def test_it_holds_the_code_and_the_scripts_and_no_tests(tmp_path):
    with tarfile.open(node_package.build(tmp_path).path) as archive:
        names = {name.removeprefix("package/") for name in archive.getnames()}
        described = json.load(archive.extractfile("package/package.json"))
    assert {"index.js", "index.mjs", "index.d.ts", "package.json", "README.md", "LICENSE"} < names
    assert {name.partition("/")[0] for name in names if "/" in name} == {"lib", "lua"}
    assert described["version"] == VERSION and "dependencies" not in described


def test_the_same_files_give_the_same_bytes(tmp_path):
    assert node_package.build(tmp_path / "one").sha256 == node_package.build(tmp_path / "other").sha256


def test_npm_installs_what_the_command_writes_and_it_is_there_for_both_kinds_of_modules(tmp_path):
    try:
        node.packages()
    except node.OutOfReach as error:
        pytest.skip(str(error))
    output = subprocess.run([*COMMAND, str(tmp_path)], capture_output=True, text=True, check=True).stdout
    (tmp_path / "app").mkdir()
    (tmp_path / "app/package.json").write_text('{"private": true}')
    subprocess.run(
        ["npm", "install", "--offline", "--no-audit", "--no-fund", output.splitlines()[0]],
        cwd=tmp_path / "app",
        capture_output=True,
        check=True,
    )
    for script in (
        "console.log(typeof require('@redrive/bullmq').worker)",
        "import('@redrive/bullmq').then((it) => console.log(typeof it.worker))",
    ):
        done = subprocess.run(["node", "-e", script], cwd=tmp_path / "app", capture_output=True, text=True, check=True)
        assert done.stdout == "function\n"


@pytest.mark.parametrize("folder", ["dist", "my packages"])
def test_the_printed_npm_line_installs_from_any_folder_where_the_package_was_built_by_a_relative_path(tmp_path, folder):
    try:
        node.packages()
    except node.OutOfReach as error:
        pytest.skip(str(error))
    built = subprocess.run([*COMMAND, folder], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    (line,) = [line.strip() for line in built.splitlines() if line.strip().startswith("npm install ")]
    for home in (tmp_path, tmp_path / "app"):
        home.mkdir(exist_ok=True)
        (home / "package.json").write_text('{"private": true}')
        command = f"{line} --offline --no-audit --no-fund"
        done = subprocess.run(command, shell=True, cwd=home, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert (home / "node_modules/@redrive/bullmq/index.js").exists()


def test_the_page_gives_npm_no_path_that_it_takes_for_a_repository():
    page = (ROOT / "docs/node.md").read_text()
    paths = re.findall(r"npm install (?:-\S+ )*([^\s`]+)", page)
    assert paths and all(path.startswith(("/", "./", "../")) for path in paths)


def test_a_folder_that_cannot_be_written_is_shown(tmp_path):
    (tmp_path / "file").touch()
    done = subprocess.run([*COMMAND, str(tmp_path / "file")], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "The package was not written" in done.stderr and "Traceback" not in done.stderr
