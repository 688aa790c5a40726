"""`manage.py node-package [DIR]`: the Node agent for BullMQ workers as an npm package, without npm.

Some text files in an archive, written with Python's standard library; the same files give the same bytes, so its hash
can be pinned.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import shlex
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from jobs_admin.installation import ROOT

HOME = "clients/node"  # of the repository
INSTALLED_HOME = Path(__file__).with_name("node_agent")  # of an installed Redrive, with the license


@dataclass(frozen=True, slots=True)
class Package:
    path: Path
    size: int  # bytes
    sha256: str


def build(folder: Path, root: Path = ROOT) -> Package:
    """Write the package of the files in `root` into `folder`, atomically. An existing one is replaced. Raises OSError."""
    home, license_file = root / HOME, root / "LICENSE"
    if not home.exists():
        home, license_file = INSTALLED_HOME, INSTALLED_HOME / "LICENSE"
    described = json.loads((home / "package.json").read_text())
    packed = _packed(_files(home, described["files"]) | {"LICENSE": license_file.read_bytes()})
    name = described["name"].removeprefix("@").replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    # Absolute: npm takes `dist/x.tgz` for a repository of GitHub, and is run in another folder anyway.
    path = folder.resolve() / f"{name}-{described['version']}.tgz"
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{name}-", delete=False) as unfinished:
        try:
            unfinished.write(packed)
            unfinished.flush()
            os.chmod(unfinished.name, 0o644)
            os.replace(unfinished.name, path)
        except BaseException:
            os.unlink(unfinished.name)
            raise
    return Package(path, len(packed), hashlib.sha256(packed).hexdigest())


def _files(home: Path, named: list[str]) -> dict[str, bytes]:
    """Name in the package -> content: what `files` in package.json names, as npm would take it."""
    found = {"package.json": (home / "package.json").read_bytes()}
    for name in named:
        path = home / name
        for one in path.rglob("*") if path.is_dir() else [path]:
            if one.is_file():
                found[one.relative_to(home).as_posix()] = one.read_bytes()
    return found


def _packed(files: dict[str, bytes]) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size, entry.mode, entry.mtime = (
                len(content),
                0o644,
                499_162_500,
            )  # the moment that npm gives all files
            tar.addfile(entry, io.BytesIO(content))
    # Stored, not compressed: what a compressor makes of the same text differs from one zlib to the next.
    return gzip.compress(archive.getvalue(), compresslevel=0, mtime=0)


def main(arguments: list[str]) -> int:
    """The command. Its exit code."""
    parser = argparse.ArgumentParser(
        prog=f"{Path(sys.argv[0]).name} node-package", description="Build the npm package for BullMQ workers."
    )
    parser.add_argument("folder", metavar="DIR", nargs="?", type=Path, default=Path(), help="where to (here)")
    folder = parser.parse_args(arguments).folder
    try:
        made = build(folder)
    except OSError as error:
        sys.stderr.write(f"The package was not written: {error.filename or folder}: {error.strerror}.\n")
        return 1
    sys.stdout.write(
        f"{made.path}\n{made.size:,} bytes, sha256 {made.sha256}\n\n"
        "Where your BullMQ workers are created:\n\n"
        f"    npm install {shlex.quote(str(made.path))}\n"
        "    require('@redrive/bullmq').worker(new Worker(…), { source: 'shop' });\n"
    )
    return 0
