"""BullMQ's own scripts, as they stand in its packages, with what they include: one text each, under jobs_admin/sources/bullmq/lua.

    python -m tests.kit.bullmq_scripts          # writes them again from the packages of tests/node

A test compares them, so that ours are theirs to the letter.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.kit import node

NAMES = ("reprocessJob", "changePriority", "removeJob")
OURS = Path(__file__).resolve().parents[2] / "jobs_admin/sources/bullmq/lua"
_INCLUDE = re.compile(r'^--- @include "(?:includes/)?(\w+)"\s*$', re.MULTILINE)


def flattened(major: int, name: str) -> str:
    """The script, each of its includes once, before what needs it."""
    home = node.packages() / f"node_modules/bullmq{major}/dist/cjs/commands"
    (path,) = home.glob(f"{name}-*.lua")
    seen: set[str] = set()

    def with_includes(text: str) -> str:
        return _INCLUDE.sub(include, text)

    def include(found: re.Match[str]) -> str:
        if found[1] in seen:
            return ""
        seen.add(found[1])
        return with_includes((home / f"includes/{found[1]}.lua").read_text()).rstrip("\n")

    return with_includes(path.read_text()).rstrip("\n") + "\n"


def _write() -> None:
    for major in node.MAJORS:
        (OURS / str(major)).mkdir(parents=True, exist_ok=True)
        for name in NAMES:
            (OURS / f"{major}/{name}.lua").write_text(flattened(major, name))


if __name__ == "__main__":
    _write()
