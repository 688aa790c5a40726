"""The code of docs/how-to/add-a-source.md: its adapter passes the shared contracts, and its tests are these."""

from __future__ import annotations

import importlib
import re
import sys
import textwrap
from pathlib import Path

import pytest

import jobs_admin.sources
from jobs_admin.sources import SYSTEMS, connect

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/add-a-source.md"
BLOCKS = [
    textwrap.dedent(code)
    for code in re.findall(r"^ *```python\n(.*?)^ *```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
]
PACKAGE, ADAPTER, LINE, ABILITIES, TESTS = BLOCKS
NAME = "jobs_admin.sources.redis_lists"

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The package of the page, where `import` finds it."""
    folder = tmp_path_factory.mktemp("how-to") / "redis_lists"
    folder.mkdir()
    (folder / "__init__.py").write_text(PACKAGE)
    (folder / "source.py").write_text(ADAPTER)
    jobs_admin.sources.__path__.append(str(folder.parent))
    yield folder
    jobs_admin.sources.__path__.remove(str(folder.parent))
    for name in [name for name in sys.modules if name.startswith(NAME)]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def _system(package, monkeypatch):
    redis_lists = importlib.import_module(NAME)
    (system,) = eval(f"{{{LINE}}}", {"redis_lists": redis_lists}).values()
    monkeypatch.setitem(SYSTEMS, "redis_lists", system)


page_tests: dict[str, object] = {"__name__": __name__}
exec(compile(TESTS, str(PAGE), "exec"), page_tests)
TestSending, TestReading = page_tests["TestSending"], page_tests["TestReading"]


def test_its_line_of_the_reference_opens_the_adapter():
    ((backend, url, options),) = eval(f"{{{ABILITIES}}}").values()
    assert connect("x", backend, url, options=options).can.holds_dead
