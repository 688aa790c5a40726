"""docs/how-to/add-a-source.md: the source that its command writes is registered, and passes the shared contracts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import new_source

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("tests/sources/test_acme_queue.py", "tests/sources/test_abilities.py")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the repository, with what is not committed yet."""
    folder = tmp_path_factory.mktemp("how-to") / "redrive"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file() and not name.startswith("tests/fingerprints"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def run(folder, *arguments):
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.server
@pytest.mark.long("Runs the contracts of a source in a copy of the repository.")
def test_what_the_command_writes_passes_the_contracts(copy):
    made = run(copy, "-m", "tests.sources.new_source", "acme_queue", "Acme Queue")
    assert made.returncode == 0 and "test_acme_queue.py" in made.stdout, made.stderr
    done = run(copy, "-m", "pytest", *TESTS)
    assert done.returncode == 0 and " passed" in done.stdout and "skipped" not in done.stdout, done.stdout[-5_000:]
    assert "Acme Queue |" in (copy / "docs/sources.md").read_text()
    again = run(copy, "-m", "tests.sources.new_source", "acme_queue")
    assert again.returncode == 2 and "exists already. Nothing was changed." in again.stderr


@pytest.mark.parametrize("name", ["Acme", "acme-queue", "class", "../acme", "", "rq"])
def test_a_name_that_cannot_be_used_is_a_sentence_and_writes_nothing(name, monkeypatch):
    monkeypatch.setattr(new_source.Path, "write_text", None)
    with pytest.raises(new_source.Refused, match=r"is not a name of a source|exists already"):
        new_source.write(name, "Label")
