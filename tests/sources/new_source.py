"""Begin a source: writes the example of docs/how-to/add-a-source.md under another name, registered, with its tests and its page.

    .venv/bin/python -m tests.sources.new_source NAME [LABEL]

What it writes passes the tests at once. Then replace the example by the real system.
"""

from __future__ import annotations

import argparse
import keyword
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUIDE = "docs/how-to/add-a-source.md"
EXAMPLE, CLASS, LABEL = "redis_lists", "RedisLists", "Redis lists"
# Its parts, in the order of the guide.
PACKAGE, ADAPTER, LINE, ABILITIES, TESTS = (
    textwrap.dedent(code)
    for code in re.findall(r"^ *```python\n(.*?)^ *```", (ROOT / GUIDE).read_text(), re.DOTALL | re.MULTILINE)
)


class Refused(Exception):
    """Nothing was written; the text says why."""


def write(name: str, label: str) -> list[Path]:
    """Write the package, its registration, tests and page. Return the paths. Raises Refused."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{1,30}", name) or keyword.iskeyword(name):
        raise Refused(f"{name!r} is not a name of a source: lower-case letters, digits and _, as in acme_queue.")
    page = f"docs/sources/{name.replace('_', '-')}.md"
    new = {
        f"jobs_admin/sources/{name}/__init__.py": PACKAGE,
        f"jobs_admin/sources/{name}/source.py": ADAPTER,
        f"tests/sources/test_{name}.py": f'"""{LABEL}: the contracts of a source, on a real server."""\n\n{TESTS}',
        page: f"# {LABEL}\n\nOptions, rights and limitations of the system.\n",
    }
    if found := [path for path in new if (ROOT / path).exists()]:
        raise Refused(f"{found[0]} exists already. Nothing was changed.")
    for path, text in new.items():
        (ROOT / path).parent.mkdir(exist_ok=True)
        (ROOT / path).write_text(_renamed(text, name, label))
    registry = "jobs_admin/sources/__init__.py"
    _insert(registry, r"(from jobs_admin\.sources import .*)", rf"\1, {name}")
    _insert(registry, r'(    "memory": memory\.SYSTEM,\n)', _renamed(LINE, name, label) + r"\1")
    _insert(
        "tests/sources/test_abilities.py", r'(ADAPTERS = \{\n(?:    ".*\n)*)', r"\1" + _renamed(ABILITIES, name, label)
    )
    _insert("docs/README.md", r"(\(sources/sqs\.md\))", rf"\1, [{label}]({page.removeprefix('docs/')})")
    written = [*map(Path, new), Path(registry), Path("tests/sources/test_abilities.py"), Path("docs/README.md")]
    python = [path for path in written if path.suffix == ".py"]
    subprocess.run(
        [sys.executable, "-m", "ruff", "check", "-q", "--fix", "--select", "I", *python], cwd=ROOT, check=True
    )
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", *python], cwd=ROOT, check=True)
    # By a new process, which imports the new package.
    command = [sys.executable, "-m", "tests.sources.test_abilities"]
    table = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, env=os.environ | {"SECRET_KEY": "x"}
    ).stdout
    _insert("docs/sources.md", r"\| \| Celery on Redis .*\n(?:\|.*\n)+", table.replace("\\", r"\\"))
    return [*written, Path("docs/sources.md")]


def _renamed(text: str, name: str, label: str) -> str:
    words = "".join(word.capitalize() for word in name.split("_"))
    return text.replace(EXAMPLE, name).replace(CLASS, words).replace(LABEL, label)


def _insert(path: str, pattern: str, replacement: str) -> None:
    text, count = re.subn(pattern, replacement, (ROOT / path).read_text(), count=1)
    assert count == 1, f"{path} has no {pattern}"
    (ROOT / path).write_text(text)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sources.new_source", description=__doc__.splitlines()[0])
    parser.add_argument("name", help="of the package and in the configuration (`backend`), as in acme_queue")
    parser.add_argument("label", nargs="?", help="on screens, as in Acme Queue; by default made of the name")
    given = parser.parse_args(arguments)
    try:
        written = write(given.name, given.label or given.name.replace("_", " ").capitalize())
    except Refused as refused:
        print(refused, file=sys.stderr)
        return 2
    print("\n".join(map(str, written)))
    print(f"Next: python3 manage.py test tests/sources/test_{given.name}.py. Then {GUIDE}, from step 2.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
