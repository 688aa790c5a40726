"""`second-factor reset NAME`: remove a person's second factor, for a desk whose superusers have all lost theirs."""

from __future__ import annotations

from argparse import ArgumentParser

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError

from jobs_admin import config
from jobs_admin.management import terminal
from jobs_admin.rights import second_factor


class Command(BaseCommand):
    help = "Reset the second factor of an account, and end its sessions."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("act", choices=["reset"], help="Remove the second factor.")
        parser.add_argument("name", help="Username.")

    def handle(self, *, name: str, **options: str) -> None:
        if config.is_read_only():
            raise CommandError(config.READ_ONLY)
        users = get_user_model()
        user = users.objects.filter(**{users.USERNAME_FIELD: name}).first()
        if user is None:
            raise CommandError(f"No user {name!r}. Nothing was changed.")
        if not second_factor.remove(terminal.viewer(), user, "second_factor.reset"):
            raise CommandError(f"{name} has no second factor. Nothing was changed.")
        self.stderr.write(f"The second factor of {name} is reset. Sessions of the account have ended.")
