"""The only reader of the engine's settings: the store's address, the sources, addresses of pages."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis
from cryptography.fernet import Fernet, MultiFernet
from django.conf import settings
from django.urls import NoReverseMatch, get_script_prefix, reverse

from jobs_admin.core import desk_settings, keys, sentinel_url, web_address
from jobs_admin.core.service_url import Unreadable
from jobs_admin.core.text import fits, whole_number
from jobs_admin.installation import COMMAND
from jobs_admin.sources import SYSTEMS, Source, System, connect
from jobs_admin.sources.base import SourceRefused
from jobs_admin.worker.redis_clients import from_url

BACKENDS = tuple(name for name, system in SYSTEMS.items() if not system.is_for_tests)


class BadConfiguration(ValueError):
    """An invalid setting. The text names it and says what to do."""


_parsed: tuple[object, dict[str, Any]] = (None, {})


def setting(key: str) -> Any:
    """Return a value of the setting REDRIVE, or its default (`jobs_admin.core.desk_settings`)."""
    global _parsed
    given = getattr(settings, "REDRIVE", None)
    if given is not _parsed[0] or not _parsed[1]:
        try:
            _parsed = given, desk_settings.parse({} if given is None else given)
        except desk_settings.BadSetting as error:
            raise BadConfiguration(str(error)) from error
    return _parsed[1][key]


@dataclass(frozen=True, slots=True)
class SourceConfig:
    name: str
    backend: str
    url: str
    queues: tuple[str, ...] = ()  # empty: all that can be discovered
    is_demo: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def system(self) -> System:
        return SYSTEMS[self.backend]


@cache
def sources() -> dict[str, SourceConfig]:
    """Return the configured sources by name, in the order of the file."""
    found: dict[str, SourceConfig] = {}
    if setting("DEMO_BROKER_URL"):
        found["shop"] = SourceConfig("shop", "celery", setting("DEMO_BROKER_URL"), is_demo=True)
    if setting("SOURCES"):
        found.update(_from_file(Path(setting("SOURCES"))))
    elif setting("CELERY_BROKER_URL"):
        try:
            url = sentinel_url.with_options(setting("CELERY_BROKER_URL"), {})
        except Unreadable as error:
            raise BadConfiguration(f"CELERY_BROKER_URL cannot be read: {error}.") from error
        found["celery"] = SourceConfig("celery", "celery", url)
    return found


def _from_file(path: Path) -> dict[str, SourceConfig]:
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadConfiguration(f"REDRIVE_SOURCES ({path}) cannot be read: {error}") from error
    tables = document.get("sources", {})
    if not isinstance(tables, dict):
        raise BadConfiguration(f"REDRIVE_SOURCES ({path}): a source must be a table, [sources.its-name].")
    if wrong := [why for name, table in tables.items() for why in _what_is_wrong(name, table)]:
        raise BadConfiguration(f"REDRIVE_SOURCES: {' '.join(wrong)}")
    found = {}
    for name, table in tables.items():
        options = {k: v for k, v in table.items() if k not in {"backend", "url", "queues"}}
        url = sentinel_url.with_options(table["url"], options)
        found[name] = SourceConfig(name, table["backend"], url, tuple(table.get("queues", ())), options=options)
    return found


def _what_is_wrong(name: str, table: Any) -> list[str]:
    """Return all mistakes in one source of the file, as sentences."""
    if not keys.valid_source(name):
        return [f"{name!r} cannot name a source: use a-z, 0-9, - and _."]
    if not isinstance(table, dict):
        return [f"{name} is not a table: write [sources.{name}], with its url below."]
    found = []
    backend, queues = table.get("backend"), table.get("queues", [])
    known = ", ".join(BACKENDS)
    if backend is None:
        found.append(f"[sources.{name}] needs a backend; known: {known}.")
    elif backend not in (*BACKENDS, *setting("TEST_BACKENDS")):
        found.append(f"[sources.{name}] has backend {backend!r}; known: {known}.")
    if not isinstance(table.get("url"), str):
        found.append(f"[sources.{name}] needs a url.")
    else:
        try:
            sentinel_url.with_options(table["url"], table)
        except Unreadable as error:
            found.append(f"[sources.{name}]: its url cannot be read: {error}.")
    if not isinstance(queues, list) or not all(isinstance(queue, str) and queue for queue in queues):
        found.append(f"[sources.{name}]: queues must be a list of names.")
    return found


@cache
def store() -> redis.Redis:
    """Return Redrive's own Redis, with bytes as input and output; a call that hangs ends after five seconds."""
    if not setting("REDIS_URL"):
        raise BadConfiguration(f"REDRIVE_REDIS_URL is not set. Run `{COMMAND} up`, or set it.")
    try:
        return from_url(
            setting("REDIS_URL"),
            socket_timeout=5,
            socket_connect_timeout=5,
            health_check_interval=30,
        )
    except (ValueError, TypeError) as error:  # redis-py's own messages quote the part that they could not parse
        why = (
            str(error)
            if isinstance(error, Unreadable)
            else "the URL must begin with redis://, rediss://, unix:// or redis+sentinel://"
        )
        raise BadConfiguration(f"REDRIVE_REDIS_URL cannot be used: {why}.") from error


