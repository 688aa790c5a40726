"""Environment variables, read once. Standard library only: the start-up code uses this before Django is available.

Each name may also be given as `NAME_FILE`, the path of a file with the value. `<data>/up.json` has the values that `up`
created (secrets, the URL of its engine), and the variables of its current run. They apply unless the environment sets
them, so that `manage.py` in a second terminal finds the same desk. A new `up` ignores the variables of the previous
run.
"""

from __future__ import annotations

import argparse
import base64
import difflib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Collection, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from jobs_admin.core import desk_settings, service_url
from jobs_admin.installation import IS_CHECKOUT, ROOT


class Misconfigured(SystemExit):
    """Invalid setting; nothing was started. The text names the variable and what to do."""


def data_folder() -> Path:
    return Path(os.environ.get("REDRIVE_DATA") or default_data_folder()).resolve()


def default_data_folder() -> Path:
    """Return `var` in the checkout; for an installed Redrive `var` in the current folder."""
    return (ROOT if IS_CHECKOUT else Path.cwd()) / "var"


# Variables of a run, in addition to its URLs. `up` stores them in `up.json` under `run`.
OF_A_RUN = (
    "SECRET_KEY", "REDRIVE_PAYLOAD_KEYS", "DATABASE_URL", "REDRIVE_REDIS_URL", "REDIS_URL", "CELERY_BROKER_URL",
    "REDRIVE_SOURCES", "REDRIVE_READ_ONLY", "REDRIVE_URL", "REDRIVE_URL_PREFIX", "REDRIVE_APPROVE_ABOVE",
    "REDRIVE_DANGEROUS_TASKS", "REDRIVE_WEBHOOK_ALLOW", "REDRIVE_HEARTBEAT_URL", "EMAIL_URL", "EMAIL_FROM",
    "REDRIVE_TRUSTED_PROXIES", "REDRIVE_SECURITY_CONTACT", "REDRIVE_OIDC_ISSUER", "REDRIVE_OIDC_CLIENT_ID",
    "REDRIVE_OIDC_CLIENT_SECRET", "REDRIVE_OIDC_NAME", "REDRIVE_OIDC_SCOPES", "REDRIVE_OIDC_GROUPS_CLAIM",
    "REDRIVE_OIDC_ROLES", "REDRIVE_OIDC_ONLY", "REDRIVE_SECOND_FACTOR_FOR", "REDRIVE_TRACE_URL", "REDRIVE_LOGS_URL",
    "REDRIVE_SENTRY_URL", "REDRIVE_ISSUE_URL", "REDRIVE_AUDIT_FORWARD", "REDRIVE_SLACK_SIGNING_SECRET",
)  # fmt: skip
# Every variable with Redrive's prefix, of desk and workers; also as NAME_FILE. All others are named by `find_unknown`.
KNOWN = frozenset(
    {
        *(name for name in OF_A_RUN if name.startswith("REDRIVE_")),
        "REDRIVE_ADMIN_PASSWORD", "REDRIVE_API_TOKEN", "REDRIVE_BOOTSTRAPPED", "REDRIVE_DATA", "REDRIVE_DEMO_BROKER_URL",
        "REDRIVE_DEMO_PAGER_SECRET", "REDRIVE_DEMO_PARTNER_PORT", "REDRIVE_DEMO_PARTNER_URL", "REDRIVE_DEMO_SOURCE_KEY",
        "REDRIVE_DURATIONS", "REDRIVE_ENDURANCE", "REDRIVE_IN_RUN", "REDRIVE_KEEP", "REDRIVE_KEEP_BYTES", "REDRIVE_MODE",
        "REDRIVE_NEWER_SCHEMA", "REDRIVE_STATIC",
        "REDRIVE_PUBLIC_KEY", "REDRIVE_RELEASE", "REDRIVE_RESTORING", "REDRIVE_SOURCE_KEY", "REDRIVE_SPOOL",
        "REDRIVE_SPOOL_MB", "REDRIVE_SQLITE_CACHE_KB", "REDRIVE_STREAM_MB", "REDRIVE_STRICT", "REDRIVE_TEST_DATABASE",
    }
)  # fmt: skip
# Set if SECRET_KEY is a placeholder, because `restore` on an empty machine reads the real one from the backup.
PLACEHOLDER = "REDRIVE_RESTORING"
# Set for `up` and its child processes, which have all variables in their environment.
IN_RUN = "REDRIVE_IN_RUN"


