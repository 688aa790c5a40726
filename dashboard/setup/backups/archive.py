"""File of a backup: a ZIP whose last member is a manifest with the size and SHA-256 of each other member.

It is written as a stream under a temporary name, mode 0600, and renamed when complete. A restore checks it completely
before using any of it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

FORMAT = 1
MANIFEST = "manifest.json"
CHUNK = 1 << 20
_LEVEL = 1  # compression level: most of a database is encrypted messages, which do not compress
_LARGEST_MANIFEST = 64 << 20


class BackupFailed(Exception):
    """Backup that failed, or cannot be used. The text states why, and that nothing was changed."""


class Archive:
    """Backup being written: `member` once per part, then `complete`, or `drop` on failure."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partial = path.with_name(f".{path.name}.{secrets.token_hex(6)}.partial")
        self._members: dict[str, dict[str, Any]] = {}
        with _disk_errors(path):
            descriptor = os.open(self.partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            self._file = os.fdopen(descriptor, "w+b")
        self._zip = zipfile.ZipFile(self._file, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL)

    @contextlib.contextmanager
    def member(self, name: str) -> Iterator[Callable[[bytes], None]]:
        """Yield the function that appends bytes to a member of this name."""
        digest, size = hashlib.sha256(), 0

        def write(data: bytes) -> None:
            nonlocal size
            with _disk_errors(self.path):
                target.write(data)
            digest.update(data)
            size += len(data)

        with _disk_errors(self.path), self._zip.open(name, "w", force_zip64=True) as target:
            yield write
        self._members[name] = {"bytes": size, "sha256": digest.hexdigest()}

    def complete(self, manifest: dict[str, Any]) -> int:
        """Add the manifest, rename the file to its final name, and return its size in bytes."""
        text = json.dumps({"format": FORMAT, **manifest, "members": self._members}, indent=1)
        with _disk_errors(self.path):
            self._zip.writestr(MANIFEST, text)
            self._zip.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            size = self._file.tell()
            self._file.close()
            self.partial.replace(self.path)
        return size

    def drop(self) -> None:
        """Remove the incomplete file. Does nothing after `complete`."""
        self._zip.fp = None  # marks the ZipFile as closed: its destructor would write to the closed file
        with contextlib.suppress(OSError, ValueError):
            self._file.close()
        self.partial.unlink(missing_ok=True)


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        why = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else (error.strerror or "").lower()
        raise BackupFailed(f"{path} cannot be written: {why}. No backup was made; no partial file is left.") from error


class Backup:
    """Complete backup being read. Raises BackupFailed if the file is not a backup, or has an unknown format."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
            info = self._zip.getinfo(MANIFEST)
            if info.file_size > _LARGEST_MANIFEST:
                raise ValueError("too large")
            manifest = json.loads(self._zip.read(info))
            self.manifest: dict[str, Any] = manifest
            self.members: dict[str, dict[str, Any]] = dict(manifest["members"])
            number = int(manifest["format"])
        except OSError as error:
            why = (error.strerror or "it cannot be opened").lower()
            raise BackupFailed(f"{path} cannot be read: {why}. Nothing was changed.") from error
        except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, TypeError, EOFError) as error:
            raise BackupFailed(
                f"{path} is not a complete Redrive backup: it is truncated, changed, or another kind of file. Nothing was changed."
            ) from error
        if number > FORMAT:
            raise BackupFailed(
                f"{path} was made by a newer version of Redrive (format {number}; this one reads {FORMAT}). "
                "Upgrade, then restore. Nothing was changed."
            )

    def check(self, progress: Callable[[int], None]) -> None:
        """Read all members and compare them with the manifest. `progress` is called with the bytes read so far."""
        done = 0
        for name, expected in self.members.items():
            digest = hashlib.sha256()
            for chunk in self.read(name):
                digest.update(chunk)
                done += len(chunk)
                progress(done)
            if digest.hexdigest() != expected.get("sha256"):
                raise self._damaged(name)

    def read(self, name: str) -> Iterator[bytes]:
        """Yield the content of a member in chunks."""
        try:
            with self._zip.open(name) as file:
                while chunk := file.read(CHUNK):
                    yield chunk
        except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, OSError) as error:
            raise self._damaged(name) from error

    def open(self, name: str) -> IO[bytes]:
        return self._zip.open(name)

    def close(self) -> None:
        self._zip.close()

    def _damaged(self, name: str) -> BackupFailed:
        return BackupFailed(f"{self.path} is damaged: {name} does not match its checksum. Nothing was changed.")
