"""`worker-acl SOURCE`: the store user of a source's workers, printed or made."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from jobs_admin import config
from jobs_admin.core import keys, worker_acl
from jobs_admin.db import audit
from jobs_admin.management import terminal

_LEAST_VERSION = 7  # of Redis: the first that tells keys apart which are only read


class Command(BaseCommand):
    help = (
        "Print the ACL rule of the store user for a source's workers: keys of that source only, and only commands "
        "that the guard uses. With --apply, create or update the user in the store of REDRIVE_REDIS_URL."
    )
    requires_system_checks = ()

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand.replace("_", "-"), **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("source")
        parser.add_argument("--apply", action="store_true", help="Create the user, or update its rights.")
        how = parser.add_mutually_exclusive_group()
        how.add_argument(
            "--new-password", action="store_true", help="Set a new password for an existing user, printed once."
        )
        how.add_argument(
            "--password-file",
            type=Path,
            metavar="FILE",
            help="Read the password from FILE. By default, a new user gets a password that is printed once, and an "
            "existing user keeps its password.",
        )

    def handle(
        self,
        *,
        source: str,
        apply: bool,
        new_password: bool = False,
        password_file: Path | None = None,
        **options: object,
    ) -> None:
        if not keys.valid_source(source):
            raise CommandError(f"{source!r} cannot name a source: use a-z, 0-9, - and _. Nothing was changed.")
        try:
            password = password_file.read_text().strip() if password_file else ""
        except OSError as error:
            raise CommandError(f"{password_file} cannot be read: {error.strerror}. Nothing was changed.") from error
        if password_file and not password:
            raise CommandError(f"{password_file} contains no password. Nothing was changed.")
        if not apply:
            self.stdout.write(_line(source, password))
            return
        try:
            self._apply(source, password, is_new_requested=new_password)
        except (config.BadConfiguration, redis.RedisError) as error:
            raise CommandError(f"The user was not created: {error} (REDRIVE_REDIS_URL)") from error

    def _apply(self, source: str, password: str, *, is_new_requested: bool) -> None:
        if config.is_read_only():
            raise CommandError(config.READ_ONLY)
        store, user = config.store(), worker_acl.user_of(source)
        version = str(store.info("server").get("redis_version", ""))
        if int(version.split(".")[0] or 0) < _LEAST_VERSION:
            raise CommandError(
                f"The store is Redis {version}, which cannot give a user read-only access to keys. Use Redis "
                f"{_LEAST_VERSION} or later, or Valkey. Nothing was changed."
            )
        is_new = store.execute_command("ACL GETUSER", user) is None
        made = "" if password or not (is_new or is_new_requested) else secrets.token_urlsafe(32)
        secret = [] if not (password or made) else ["resetpass", f">{password or made}"]
        after = {"user": user} | ({"password": "changed"} if secret and not is_new else {})
        with transaction.atomic():
            audit.record(terminal.viewer(), "worker_acl.apply", f"source:{source}", source=source, after=after)
            store.execute_command("ACL SETUSER", user, *secret, *worker_acl.rules(source))
        self.stderr.write(f"User {user} is {'created' if is_new else 'updated'}.")
        if secret and not is_new:
            self._close_connections(store, user)
        if made:
            self.stdout.write(f"REDRIVE_REDIS_URL={_url(user, made)}")
            self.stderr.write(
                f"The password is not shown again. Set this URL for each worker of {source} and restart the workers."
            )
        try:
            store.execute_command("ACL SAVE")
        except redis.ResponseError:
            self.stderr.write(
                "The store has no file for its users (aclfile), so the user is gone when the store restarts. Write its line into "
                f"the store's configuration: {_line(source, password or made) if password or made else 'see ACL LIST'}"
            )

    def _close_connections(self, store: redis.Redis, user: str) -> None:
        """Close what was opened with the old password: the store checks a password only when a connection is made."""
        try:
            count = int(store.execute_command("CLIENT KILL", "USER", user))
        except redis.RedisError as error:
            raise CommandError(
                f"The password of {user} was changed, but its open connections were not closed ({error}). Run CLIENT KILL USER {user} "
                "in the store: until then they stay open with the old password."
            ) from error
        closed = "connection of {} was" if count == 1 else "connections of {} were"
        self.stderr.write(f"{count:,} open {closed.format(user)} closed.")


def _line(source: str, password: str) -> str:
    """Return a line of the store's configuration, or of its file of users. It has the password as its hash."""
    secret = f"#{hashlib.sha256(password.encode()).hexdigest()}" if password else "#<SHA-256 of the password, in hex>"
    rules = [rule for rule in worker_acl.rules(source) if rule not in ("resetkeys", "clearselectors")]
    return " ".join(("user", worker_acl.user_of(source), rules[0], secret, *rules[1:]))


def _url(user: str, password: str) -> str:
    """The address of the store as the desk knows it, with this user. Another host may know it by another name."""
    parts = urlsplit(config.setting("REDIS_URL"))
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{user}:{password}@{host}").geturl()
