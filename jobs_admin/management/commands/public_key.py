"""`manage.py public_key`: the key with which workers encrypt raw messages (REDRIVE_PUBLIC_KEY)."""

from __future__ import annotations

from django.core.management.base import BaseCommand

from jobs_admin import config
from jobs_admin.trust import unsealing


class Command(BaseCommand):
    help = "Print the public key with which workers encrypt raw messages (REDRIVE_PUBLIC_KEY). The key is not secret."
    requires_system_checks = ()

    def handle(self, **options: object) -> None:
        config.payload_keys()  # raises where there is none
        self.stdout.write(unsealing.public_key())