@cache
def _made_by_up() -> dict[str, str]:
    try:
        made = json.loads((data_folder() / "up.json").read_text())
        run = made.pop("run", {})
        return made if os.environ.get(IN_RUN) else made | run
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise Misconfigured(
            f"{data_folder() / 'up.json'} cannot be read ({error}). Restore it, or start with another --data."
        ) from error


def forget() -> None:
    """Clear the cached values of `up` after a change."""
    _made_by_up.cache_clear()


def use_defaults() -> None:
    """Ignore all settings of this process and every desk, so that `--help` requires neither."""
    for name in list(os.environ):
        if name.removesuffix("_FILE") in OF_A_RUN or name.startswith("REDRIVE_"):
            del os.environ[name]
    os.environ["SECRET_KEY"] = secrets.token_urlsafe(50)
    _made_by_up.cache_clear()
    # The folder is never created, because nothing is opened.
    os.environ["REDRIVE_DATA"] = str(default_data_folder() / "of-no-desk")


def use_placeholder() -> None:
    """Allow reading the settings without a SECRET_KEY, for `restore` on an empty machine."""
    os.environ["SECRET_KEY"], os.environ[PLACEHOLDER] = secrets.token_urlsafe(50), "1"


def get(name: str, default: str = "") -> str:
    """Return the value of `name`: from the environment, from `NAME_FILE`, from `up.json`, or the default."""
    return _from(os.environ, name) or _from(_made_by_up(), name) or default


def _from(place: Mapping[str, str], name: str) -> str:
    if place.get(name):
        return place[name]
    path = place.get(f"{name}_FILE")
    if not path:
        return ""
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise Misconfigured(f"{name}_FILE cannot be read: {error}. Nothing was started.") from error


def run_settings() -> dict[str, str]:
    """Return the variables of this run for `up.json`: values unchanged, files by absolute path."""
    names = [name for name in OF_A_RUN if os.environ.get(name)]
    files = [f"{name}_FILE" for name in OF_A_RUN if name not in names and os.environ.get(f"{name}_FILE")]
    values = {name: os.environ[name] for name in names} | {
        name: str(Path(os.environ[name]).resolve()) for name in files
    }
    if "REDRIVE_SOURCES" in values:
        values["REDRIVE_SOURCES"] = str(Path(values["REDRIVE_SOURCES"]).resolve())
    return values


def is_given(name: str) -> bool:
    """Return whether the environment itself sets `name`, as opposed to a value created by `up`."""
    return bool(os.environ.get(name) or os.environ.get(f"{name}_FILE"))


def find_unknown() -> dict[str, str]:
    """Return the variables with Redrive's prefix that this version does not know, each with a suggested fix."""
    found = {}
    for name in sorted(os.environ):
        bare = name.removesuffix("_FILE")
        if name.startswith("REDRIVE_") and bare not in KNOWN:
            near = difflib.get_close_matches(bare, KNOWN, 1)
            found[name] = f"Did you mean {near[0]}?" if near else "Remove it, or correct its name."
    return found


def get_list(name: str, default: str = "") -> list[str]:
    return [part.strip() for part in get(name, default).split(",") if part.strip()]


# Options allowed after the `?` of a PostgreSQL URL: libpq's for TLS, timeouts and identity. Others are refused by name,
# because a user would rely on an option that is silently dropped (sslmode!).
_LIBPQ = frozenset(
    {
        "application_name", "channel_binding", "client_encoding", "connect_timeout", "gssencmode",
        "keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval", "krbsrvname",
        "options", "passfile", "require_auth", "service", "sslcert", "sslcrl", "sslkey", "sslmode",
        "sslnegotiation", "sslpassword", "sslrootcert", "target_session_attrs", "tcp_user_timeout",
    }
)  # fmt: skip


