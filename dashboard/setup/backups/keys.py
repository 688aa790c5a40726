"""Keys in a backup: without them captured messages cannot be read, and the audit's chain cannot be verified."""

from __future__ import annotations

import json
from pathlib import Path

from dashboard.setup import environment
from dashboard.setup.backups.archive import Archive, Backup, BackupFailed
from jobs_admin.trust.unsealing import payload_key_id

MEMBER = "keys.json"
SECRET, PAYLOAD = "SECRET_KEY", "REDRIVE_PAYLOAD_KEYS"
# Values created by `up` on which rows of the database depend. Its URLs and passwords are those of one machine.
_MADE_BY_UP = ("REDRIVE_DEMO_PAGER_SECRET", "REDRIVE_DEMO_SOURCE_KEY")


def write(archive: Archive, folder: Path) -> None:
    made = environment.read_made(folder)
    found = {name: environment.get(name) for name in (SECRET, PAYLOAD)}
    found |= {name: made[name] for name in _MADE_BY_UP if made.get(name)}
    with archive.member(MEMBER) as append:
        append(json.dumps(found, indent=1).encode())


def check(backup: Backup) -> None:
    """Raise BackupFailed if the payload keys in the environment lack one of the backup, needed for its messages."""
    if MEMBER not in backup.members:
        missing = [name for name in (SECRET, PAYLOAD) if not environment.get(name)]
        if missing:
            raise BackupFailed(
                f"The backup has no keys: set the {' and '.join(missing)} it was made with. Nothing was changed."
            )
        return
    if not environment.is_given(PAYLOAD):
        return
    given = environment.get_list(PAYLOAD)
    missing = [key for key in _read(backup).get(PAYLOAD, "").split(",") if key and key not in given]
    if missing:
        names = ", ".join(payload_key_id(key) for key in missing)
        raise BackupFailed(
            f"{PAYLOAD} lacks a key of the backup ({names}), so its messages could not be read. Add the key after the "
            f"first: it is in {MEMBER} in the backup. Nothing was changed."
        )


def load(backup: Backup, folder: Path) -> list[str]:
    """Write the keys into `up.json`, those of the backup first, unless the environment sets them. Return notes."""
    if MEMBER not in backup.members:
        return ["The backup has no keys: this desk needs the keys that the backup was made with."]
    found, made, notes = _read(backup), environment.read_made(folder), []
    current = dict(made)
    if not environment.is_given(PAYLOAD):
        old = [key for key in made.get(PAYLOAD, "").split(",") if key]
        theirs = [key for key in found.get(PAYLOAD, "").split(",") if key]
        made[PAYLOAD] = ",".join(dict.fromkeys([*theirs, *old]))
    if not environment.is_given(SECRET):
        made[SECRET] = found[SECRET]
    elif environment.get(SECRET) != found.get(SECRET):
        notes.append(
            "SECRET_KEY differs from that of the backup: sessions end, and earlier audit entries do not verify."
        )
    made |= {name: found[name] for name in _MADE_BY_UP if name in found}
    if made != current:
        environment.write_made(folder, made)
    return notes


def _read(backup: Backup) -> dict[str, str]:
    found = json.loads(b"".join(backup.read(MEMBER)))
    return {str(name): str(value) for name, value in found.items()}
