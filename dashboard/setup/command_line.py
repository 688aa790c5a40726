"""Command line around Django's: lists Redrive's commands first, and reports errors outside of them as one sentence."""

from __future__ import annotations

import os
import secrets
import sys
from contextlib import suppress
from pathlib import Path

from dashboard.setup import environment
from dashboard.setup.environment import Misconfigured
from jobs_admin.installation import COMMAND
from jobs_admin.worker.versions import VERSION

OURS = {
    "up": "Start the desk: engine, database, watch, web and a demo shop (--no-demo: without the shop).",
    "test": "Run the test suite on real servers.",
    "upgrade": "Back up and migrate the database; --check lists what an upgrade would do.",
    "backup": "Write a backup of database, store and keys to one file, while the desk runs.",
    "restore": "Restore a backup to a stopped desk.",
    "doctor": "Check store, database, sources, workers and watch; suggest fixes.",
    "failures": "Search failures: `failures queue:emails error:Timeout`.",
    "failure": "Show one failure, why it is in its state, or two of its attempts compared.",
    "replay": "Replay all jobs that match a search, at a chosen pace.",
    "triage": "Discard, restore or readmit all failures that match a search; undo the action.",
    "groups": "List, show, resolve, mute and assign groups; undo a change.",
    "replays": "List unfinished replays, bring back groups, discard drafts.",
    "policies": "List, show, publish, restore, withdraw and lint retry policies.",
    "alerts": "List, show and acknowledge alerts; undo an acknowledgement.",
    "silences": "List, add and end silences of alerts.",
    "automations": "List, show, dry run, disable and reset automations; stop all of them.",
    "pause": "Pause a queue, task, tenant or dependency; without arguments, list open pauses.",
    "resume": "End a pause, by its number.",
    "breakers": "List breakers, those that hold jobs first.",
    "breaker": "Show a breaker, or force it open, closed or back to automatic.",
    "depth": "List queue depths as last sampled, or the history of one queue.",
    "drain": "Wait for delayed retries, or run or end them now, and print when install() can be removed.",
    "off": "Switch off the guard in all workers within two seconds.",
    "on": "Switch on the guard in all workers again.",
    "workers": "List guarded workers, and gone workers with jobs in hand; return their jobs.",
    "rotate-keys": "Re-encrypt with the first payload key, and print which keys can be removed.",
    "public_key": "Print the public key with which workers encrypt raw messages.",
    "source-key": "Create, list or revoke the keys that workers sign reports with.",
    "unsigned-reports": "Show, extend or end the period in which unsigned reports are accepted.",
    "sources": "List unknown sources and refused reports; accept, file, discard or merge them.",
    "worker-acl": "Print the ACL rules of a source's store user, or create the user.",
    "worker-wheel": "Build the guard as a Python package for Celery workers.",
    "node-package": "Build the Node agent for BullMQ workers as an npm package.",
    "token": "Create, list or revoke API tokens.",
    "second-factor": "Reset the second factor of an account.",
    "audit": "Verify the audit's chain and its end, or accept the end after a restored backup.",
    "prune": "Delete closed records by age and size; --dry-run lists what would be deleted.",
    "reindex": "Rebuild the search index for rows indexed by an earlier version.",
    "completion": "Print a script that completes commands in bash and zsh.",
    "watch": "Read reports, sample depths, send and settle replays (`up` runs it).",
    "web": "Serve pages and API (`up` runs it).",
}
# Commands that read tables at once; `doctor` itself reports missing ones.
_NEED_TABLES = {
    "alerts", "audit", "automations", "backup", "breaker", "breakers", "depth", "drain", "failure", "failures", "groups", "off", "on",
    "pause", "prune", "reindex", "replay", "resume", "rotate-keys", "second-factor", "silences", "source-key", "sources", "token",
    "triage", "unsigned-reports", "upgrade", "watch", "worker-acl", "workers",
}  # fmt: skip
# Commands that need no database, or replace it.
_ANY_SCHEMA = {"completion", "public_key", "restore", "node-package", "test", "worker-wheel"}
# Long-running commands, which require the tables of their version.
_NEED_MIGRATIONS = {"watch", "web"}
_DJANGO = (
    "core/management",
    "contrib/auth/management",
    "contrib/sessions/management",
    "contrib/staticfiles/management",
)


def main(argv: list[str]) -> int:
    """Run `redrive`, or `manage.py` in an environment with the command's requirements; return the exit code."""
    command = argv[1] if argv[1:] else "help"
    if command == "--version":
        sys.stdout.write(f"Redrive {VERSION}\n")
        return 0
    if command == "worker-wheel":
        from jobs_admin.management import wheel

        return wheel.main(argv[2:])
    if command == "node-package":
        from jobs_admin.management import node_package

        return node_package.main(argv[2:])
    if command == "test":  # of an installed Redrive
        raise Misconfigured("The tests are in the repository: run `python3 manage.py test` there.")
    if command == "up" and not is_help_request(argv):
        environment.prepare_first_run(argv[2:])
    run(argv)
    return 0