def database(url: str) -> dict[str, object]:
    """Return Django's settings for `DATABASE_URL`.

    `sqlite:///path` or `postgresql://user:password@host:port/name?sslmode=…`.
    """
    try:
        parts = service_url.split(url)
        port = str(parts.port or "")
    except service_url.Unreadable as error:
        raise Misconfigured(f"DATABASE_URL is not a URL that can be used: {error}. Nothing was started.") from error
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme == "sqlite":
        return _sqlite(unquote(parts.path[1:]), options)
    if parts.scheme in {"postgres", "postgresql"}:
        # The folder of a socket cannot precede the path: libpq accepts `?host=/run/postgresql`.
        host = options.pop("host", "") or unquote(parts.hostname or "")
        _refuse(options, _LIBPQ)
        if find_spec("psycopg") is None:
            raise Misconfigured(
                "DATABASE_URL is a PostgreSQL database, and psycopg is not installed: run "
                "`pip install 'redrive[postgres]'`. Nothing was started."
            )
        if not parts.path[1:] and "service" not in options:
            raise Misconfigured("DATABASE_URL names no database: write postgresql://…/name. Nothing was started.")
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": unquote(parts.path[1:]),
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
            "HOST": host,
            "PORT": port,
            "OPTIONS": options,
            "CONN_MAX_AGE": None,
            "CONN_HEALTH_CHECKS": True,
        }
    scheme = service_url.scheme_of(url)
    raise Misconfigured(
        f"DATABASE_URL must begin with sqlite:/// or postgresql://{f', not {scheme}:' if scheme else ''}. "
        "Nothing was started."
    )


def _sqlite(path: str, options: Mapping[str, str]) -> dict[str, object]:
    """Return the settings for sqlite:///relative and sqlite:////absolute, with the usual meaning."""
    _refuse(options, frozenset())
    if not path:
        raise Misconfigured("DATABASE_URL names no file: write sqlite:////absolute/path. Nothing was started.")
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(Path(path)),
        # Writers wait for the lock at BEGIN; a read that becomes a write within a transaction would fail instead.
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": (
                f"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA cache_size=-{_sqlite_cache_kb()}; "
                # A checkpoint every 16 MB: with SQLite's default of 4 MB every batch of reports would wait for one.
                "PRAGMA temp_store=MEMORY; PRAGMA journal_size_limit=67108864; PRAGMA wal_autocheckpoint=4000"
            ),
        },
        "CONN_MAX_AGE": None,
    }


def _sqlite_cache_kb() -> int:
    """Return the cache size per connection in kB. Ingest needs much; the web process has a connection per thread."""
    given = get("REDRIVE_SQLITE_CACHE_KB", "20000")
    if not given.isascii() or not given.isdigit() or not 100 <= int(given) <= 10**7:
        raise Misconfigured("REDRIVE_SQLITE_CACHE_KB must be a number from 100 to 10000000. Nothing was started.")
    return int(given)


def _refuse(options: Mapping[str, str], known: Collection[str]) -> None:
    unknown = sorted(options.keys() - set(known))
    if not unknown:
        return
    # Only names in the form of an option are printed, because part of a password may be in that place.
    names = [name for name in unknown if options[name] and re.fullmatch("[a-z_]{3,24}", name)]
    which = f": {', '.join(names)}" if len(names) == len(unknown) else ""
    raise Misconfigured(f"DATABASE_URL has options that are not understood{which}. Nothing was started.")


# Scheme of EMAIL_URL -> (default port, TLS from the start, TLS after STARTTLS).
_MAIL = {"smtp": (25, False, False), "smtps": (465, True, False), "smtp+tls": (587, False, True)}


def mail(url: str) -> dict[str, object]:
    """Return Django's settings for `EMAIL_URL`.

    `smtps://user:password@host:465`, `smtp+tls://…` (STARTTLS) or `smtp://…` (plain).
    """
    if not url:
        return {}
    try:
        parts = service_url.split(url)
        port = parts.port
    except service_url.Unreadable as error:
        raise Misconfigured(f"EMAIL_URL is not a URL that can be used: {error}. Nothing was started.") from error
    if parts.scheme not in _MAIL or not parts.hostname or parts.path not in ("", "/") or parts.query:
        raise Misconfigured(
            "EMAIL_URL must be smtps://user:password@host:port, smtp+tls://… or smtp://…, and end there. Nothing was started."
        )
    usual, ssl, starttls = _MAIL[parts.scheme]
    return {
        "EMAIL_HOST": parts.hostname,
        "EMAIL_PORT": port or usual,
        "EMAIL_HOST_USER": unquote(parts.username or ""),
        "EMAIL_HOST_PASSWORD": unquote(parts.password or ""),
        "EMAIL_USE_SSL": ssl,
        "EMAIL_USE_TLS": starttls,
    }