@cache
def adapter(name: str) -> Source:
    """Return the adapter of a configured source.

    Raises KeyError for a name that is not configured, sources.base.SourceRefused for an unusable URL.
    """
    found = sources()[name]
    return connect(
        name,
        found.backend,
        found.url,
        queues=found.queues,
        options=found.options,
        store_prefix=keys.PREFIX,
        store=store,
    )


def keeps_dead(name: str) -> bool:
    """Return whether this source stores dead letters itself, so that they are pulled and its workers need no guard."""
    try:
        return adapter(name).can.holds_dead
    except (KeyError, SourceRefused):
        return False  # not configured, so it has a guard; or its address is invalid


def is_pulled(name: str) -> bool:
    """Return whether this source's failures are read from it: from its dead letters, or its events."""
    try:
        can = adapter(name).can
    except (KeyError, SourceRefused):
        return False
    return can.holds_dead or can.follows


@cache
def payload_keys() -> MultiFernet:
    """Return the keys of raw messages at rest; the first key encrypts, all of them decrypt."""
    if not setting("PAYLOAD_KEYS"):
        raise BadConfiguration(f"REDRIVE_PAYLOAD_KEYS is not set. Run `{COMMAND} up`, which makes one, or set it.")
    return MultiFernet([Fernet(key) for key in setting("PAYLOAD_KEYS")])


# Since the last event; "history": numbers over time, groups without a job, reports that cannot be filed; "depths":
# samples of queues, in hours (shorter steps are deleted sooner: `jobs_admin/queues/depths/steps.py`).
KEPT = {
    "recovered": timedelta(days=7),
    "gone": timedelta(days=7),
    "discarded": timedelta(days=30),
    "dead": timedelta(days=90),
    "quarantined": timedelta(days=90),
    "history": timedelta(days=90),
    "depths": timedelta(days=400),
}
_LENGTH = re.compile(r"(\d{1,6})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_LONGEST = timedelta(days=36_500)  # so that subtracting it from now still gives a valid date
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,3})?)\s*([kMGT]?)i?B?", re.IGNORECASE)
_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def keep() -> dict[str, timedelta | None]:
    """Return how long failures of each state, and history, are stored; None: permanently."""
    found: dict[str, timedelta | None] = dict(KEPT)
    for part in filter(None, (part.strip() for part in setting("KEEP").split(","))):
        name, is_named, text = part.rpartition("=")
        names = [n.strip() for n in name.split("+")] if is_named else list(KEPT)
        if unknown := [n for n in names if n not in KEPT]:
            raise BadConfiguration(
                f"REDRIVE_KEEP: {unknown[0]!r} has no retention of its own; known: {', '.join(KEPT)}."
            )
        found |= dict.fromkeys(names, None if text.strip() == "ever" else length(text, "REDRIVE_KEEP"))
    return found