def run(argv: list[str]) -> None:
    """Run the command of `argv`. Raises Misconfigured with a message that names the variable."""
    command = argv[1] if argv[1:] else "help"
    if (command == "help" and not argv[2:]) or command in {"--help", "-h"}:
        sys.stdout.write(listing())
        return
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    if is_help_request(argv) or command == "completion":
        environment.use_defaults()
    elif command in _NEED_TABLES:
        need_desk()
    elif command == "restore" and not environment.get("SECRET_KEY"):
        environment.use_placeholder()
    elif command == "collectstatic" and not environment.get("SECRET_KEY"):
        os.environ["SECRET_KEY"] = secrets.token_urlsafe(50)  # signs nothing: an image is built without secrets
    if not is_help_request(argv) and (command in OURS or command == "migrate") and command not in _ANY_SCHEMA:
        refuse_newer_schema()
        if command in _NEED_MIGRATIONS:
            need_migrations(waits_for_database=command == "watch")
    # Django can be imported only inside the environment.
    from django.core.management import execute_from_command_line
    from django.db.utils import OperationalError, ProgrammingError

    if command in OURS:
        argv = [argv[0], command.replace("-", "_"), *argv[2:]]  # the module's name
    try:
        try:
            execute_from_command_line(argv)
        finally:
            sys.stdout.flush()  # at the interpreter's exit it would be too late to handle a closed pipe
    except (OperationalError, ProgrammingError) as error:
        if command not in OURS:
            raise
        raise Misconfigured(_about(error)) from error
    except BrokenPipeError:  # `doctor | head`: the reader has finished, and nothing can be printed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None


def is_help_request(argv: list[str]) -> bool:
    """Return whether the command only prints help, which requires neither a desk nor valid settings."""
    return argv[1:2] == ["help"] or bool({"--help", "-h"} & set(argv[1:]))


def listing() -> str:
    """Return Redrive's commands with one line each, then the names of Django's if installed. Needs no settings."""
    lines = [f"Redrive's commands (details: `{COMMAND} COMMAND --help`):", ""]
    lines += [f"  {name:<18}{what}" for name, what in OURS.items()]
    with suppress(ModuleNotFoundError):
        import django
        from django.core.management import find_commands

        found = {name for part in _DJANGO for name in find_commands(str(Path(django.__file__).parent / part))}
        lines += ["", "Django's:", "", "  " + ", ".join(sorted(found - OURS.keys()))]
    return "\n".join([*lines, ""])


def need_desk() -> None:
    """Raise Misconfigured if no desk was started here: the command would only create an empty database."""
    if environment.get("DATABASE_URL"):
        return
    folder = environment.data_folder()
    if not (folder / "redrive.sqlite3").exists():
        raise Misconfigured(_no_desk(folder))


def refuse_newer_schema() -> None:
    """Raise Misconfigured if the database belongs to a newer version. Does not wait for an unreachable database."""
    import django

    django.setup()
    from jobs_admin.db import schema

    if sentence := schema.newer_sentence():
        raise Misconfigured(sentence)


def need_migrations(*, waits_for_database: bool) -> None:
    """Raise Misconfigured if the database lacks a migration of this version, or is unreachable, without waiting."""
    import django
    from django.db import connections
    from django.db.migrations.executor import MigrationExecutor

    from dashboard.setup.connections import check_database

    django.setup()
    try:
        check_database()
    except Misconfigured:
        if waits_for_database:
            return
        raise
    executor = MigrationExecutor(connections["default"])
    pending = executor.migration_plan(executor.loader.graph.leaf_nodes())
    connections.close_all()
    if pending:
        raise Misconfigured(
            f"The database lacks {len(pending)} migration{'s' * (len(pending) > 1)} of this version: run `{COMMAND} migrate`, "
            "then start again. Nothing was started."
        )


def _no_desk(folder: Path) -> str:
    here = environment.default_data_folder().parent
    where = folder.relative_to(here) if folder.is_relative_to(here) else folder
    return f"No desk in {where} yet: run `{COMMAND} up`, or set REDRIVE_DATA to the folder of a desk."


def _about(error: Exception) -> str:
    from dashboard.setup.connections import about_database

    text = str(error)
    if "no such table" in text or ("does not exist" in text and "relation" in text):
        if environment.get("DATABASE_URL"):
            return f"The database of DATABASE_URL has no tables yet: run `{COMMAND} up` or `migrate`."
        return _no_desk(environment.data_folder())
    name = "DATABASE_URL" if environment.get("DATABASE_URL") else "The database"
    fix = "Free space on its disk, then run this again" if "is full" in text else "Check that the database is running"
    return f"{name} cannot be used ({about_database(error)}). {fix}."
