"""Keys to the API: `token create NAME --role ROLE`, `give NAME USER`, `list`, `revoke NAME`."""

from __future__ import annotations

import hashlib
import re
import secrets
from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import timedelta
from ipaddress import ip_network
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.base_user import AbstractBaseUser
from django.core.management.base import BaseCommand, CommandError
from django.db import IntegrityError, transaction
from django.utils import timezone

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.core.text import terminal_line
from jobs_admin.db import audit
from jobs_admin.management import terminal
from jobs_admin.management.terminal import moment, parse_length, table
from jobs_admin.models import ApiToken
from jobs_admin.models.access import EVERY_SOURCE, RANK


class Command(BaseCommand):
    help = "Create, list or revoke API tokens. A new token is printed once; only its SHA-256 is stored."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True)
        create = acts.add_parser("create", help="Create a token and print it once.")
        create.add_argument("name")
        create.add_argument("--role", required=True, choices=sorted(RANK, key=RANK.__getitem__))
        create.add_argument("--source", default=EVERY_SOURCE, help="Limit to this source; default: every source.")
        create.add_argument("--owner", default="", help="User who owns the token; token and user count as one person.")
        create.add_argument(
            "--for", dest="for_", type=parse_length, metavar="LENGTH", help="90d, 8h; default: no expiry."
        )
        create.add_argument(
            "--network",
            action="append",
            default=[],
            metavar="CIDR",
            help="Use from this network only; may be repeated.",
        )
        create.add_argument(
            "--call",
            action="append",
            default=[],
            metavar="NAME",
            help="Allow this call of the API only, such as report_release or list_*; may be repeated.",
        )
        give = acts.add_parser("give", help="Set the owner of a token.")
        give.add_argument("name")
        give.add_argument("owner", help="Username.")
        acts.add_parser("list", help="List name, role, source, owner and times of every token.")
        revoke = acts.add_parser("revoke", help="Revoke a token immediately.")
        revoke.add_argument("name")
        acts.metavar = "{" + ",".join(acts.choices) + "}"

    def handle(self, *, act: str, name: str = "", **options: Any) -> None:
        if act == "list":
            for line in listing():
                self.stdout.write(line)
            return
        if config.is_read_only():
            raise CommandError(config.READ_ONLY)
        if act == "create":
            given = {"owner": options["owner"], "networks": options["network"], "calls": options["call"]}
            given["expires_in"] = options["for_"]
            self.stdout.write(create(name, options["role"], options["source"], **given))
            self.stderr.write(f"Token {name!r} ({options['role']}) created. The token is not shown again.")
            self._warn_of_unknown(options["source"])
        elif act == "give":
            give(name, options["owner"])
            self.stderr.write(
                f"Token {name!r} belongs to {options['owner']}: the two count as one person in approvals."
            )
        else:
            revoke(name)
            self.stderr.write(f"Token {name!r} revoked.")

    def _warn_of_unknown(self, source: str) -> None:
        try:
            known = sorted(config.sources())
        except config.BadConfiguration:
            return
        if source != EVERY_SOURCE and source not in known:
            names = ", ".join(known) or "none"
            self.stderr.write(f"Warning: no source {source!r} is configured here; known: {names}.")


def listing() -> list[str]:
    """Return a line for every token, latest first, below a line of headings."""
    rows = [("NAME", "ROLE", "SOURCE", "CREATED (UTC)", "EXPIRES (UTC)", "REVOKED (UTC)", "NETWORKS", "CALLS", "OWNER")]
    for token in ApiToken.objects.select_related("owner").order_by("-created_at", "-pk"):
        owner = terminal_line(token.owner.get_username(), 40) if token.owner else "-"
        rows.append(
            (
                terminal_line(token.name, 40),
                token.role,
                token.source,
                moment(token.created_at),
                moment(token.expires_at),
                moment(token.revoked_at),
                token.networks.replace(" ", ",") or "-",
                token.calls.replace(" ", ",") or "-",
                owner,
            )
        )
    return table(rows)


def create(
    name: str,
    role: str,
    source: str = EVERY_SOURCE,
    *,
    token: str = "",
    owner: str = "",
    networks: Sequence[str] = (),
    calls: Sequence[str] = (),
    expires_in: timedelta | None = None,
) -> str:
    """Return the new token, or `token` itself where one is given. Raises CommandError; then nothing was changed."""
    if source != EVERY_SOURCE and not keys.valid_source(source):
        raise CommandError(f"{source!r} cannot name a source: use a-z, 0-9, - and _. Nothing was changed.")
    if not name.strip() or len(name) > 100:
        raise CommandError("The name must have 1 to 100 characters. Nothing was changed.")
    person = _person(owner) if owner else None
    limits = {
        "networks": _networks(networks),
        "calls": _calls(calls),
        "expires_at": timezone.now() + expires_in if expires_in else None,
    }
    token = token or f"redrive_{secrets.token_urlsafe(32)}"
    try:
        with transaction.atomic():
            ApiToken.objects.create(
                name=name,
                sha256=hashlib.sha256(token.encode()).hexdigest(),
                role=role,
                source=source,
                owner=person,
                **limits,
            )
            after = {"role": role, "source": source} | {key: str(value) for key, value in limits.items() if value}
            after |= {"owner": owner} if owner else {}
            where = "" if source == EVERY_SOURCE else source
            audit.record(terminal.viewer(), "token.create", f"token:{name}", after=after, source=where)
    except IntegrityError as error:
        raise CommandError(
            f"A token named {name!r} already exists. Names of revoked tokens cannot be reused. Nothing was changed."
        ) from error
    return token


def give(name: str, owner: str) -> None:
    """Raises CommandError where there is no such token in force, or no such user."""
    person = _person(owner)
    with transaction.atomic():
        if not ApiToken.objects.filter(name=name, revoked_at=None).update(owner=person):
            raise CommandError(f"No active token {name!r}. Nothing was changed.")
        audit.record(terminal.viewer(), "token.give", f"token:{name}", after={"owner": owner})


def _networks(given: Sequence[str]) -> str:
    """Return the networks as they are stored. Raises CommandError."""
    found = []
    for text in given:
        try:
            found.append(str(ip_network(text.strip())))
        except ValueError as error:
            raise CommandError(
                f"{text!r} is not a network such as 10.0.0.0/8 ({error}). Nothing was changed."
            ) from None
    if len(joined := " ".join(found)) > 500:
        raise CommandError("At most 500 characters of networks. Nothing was changed.")
    return joined


def _calls(given: Sequence[str]) -> str:
    """Return the names of calls as they are stored. Raises CommandError."""
    for text in given:
        if not re.fullmatch(r"[a-z_*]+", text):
            raise CommandError(
                f"{text!r} is not the name of a call such as report_release, or a glob such as list_*. Nothing was changed."
            )
    if len(joined := " ".join(given)) > 500:
        raise CommandError("At most 500 characters of calls. Nothing was changed.")
    return joined


def _person(name: str) -> AbstractBaseUser:
    users = get_user_model()
    found = users.objects.filter(**{users.USERNAME_FIELD: name}, is_active=True).first()
    if found is None:
        raise CommandError(f"No active user {name!r}. Nothing was changed.")
    return found


def revoke(name: str) -> None:
    """Raises CommandError where no such token is in force."""
    with transaction.atomic():
        if not ApiToken.objects.filter(name=name, revoked_at=None).update(revoked_at=timezone.now()):
            raise CommandError(f"No active token {name!r}. Nothing was changed.")
        audit.record(terminal.viewer(), "token.revoke", f"token:{name}")
