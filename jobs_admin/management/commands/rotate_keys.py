"""`rotate-keys [--status]`: re-encrypt with the first of REDRIVE_PAYLOAD_KEYS; `--new-key`: print a key to put there."""

from __future__ import annotations

import base64
import math
import secrets
import signal
import time
from argparse import ArgumentParser
from contextlib import ExitStack
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from jobs_admin import config
from jobs_admin.core.text import terminal_line
from jobs_admin.desk import key_rotation
from jobs_admin.desk.key_rotation import NOT_DETERMINED, UNKNOWN, Rotation
from jobs_admin.management import terminal

_REPORT_EVERY_S = 2.0
_WIDTH = 2000  # characters of a line


class Command(BaseCommand):
    help = (
        "Re-encrypt stored data with the first key of REDRIVE_PAYLOAD_KEYS, as `watch` does in the background, and "
        "print which keys can be removed. The command can be stopped at any point; the next run continues."
    )
    requires_system_checks = ()
    is_stopping = False

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand.replace("_", "-"), **kwargs)

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--status", action="store_true", help="Only show what each key is used for.")
        parser.add_argument("--new-key", action="store_true", help="Print a new payload key. Nothing is changed.")

    def handle(self, **options: object) -> None:
        if options["new_key"]:
            self.stdout.write(base64.urlsafe_b64encode(secrets.token_bytes(32)).decode())
            return
        config.payload_keys()  # raises where there is none
        if not options["status"]:
            self._rotate()
        rotation = key_rotation.rotation(timezone.now())
        self._show(rotation)
        if not options["status"] and (rotation.remaining or any(use.rows for use in rotation.missing)):
            raise SystemExit(1)

    def _rotate(self) -> None:
        if config.is_read_only():
            raise CommandError(config.READ_ONLY)
        with ExitStack() as undo:
            for number in (signal.SIGTERM, signal.SIGINT):
                undo.callback(signal.signal, number, signal.signal(number, self._stop))
            reported_at = -math.inf
            while key_rotation.step(terminal.viewer()):
                if self.is_stopping:
                    left = _remaining(key_rotation.rotation(timezone.now()))
                    raise CommandError(f"Stopped. {left} `watch` and the next run continue.")
                if time.monotonic() - reported_at > _REPORT_EVERY_S:
                    reported_at = time.monotonic()
                    self.stderr.write(_remaining(key_rotation.rotation(timezone.now())))

    def _stop(self, *_: object) -> None:
        self.is_stopping = True  # between two transactions

    def _show(self, rotation: Rotation) -> None:
        for use in rotation.uses:
            place = "encrypts" if use.place == 1 else "decrypts" if use.place else "missing"
            workers = [f"workers that encrypt for it: {len(use.workers):,}"] if use.workers else []
            used = ", ".join(filter(None, [key_rotation.in_words(use.rows), *workers])) or "not used"
            self._write(f"{use.id or 'not tried yet':<14}{place if use.id else '':<10}{used}")
        for use in rotation.older:
            why, reported = rotation.must_stay(use), rotation.reported(use)
            if why:
                self._write(f"Keep {use.id} in REDRIVE_PAYLOAD_KEYS: {' '.join([*why, *reported])}")
            elif reported:
                self._write(f"Only workers need {use.id}: {' '.join(reported)} {key_rotation.OVERRULE}")
            else:
                self._write(
                    f"{use.id} can be removed from REDRIVE_PAYLOAD_KEYS. Keep the key for backups made before now."
                )
        for use in rotation.missing:
            name = "A key of unknown id" if use.id == UNKNOWN else f"Key {use.id}"
            self._write(f"{name} is not in REDRIVE_PAYLOAD_KEYS. Add the key again after the first.")

    def _write(self, line: str) -> None:
        self.stdout.write(terminal_line(line, _WIDTH))


def _remaining(rotation: Rotation) -> str:
    left = [*rotation.older, *(use for use in rotation.uses if use.id == NOT_DETERMINED)]
    by_key = [f"{use.count:,} under {use.id or 'a key not tried yet'}" for use in left if use.count]
    return terminal_line(f"{rotation.remaining:,} rows remain" + (f": {', '.join(by_key)}." if by_key else "."), _WIDTH)
