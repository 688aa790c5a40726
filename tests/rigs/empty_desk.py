"""Django in the process of a bench, on an empty database of its own."""

from __future__ import annotations

import os
import secrets
from contextlib import ExitStack
from pathlib import Path

from dashboard.setup.engine import Engine

_OF_A_SHELL = ("DATABASE_URL", "CELERY_BROKER_URL", "REDRIVE_SOURCES", "REDRIVE_REDIS_URL")


def desk(folder: Path, **environment: str) -> None:
    """Set up, once in a process. Nothing of the shell's own settings reaches it but what is given here."""
    from cryptography.fernet import Fernet

    for name in _OF_A_SHELL:
        os.environ.pop(name, None)
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "dashboard.settings",
        "SECRET_KEY": secrets.token_urlsafe(50),
        "REDRIVE_DATA": str(folder),
        "REDRIVE_PAYLOAD_KEYS": Fernet.generate_key().decode(),
        **environment,
    }
    (folder / "static").mkdir()
    import django

    django.setup()
    from django.conf import settings
    from django.core.management import call_command

    # Nothing collects static files here.
    settings.STORAGES["staticfiles"]["BACKEND"] = "django.contrib.staticfiles.storage.StaticFilesStorage"
    call_command("migrate", verbosity=0)


def served_desk(stack: ExitStack, folder: Path) -> tuple[Engine, Engine]:
    """Set up a desk, and start its store and a broker, which the stack stops; webhooks may go to this machine."""
    store, broker = Engine(folder / "store"), Engine(folder / "broker")
    for engine in (store, broker):
        stack.callback(engine.stop)
        engine.start()
    desk(folder, REDRIVE_REDIS_URL=store.url, CELERY_BROKER_URL=broker.url, REDRIVE_WEBHOOK_ALLOW="127.0.0.1")
    return store, broker
