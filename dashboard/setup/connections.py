"""Checks of the servers in the settings: reachable, which reports a wrong URL in one sentence, and recent."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import redis
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.utils import Error as DatabaseError

from dashboard.setup import environment
from dashboard.setup.environment import Misconfigured
from jobs_admin import config
from jobs_admin.config import SourceConfig
from jobs_admin.core import sentinel_url
from jobs_admin.core.service_url import Unreadable, display_url
from jobs_admin.sources import connect
from jobs_admin.sources.base import Finding, SourceError, SourceUnreachable
from jobs_admin.worker.redis_clients import from_url

OLDEST_REDIS = (6, 2)
TIMEOUT_S = 4.0


def check_given() -> list[str]:
    """Return a warning for each unknown variable and each source of the file that is unreachable now; the start continues.

    Raises Misconfigured, naming the variable, for the first other setting or server that is set and unusable.
    """
    unknown = [f"{found.text} {found.fix}" for found in find_unknown_variables()]
    check_values()
    for name in ("REDRIVE_REDIS_URL", "REDIS_URL"):
        if environment.is_given(name):
            check_redis(name, environment.get(name))
            break
    if environment.is_given("CELERY_BROKER_URL"):
        try:
            url = sentinel_url.with_options(environment.get("CELERY_BROKER_URL"), {})
        except Unreadable as error:
            raise Misconfigured(f"CELERY_BROKER_URL cannot be used: {error}. Nothing was started.") from error
        check_broker(SourceConfig("celery", "celery", url))
    away = check_sources()
    check_payload_keys()
    check_database()
    return unknown + away


def find_unknown_variables() -> list[Finding]:
    """Return variables with Redrive's prefix that this version does not use; none in a project, whose variables they are."""
    if not config.is_own_project():
        return []
    return [
        Finding("variable", "warning", f"{name} is set and not known to this version; it has no effect.", fix)
        for name, fix in environment.find_unknown().items()
    ]


def check_values() -> None:
    """Check the settings of retention and approval, which are read late."""
    try:
        config.keep(), config.keep_bytes(), config.approve_above()
    except config.BadConfiguration as error:
        raise Misconfigured(f"{error} Nothing was started.") from error


def check_sources() -> list[str]:
    """Return a sentence for each unreachable source of the file: one failed system does not stop the desk.

    Raises Misconfigured for all of them whose settings are invalid.
    """
    path = environment.get("REDRIVE_SOURCES")
    if not path:
        return []
    try:
        found = [source for source in config.sources().values() if not source.is_demo]
    except config.BadConfiguration as error:
        raise Misconfigured(f"{error} Nothing was started.") from error
    with ThreadPoolExecutor(max_workers=8) as several:  # so that unresponsive servers are waited for together
        results = list(several.map(_check_source, found))
    if refused := [why for why, _ in results if why]:
        raise Misconfigured(f"REDRIVE_SOURCES: {' '.join(refused)} Nothing was started.")
    return [away for _, away in results if away]


def _check_source(source: SourceConfig) -> tuple[str, str]:
    """Return why a source of the file is unusable, and why it is unreachable: a sentence each, or ""."""
    named = f"[sources.{source.name}]"
    try:
        adapter = connect(source.name, source.backend, source.url, source.queues, source.options)
        try:
            adapter.findings()
        finally:
            adapter.close()
        if source.system.is_guarded and source.url.startswith(("redis", "unix")):
            check_redis(f"the url of {named}", source.url)
    except SourceUnreachable as error:
        why = f"{display_url(source.url)}: {without_secrets(error)}"
        text = f"Source {source.name} cannot be reached ({why}). The desk starts, shows it so, and reads it once it answers."
        return "", text
    except (SourceError, ValueError, TypeError) as error:  # the last two: an option of a wrong type
        why = without_secrets(error).removeprefix(f"Source {source.name}: ")
        return f"{named} ({display_url(source.url)}) cannot be used: {why}.", ""
    except Misconfigured as error:
        return str(error).removesuffix(" Nothing was started."), ""
    return "", ""


def check_payload_keys() -> None:
    try:
        config.payload_keys()
    except ValueError as error:
        raise Misconfigured(
            "REDRIVE_PAYLOAD_KEYS: one of them is not a Fernet key (32 bytes, url-safe base64). Nothing was started."
        ) from error


