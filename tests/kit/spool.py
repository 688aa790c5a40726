"""Entries of a worker's spool."""

from __future__ import annotations


def spooled_records(folder) -> int:
    """Whole records, in files that a living worker holds."""
    found = 0
    for path in folder.glob("*.spool"):
        content, at = path.read_bytes(), 16
        while at + 8 <= len(content):
            at += 8 + int.from_bytes(content[at : at + 4], "big")
            found += at <= len(content)
    return found


def spooled_bytes(worker) -> int:
    return sum(file.stat().st_size for file in worker.spool.glob("*.spool")) if worker.spool.exists() else 0