def length(text: str, where: str) -> timedelta:
    """Parse a length of time: 90d, 12h. At least an hour, so that nothing is deleted while an operator reads it."""
    found = _LENGTH.fullmatch(text.strip())
    if found is None or int(found[1]) * _SECONDS[found[2]] < 3600:
        raise BadConfiguration(f"{where}: {text.strip()!r} is not a duration of an hour or more, such as 30d or 12h.")
    seconds = int(found[1]) * _SECONDS[found[2]]
    if seconds > _LONGEST.total_seconds():
        raise BadConfiguration(f"{where}: {text.strip()!r} is longer than {_LONGEST.days}d (100 years), the maximum.")
    return timedelta(seconds=seconds)


def keep_bytes() -> int | None:
    """Return the size of the database above which closed failures are deleted early; None: no limit."""
    return size(setting("KEEP_BYTES"), "REDRIVE_KEEP_BYTES") if setting("KEEP_BYTES") else None


def size(text: str, where: str) -> int:
    """Parse a number of bytes: 5GB, 800 MB."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise BadConfiguration(f"{where}: {text.strip()!r} is not a size such as 5GB or 800MB.")
    return round(float(found[1]) * _BYTES[found[2].lower()])


def approve_above() -> int | None:
    """Return the number of jobs above which a replay needs a second person; None: no such limit."""
    text = setting("APPROVE_ABOVE").strip().replace(",", "")
    if not text:
        return None
    if (found := whole_number(text)) is None:
        raise BadConfiguration(f"REDRIVE_APPROVE_ABOVE: {text!r} is not a number of jobs, such as 1000.")
    return found


def is_dangerous(task: str) -> bool:
    """Return whether a replay of this task needs a second person, regardless of its size."""
    return any(fits(pattern, task) for pattern in setting("DANGEROUS_TASKS"))


def dangerous_tasks() -> list[str]:
    """Return the patterns of tasks whose replay needs a second person."""
    return list(setting("DANGEROUS_TASKS"))


READ_ONLY = "The desk is read-only (REDRIVE_READ_ONLY). Nothing was changed."


def is_read_only() -> bool:
    """Return whether every changing act is refused."""
    return setting("READ_ONLY")


def webhook_allow() -> web_address.Allowed:
    """Return non-public addresses that are allowed: REDRIVE_WEBHOOK_ALLOW, and the demo's pager in its own `up`."""
    demo = [urlsplit(setting("DEMO_PARTNER_URL")).netloc] if setting("DEMO_PARTNER_URL") else []
    return web_address.parse_allowed([*setting("WEBHOOK_ALLOW"), *demo])


def heartbeat_url() -> str:
    """Return the URL that is requested every minute while all steps are alive; empty: none."""
    return setting("HEARTBEAT_URL")


def sends_mail() -> bool:
    """Return whether a mail server is set."""
    return setting("SENDS_MAIL")


def is_own_project() -> bool:
    """Return whether the Django project is Redrive's own, as opposed to one in which Redrive is mounted."""
    return settings.ROOT_URLCONF == "dashboard.urls"


def signs_on() -> bool:
    """Return whether people sign in at an OpenID provider. If Redrive is mounted, accounts belong to the project."""
    return is_own_project() and bool(setting("OIDC_ISSUER"))


def slack_secret() -> str:
    """Return the secret by which Slack signs its requests; empty: off. Off also where accounts belong to a host project."""
    return setting("SLACK_SIGNING_SECRET") if is_own_project() else ""


def takes_passwords() -> bool:
    return not (signs_on() and setting("OIDC_ONLY"))


def page_at(path: str) -> str:
    """Return the address of a page by its path, such as `alerts/7/`."""
    return page_url(_mount() + path)


def _mount() -> str:
    """Return the path at which the project includes `dashboard.routes`, such as `/ops/redrive/`."""
    if is_own_project():  # at its root; reading its addresses would import the entire dashboard into a step
        return get_script_prefix()
    try:
        return reverse("redrive:overview")
    except NoReverseMatch:  # a project with the engine alone
        return get_script_prefix()


def page_url(path: str) -> str:
    """Return the public address of a page, for links outside the browser: alerts, terminal."""
    return setting("URL") + path