def check_broker(source: SourceConfig, name: str = "CELERY_BROKER_URL") -> None:
    """Check that the adapter accepts the URL and its server answers, so that a started desk works."""
    try:
        adapter = connect(source.name, source.backend, source.url, source.queues, source.options)
        try:
            adapter.findings()
        finally:
            adapter.close()
    except (SourceError, ValueError, TypeError) as error:  # the last two: an option of a wrong type
        why = without_secrets(error).removeprefix(f"Source {source.name}: ")
        raise Misconfigured(
            f"{name} cannot be used: {display_url(source.url)} ({why}). Nothing was started."
        ) from error
    if source.system.is_guarded and source.url.startswith(("redis", "unix")):
        check_redis(name, source.url)


def check_redis(name: str, url: str) -> None:
    """Check for a Redis or Valkey, 6.2 or newer, that accepts our login: one server, or the primary that Sentinels
    name. Raises Misconfigured.
    """
    _, _, rest = url.partition("?")[0].partition("://")
    server = rest.rpartition("@")[2].partition("/")[0]
    if not sentinel_url.is_sentinel(url) and ("," in server or "://" in rest):
        raise Misconfigured(
            f"{name} names several servers, which Redrive cannot use: give the address of one, such as "
            f"redis://host:6379/0, or of its Sentinels, such as {sentinel_url.EXAMPLE}. Nothing was started."
        )
    try:
        with from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S) as client:
            client.ping()
            answers = client.info()
    except (redis.RedisError, ValueError, TypeError, OSError) as error:
        raise Misconfigured(
            f"{name} cannot be used: {display_url(url)} ({without_secrets(error)}). Nothing was started."
        ) from error
    if answers.get("cluster_enabled"):
        raise Misconfigured(
            f"{name} is a Redis Cluster ({display_url(url)}), which neither Celery nor Redrive can use: give a single "
            "server, or its Sentinels. Nothing was started."
        )
    version = str(answers.get("redis_version", "0.0"))
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_REDIS:
        raise Misconfigured(
            f"{name} is Redis {version} ({display_url(url)}): Redrive needs 6.2 or newer. Nothing was started."
        )


def check_database() -> None:
    connection = connections["default"]
    try:
        connection.ensure_connection()
    except (DatabaseError, ImproperlyConfigured, ValueError) as error:
        given = environment.get("DATABASE_URL")
        what = f"DATABASE_URL cannot be used: {display_url(given)}" if given else "The database cannot be opened"
        raise Misconfigured(f"{what} ({about_database(error)}). Nothing was started.") from error


def without_secrets(error: BaseException) -> str:
    """Return the first line of the error if it cannot contain parts of the URL; otherwise only its type.

    Errors about parts of the URL (ValueError, TypeError) quote the invalid part.
    """
    is_safe = isinstance(error, (Unreadable, SourceError, redis.RedisError, OSError))
    text = (str(error).strip().splitlines() or [""])[0].rstrip(".") if is_safe else ""
    return text or type(error).__name__


def about_database(error: BaseException) -> str:
    """Return the message of the database driver, unless it contains the password or an option of DATABASE_URL."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return type(error).__name__ if environment.is_secret_in(text) else text


# First versions of Redis and Valkey with fixes for known vulnerabilities of Lua scripts. Workers run scripts in
# Redrive's store (`EVAL`, `core/worker_acl.py`). In earlier versions a script can take over the server (CVE-2025-49844,
# CVE-2025-46817, CVE-2024-46981), run code as another user (CVE-2025-46818), or read the server's memory
# (CVE-2025-46819). Valkey's versions also fix replies that a script forges on a connection shared by several users
# (CVE-2025-67733).

REDIS, VALKEY = "Redis", "Valkey"

# (major, minor) -> its first fixed version. Unlisted versions older than a listed one have no fix.
_FIXED: dict[str, dict[tuple[int, int], tuple[int, int, int]]] = {
    REDIS: {(6, 2): (6, 2, 20), (7, 2): (7, 2, 11), (7, 4): (7, 4, 6), (8, 0): (8, 0, 4), (8, 2): (8, 2, 2)},
    VALKEY: {(7, 2): (7, 2, 12), (8, 0): (8, 0, 7), (8, 1): (8, 1, 6), (9, 0): (9, 0, 3)},
}
_VERSION = re.compile(r"(\d{1,5})\.(\d{1,5})(?:\.(\d{1,5}))?")


def least_fixed_version(product: str, version: str) -> str | None:
    """Return the minimum version to upgrade to; None if `version` of the product (REDIS, VALKEY) is fixed or unknown.

    A distribution may have backported fixes without a new version number: the answer is then too cautious.
    """
    found = _VERSION.match(version)
    if found is None:
        return None
    major, minor, patch = (int(part or 0) for part in found.groups())
    line = min((line for line in _FIXED[product] if line >= (major, minor)), default=None)
    least = _FIXED[product][line] if line else (0, 0, 0)
    return ".".join(map(str, least)) if (major, minor, patch) < least else None
