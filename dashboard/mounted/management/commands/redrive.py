from __future__ import annotations

from pathlib import Path

from django.apps import apps
from django.core.management import find_commands, load_command_class
from django.core.management.base import BaseCommand, CommandError

from dashboard.setup.command_line import OURS
from jobs_admin.db import schema

_OF_OUR_PROJECT = {"up", "test", "upgrade", "backup", "restore", "worker-wheel", "node-package", "web"}


class Command(BaseCommand):
    help = "Run a command of Redrive: `redrive watch`, `redrive doctor`. Without one, list them."

    def run_from_argv(self, argv: list[str]) -> None:
        name = argv[2] if argv[2:] else "help"
        known = {text: what for text, what in OURS.items() if text not in _OF_OUR_PROJECT}
        if name in {"help", "--help", "-h"}:
            self.stdout.write("\n".join(f"  {text:<18}{what}" for text, what in known.items()))
            return
        if name not in known:
            self.stderr.write(f"Redrive has no command {name!r} here. List them with `{argv[1]}`.")
            raise SystemExit(1)
        if sentence := schema.newer_sentence():
            self.stderr.write(sentence)
            raise SystemExit(1)
        module = name.replace("-", "_")
        app = next(app for app in ("jobs_admin", "dashboard") if module in _commands_of(app))
        load_command_class(app, module).run_from_argv([f"{argv[0]} {argv[1]}", name, *argv[3:]])

    def handle(self, *arguments: object, **options: object) -> None:
        raise CommandError("Run it from the terminal: `manage.py redrive COMMAND`.")


def _commands_of(app: str) -> list[str]:
    return find_commands(
        str(Path(apps.get_app_config(app if app == "jobs_admin" else f"redrive_{app}").path, "management"))
    )
