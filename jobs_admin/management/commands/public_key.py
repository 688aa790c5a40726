"""`public_key`: what workers encrypt raw messages with, for REDRIVE_PUBLIC_KEY."""

from __future__ import annotations

from django.core.management.base import BaseCommand

from jobs_admin import config, unsealing


class Command(BaseCommand):
    help = "Print the public key that workers encrypt raw messages with (REDRIVE_PUBLIC_KEY). It is no secret."
    requires_system_checks = ()

    def handle(self, **options: object) -> None:
        config.payload_keys()  # says what to do where there is none
        self.stdout.write(unsealing.public_key())