# Variables of the setting REDRIVE, by key.
VARIABLES = {
    "REDIS_URL": "REDRIVE_REDIS_URL",
    "CELERY_BROKER_URL": "CELERY_BROKER_URL",
    "SOURCES": "REDRIVE_SOURCES",
    "DEMO_BROKER_URL": "REDRIVE_DEMO_BROKER_URL",
    "DEMO_PARTNER_URL": "REDRIVE_DEMO_PARTNER_URL",
    "PAYLOAD_KEYS": "REDRIVE_PAYLOAD_KEYS",
    "KEEP": "REDRIVE_KEEP",
    "KEEP_BYTES": "REDRIVE_KEEP_BYTES",
    "APPROVE_ABOVE": "REDRIVE_APPROVE_ABOVE",
    "DANGEROUS_TASKS": "REDRIVE_DANGEROUS_TASKS",
    "READ_ONLY": "REDRIVE_READ_ONLY",
    "NEWER_SCHEMA": "REDRIVE_NEWER_SCHEMA",
    "WEBHOOK_ALLOW": "REDRIVE_WEBHOOK_ALLOW",
    "HEARTBEAT_URL": "REDRIVE_HEARTBEAT_URL",
    "TRACE_URL": "REDRIVE_TRACE_URL",
    "LOGS_URL": "REDRIVE_LOGS_URL",
    "SENTRY_URL": "REDRIVE_SENTRY_URL",
    "ISSUE_URL": "REDRIVE_ISSUE_URL",
    "AUDIT_FORWARD": "REDRIVE_AUDIT_FORWARD",
    "TRUSTED_PROXIES": "REDRIVE_TRUSTED_PROXIES",
    "SECURITY_CONTACT": "REDRIVE_SECURITY_CONTACT",
    "OIDC_ISSUER": "REDRIVE_OIDC_ISSUER",
    "OIDC_CLIENT_ID": "REDRIVE_OIDC_CLIENT_ID",
    "OIDC_CLIENT_SECRET": "REDRIVE_OIDC_CLIENT_SECRET",
    "OIDC_NAME": "REDRIVE_OIDC_NAME",
    "OIDC_SCOPES": "REDRIVE_OIDC_SCOPES",
    "OIDC_GROUPS_CLAIM": "REDRIVE_OIDC_GROUPS_CLAIM",
    "OIDC_ROLES": "REDRIVE_OIDC_ROLES",
    "OIDC_ONLY": "REDRIVE_OIDC_ONLY",
    "SECOND_FACTOR_FOR": "REDRIVE_SECOND_FACTOR_FOR",
    "SLACK_SIGNING_SECRET": "REDRIVE_SLACK_SIGNING_SECRET",
    "URL": "REDRIVE_URL",
}


def redrive() -> dict[str, Any]:
    """Return the setting REDRIVE from its variables. Mail is sent if EMAIL_URL is set."""
    given = {key: get(name) for key, name in VARIABLES.items() if get(name)}
    try:
        found = desk_settings.parse(
            {"REDIS_URL": get("REDIS_URL"), "SENDS_MAIL": bool(get("EMAIL_URL")), **given}, VARIABLES
        )
    except desk_settings.BadSetting as error:
        raise Misconfigured(f"{error} Nothing was started.") from error
    if why := _why_no_sign_on(found):
        raise Misconfigured(f"{why} Nothing was started.")
    return found


def _why_no_sign_on(found: Mapping[str, Any]) -> str:
    """Return what these settings lack for a sign-in with the provider; "" if nothing."""
    if not found["OIDC_ISSUER"]:
        return "REDRIVE_OIDC_ONLY needs REDRIVE_OIDC_ISSUER, or no one can log in." if found["OIDC_ONLY"] else ""
    missing = [VARIABLES[key] for key in ("OIDC_CLIENT_ID", "OIDC_CLIENT_SECRET", "OIDC_ROLES") if not found[key]]
    if missing:
        return f"REDRIVE_OIDC_ISSUER needs {' and '.join(missing)} too."
    if find_spec("authlib") is None or find_spec("joserfc") is None:
        return "REDRIVE_OIDC_ISSUER is set, but Authlib is not installed: run `pip install 'redrive[oidc]'`."
    return ""


