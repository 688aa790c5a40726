"""The first run of `up`, before Django can read its settings: the data folder, and the secrets that it makes.

They are stored in `<data>/up.json`, mode 0600, so that the next run and a second terminal find the same desk.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import secrets
from pathlib import Path
from typing import Any

from dashboard.setup import environment


def prepare(arguments: list[str]) -> None:
    """Make the data folder (0700) and what is missing of the secrets; raises Misconfigured with a sentence."""
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--data")
    chosen = options.parse_known_args(arguments)[0].data
    if chosen:
        os.environ["REDRIVE_DATA"] = str(Path(chosen).resolve())
    os.environ[environment.IN_RUN] = "1"
    environment.forget()
    os.umask(0o077)  # whatever is made from here on, database and logs included, is its owner's alone
    folder = environment.data_folder()
    # Relative for us is relative for the processes that we start, which run elsewhere.
    os.environ["REDRIVE_DATA"] = str(folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise environment.Misconfigured(
            f"The data folder {folder} cannot be made ({error.strerror}). Give another with --data or REDRIVE_DATA. "
            "Nothing was started."
        ) from error
    stored = read(folder)
    made = dict(stored)
    if not environment.get("SECRET_KEY"):
        made["SECRET_KEY"] = secrets.token_urlsafe(50)
    if not environment.get("REDRIVE_PAYLOAD_KEYS"):
        made["REDRIVE_PAYLOAD_KEYS"] = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    made.setdefault("engine", {"port": None, "password": secrets.token_urlsafe(24)})
    if made != stored:
        write(folder, made)


def read(folder: Path) -> dict[str, Any]:
    """Return the values of earlier runs; empty on the first."""
    path = folder / "up.json"
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise environment.Misconfigured(
            f"{path} cannot be read ({error}). Restore it, or start with another --data."
        ) from error


def write(folder: Path, made: dict[str, Any]) -> None:
    """Replace `up.json` in one step: a crash leaves the old one or the new one, never half of it."""
    path = folder / "up.json"
    fresh = path.with_name(f"up.json.{os.getpid()}")
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(made, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise environment.Misconfigured(f"{path} cannot be written ({error.strerror}). Nothing was started.") from error
    environment.forget()
