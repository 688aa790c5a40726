"""The policies that were last in force, on the worker's own disk: for a start while the store is away."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from jobs_admin.worker.spool import own_directory

_NAME = "policies.json"
_LONGEST = 2 * 1024**2


def keep(directory: Path, documents: list[dict[str, Any]]) -> None:
    """Whole on the disk when this returns, or as it was before. Raises OSError."""
    own_directory(directory)
    body = json.dumps(documents).encode()
    # Workers of one host share the file; each renames one of its own.
    draft = directory / f".{_NAME}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(directory / _NAME)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def load(directory: Path) -> list[dict[str, Any]]:
    """Nothing where there is no such file, or where it is not whole, or not this user's alone."""
    try:
        descriptor = os.open(directory / _NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return []
    with open(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            return []
        digest, _, body = file.read(_LONGEST).partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        return []
    found = json.loads(body)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