def cookie_suffix(secret_key: str) -> str:
    """Return the suffix of a desk's cookie names under `up`; "" for a deployment."""
    return f"-{hashlib.sha256(f'cookies {secret_key}'.encode()).hexdigest()[:8]}" if os.environ.get(IN_RUN) else ""


def is_secret_in(text: str) -> bool:
    """Return whether `text` contains the password of DATABASE_URL, or the value of one of its options."""
    try:
        parts = service_url.split(get("DATABASE_URL"))
    except service_url.Unreadable:
        return True
    secrets = [parts.password, unquote(parts.password or ""), *dict(parse_qsl(parts.query)).values()]
    return any(secret and secret in text for secret in secrets)


# The first run of `up`, before Django can read its settings: creates the data folder and the secrets. They are stored
# in `<data>/up.json`, mode 0600, so that the next run and a second terminal find the same desk.


def prepare_first_run(arguments: list[str]) -> None:
    """Create the data folder (0700) and missing secrets. Raises Misconfigured."""
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--data")
    options.add_argument("--watch")
    given = options.parse_known_args(arguments)[0]
    if chosen := given.data:
        os.environ["REDRIVE_DATA"] = str(Path(chosen).resolve())
    os.environ[IN_RUN] = "1"
    forget()
    os.umask(0o077)  # files created from here on, including database and logs, are only accessible to their owner
    folder = data_folder()
    # Relative to this process's folder; the processes that it starts run elsewhere.
    os.environ["REDRIVE_DATA"] = str(folder)
    _make_paths_absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Misconfigured(
            f"The data folder {folder} cannot be made ({error.strerror}). Give another with --data or REDRIVE_DATA. "
            "Nothing was started."
        ) from error
    stored = read_made(folder)
    made = dict(stored)
    if not get("SECRET_KEY"):
        made["SECRET_KEY"] = secrets.token_urlsafe(50)
    if not get("REDRIVE_PAYLOAD_KEYS"):
        made["REDRIVE_PAYLOAD_KEYS"] = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    made.setdefault("engine", {"port": None, "password": secrets.token_urlsafe(24)})
    if made != stored:
        write_made(folder, made)
    if given.watch is not None:
        _watch_broker(folder, given.watch)


def _make_paths_absolute() -> None:
    for name in ("REDRIVE_SOURCES", *(f"{one}_FILE" for one in KNOWN.union(OF_A_RUN))):
        if path := os.environ.get(name):
            os.environ[name] = str(Path(path).resolve())
    url = os.environ.get("DATABASE_URL", "")
    if re.match("sqlite:///[^/?#]", url):
        os.environ["DATABASE_URL"] = f"sqlite:///{quote(str(Path.cwd()))}/{url.removeprefix('sqlite:///')}"


def watch_file(folder: Path) -> Path:
    """Return the file of sources that `up --watch` writes."""
    return folder / "watch.toml"


def _watch_broker(folder: Path, url: str) -> None:
    """Make the broker at this URL the only source, in guest mode. Raises Misconfigured."""
    if is_given("REDRIVE_SOURCES"):
        raise Misconfigured(
            "--watch and REDRIVE_SOURCES exclude each other: add the broker to that file, with guard = false. Nothing was started."
        )
    if not url.startswith(("redis://", "rediss://", "amqp://", "amqps://", "pyamqp://")):
        raise Misconfigured(
            "--watch needs a broker's URL: redis://…, rediss://…, amqp://… or amqps://…. Nothing was started."
        )
    path = watch_file(folder)
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:  # the URL has a password
        # A JSON string is also a valid TOML string.
        file.write(f'[sources.celery]\nbackend = "celery"\nurl = {json.dumps(url)}\nguard = false\n')
    os.environ["REDRIVE_SOURCES"] = str(path)
    os.environ.pop("CELERY_BROKER_URL", None)


def read_made(folder: Path) -> dict[str, Any]:
    """Return the values of earlier runs; empty on the first."""
    path = folder / "up.json"
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise Misconfigured(f"{path} cannot be read ({error}). Restore it, or start with another --data.") from error


def write_made(folder: Path, made: dict[str, Any]) -> None:
    """Replace `up.json` atomically: a crash leaves the old or the new content."""
    path = folder / "up.json"
    fresh = path.with_name(f"up.json.{os.getpid()}")
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(made, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise Misconfigured(f"{path} cannot be written ({error.strerror}). Nothing was started.") from error
    forget()
