"""`manage.py worker-wheel [DIR]`: the guard as a package of its own, for the environments of workers.

The wheel is written here, with what comes with Python: it is some text files in an archive, and it can so be made before anything is
installed. Nothing in it depends on when, where and by which Python it was made: the same files give the same bytes.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from jobs_admin.installation import ROOT
from jobs_admin.worker.versions import LATEST, OLDEST, OLDEST_PYTHON, OLDEST_REDIS_PY, VERSION

PACKAGES = ("jobs_admin/core", "jobs_admin/worker")
KINDS = {".py", ".lua"}  # of files; whatever else lies there is none of the package's

_INFO = f"redrive_worker-{VERSION}.dist-info"
_FIRST = (1980, 1, 1, 0, 0, 0)  # the first moment that an archive can name

_METADATA = f"""\
Metadata-Version: 2.1
Name: redrive-worker
Version: {VERSION}
Summary: Records the failed jobs of a Celery worker for Redrive, and retries them as its policies say
License: MIT
Classifier: License :: OSI Approved :: MIT License
Classifier: Programming Language :: Python :: 3
Requires-Python: >={".".join(map(str, OLDEST_PYTHON))}
Requires-Dist: celery>={OLDEST[0]}.{OLDEST[1]},<{LATEST[0]}.{LATEST[1] + 1}
Requires-Dist: redis>={OLDEST_REDIS_PY}
Provides-Extra: encrypt
Requires-Dist: cryptography>=42; extra == "encrypt"
Description-Content-Type: text/markdown

# redrive-worker

The part of Redrive, the failure desk for background jobs, that runs inside your Celery workers.

```python
from jobs_admin.worker.celery import install

install(app, source="shop")   # the store: REDRIVE_REDIS_URL
```

The package records failed jobs before the broker removes them, and changes retries only for jobs that match a
published policy. Producers, beat and web processes are not changed.
"""

_WHEEL = """\
Wheel-Version: 1.0
Generator: redrive
Root-Is-Purelib: true
Tag: py3-none-any
"""


@dataclass(frozen=True, slots=True)
class Wheel:
    path: Path
    size: int  # bytes
    sha256: str


def build(folder: Path, root: Path = ROOT) -> Wheel:
    """Write the wheel of the files in `root` into `folder`, atomically. An existing one is replaced. Raises OSError."""
    files = _files(root)
    files[f"{_INFO}/METADATA"] = _METADATA.encode()
    files[f"{_INFO}/WHEEL"] = _WHEEL.encode()
    # An installed guard has its license beside it.
    license_file = next(path for path in (root / "LICENSE", root / _INFO / "LICENSE") if path.exists())
    files[f"{_INFO}/LICENSE"] = license_file.read_bytes()
    record = f"{_INFO}/RECORD"
    files[record] = _record(files, record).encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"redrive_worker-{VERSION}-py3-none-any.whl"
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".redrive-worker-", delete=False) as unfinished:
        try:
            _pack(unfinished, files)
            unfinished.flush()
            os.chmod(unfinished.name, 0o644)
            os.replace(unfinished.name, path)
        except BaseException:
            os.unlink(unfinished.name)
            raise
    packed = path.read_bytes()
    return Wheel(path, len(packed), hashlib.sha256(packed).hexdigest())


def _files(root: Path) -> dict[str, bytes]:
    """Name in the wheel -> content. `jobs_admin/__init__.py` is there for the name, and empty: workers have no Django."""
    found = {"jobs_admin/__init__.py": (root / "jobs_admin/__init__.py").read_bytes()}
    for package in PACKAGES:
        for path in (root / package).rglob("*"):
            if path.suffix in KINDS and path.is_file():
                found[path.relative_to(root).as_posix()] = path.read_bytes()
    return dict(sorted(found.items()))


def _record(files: dict[str, bytes], record: str) -> str:
    """Return the lines that an installer checks, and uses to uninstall: name, hash, size."""
    lines = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}\n")
    return "".join([*lines, f"{record},,\n"])


def _pack(into: IO[bytes], files: dict[str, bytes]) -> None:
    # Stored, not compressed: what a compressor makes of the same text differs from one zlib to the next.
    with zipfile.ZipFile(into, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _FIRST)
            entry.create_system = 3  # Unix, also where it is not
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, content)


def main(arguments: list[str]) -> int:
    """The command. Its exit code."""
    parser = argparse.ArgumentParser(
        prog=f"{Path(sys.argv[0]).name} worker-wheel", description="Build the package for users' workers."
    )
    parser.add_argument("folder", metavar="DIR", nargs="?", type=Path, default=Path(), help="where to (here)")
    folder = parser.parse_args(arguments).folder
    try:
        made = build(folder)
    except OSError as error:
        sys.stderr.write(f"The wheel was not written: {error.filename or folder}: {error.strerror}.\n")
        return 1
    sys.stdout.write(
        f"{made.path}\n{made.size:,} bytes, sha256 {made.sha256}\n\n"
        "In the environment of your workers, and where your Celery app is made:\n\n"
        f"    pip install {made.path}\n"
        '    from jobs_admin.worker.celery import install; install(app, source="celery")\n\n'
        "source is the name of their broker on the desk: celery for that of CELERY_BROKER_URL, otherwise its name in the\n"
        "file of REDRIVE_SOURCES.\n"
    )
    return 0
