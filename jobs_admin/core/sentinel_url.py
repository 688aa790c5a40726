"""URLs of a Redis that is found through its Sentinels, in the form of the desk and in that of Celery.

    redis+sentinel://user:password@host:26379,other:26379/set-name/0?sentinel_password=…
    sentinel://:password@host:26379/0;sentinel://other:26379/0   with `master_name`, an option of Celery's transport

User and password before the hosts are those of the servers; the Sentinels' own are `sentinel_username` and
`sentinel_password`. `rediss+sentinel` is TLS to the servers and to the Sentinels, without `sentinel_tls=no`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from jobs_admin.core.service_url import Unreadable

SCHEMES = ("redis+sentinel", "rediss+sentinel")
OF_CELERY = "sentinel"
PORT = 26379
EXAMPLE = "redis+sentinel://host:26379,other:26379/mymaster/0"
_HOST = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")
_SET_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_OWN = frozenset({"sentinel_username", "sentinel_password", "sentinel_tls", "master_name"})
_UNREAD = (
    f"a Sentinel URL is like {EXAMPLE}; in a user or password write @ as %40, / as %2F, , as %2C, ; as %3B and ? as %3F"
)


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """The parts of the URL. `server_url` opens one of the servers; its host is a placeholder."""

    sentinels: tuple[tuple[str, int], ...]
    set_name: str
    server_url: str
    username: str = ""  # of the Sentinels
    password: str = ""
    is_tls: bool = False

    @property
    def display(self) -> str:
        """The set's name and its Sentinels, without user and password."""
        return f"{self.set_name} of the Sentinels {', '.join(f'{host}:{port}' for host, port in self.sentinels)}"


def is_sentinel(url: str) -> bool:
    return url.partition("://")[0].lower() in (*SCHEMES, OF_CELERY)


def parse(url: str) -> SentinelUrl | None:
    """Return the parts; None for a URL of another scheme. Raises Unreadable, whose message may be shown."""
    if not is_sentinel(url):
        return None
    parts = [_split(one) for one in url.split(";") if one]
    scheme, _, _, path, _ = parts[0]
    if any(one[0] != scheme for one in parts) or (scheme != OF_CELERY and len(parts) > 1):
        raise Unreadable(_UNREAD)
    login = next((one[1] for one in parts if one[1]), "")
    hosts = tuple(dict.fromkeys(host for one in parts for host in one[2]))
    options = [pair for one in parts for pair in parse_qsl(one[4])]
    own = {name: value for name, value in options if name in _OWN}
    if scheme == OF_CELERY:
        set_name, database = own.get("master_name", ""), next((one[3] for one in parts if one[3]), "")
    else:
        set_name, _, database = path.partition("/")
    if not _SET_NAME.fullmatch(set_name):
        where = "as the option master_name" if scheme == OF_CELERY else f"as in {EXAMPLE}"
        raise Unreadable(f"a Sentinel URL names the set of servers, {where}")
    if database and not database.isdecimal():
        raise Unreadable("the database must be a number, such as /0")
    is_tls = scheme == "rediss+sentinel"
    rest = urlencode([pair for pair in options if pair[0] not in _OWN])
    server = f"{'rediss' if is_tls else 'redis'}://{login}{'@' if login else ''}primary/{database or 0}"
    return SentinelUrl(
        hosts,
        set_name,
        f"{server}?{rest}" if rest else server,
        own.get("sentinel_username", ""),
        own.get("sentinel_password", ""),
        is_tls and own.get("sentinel_tls", "yes") not in ("no", "false", "0"),
    )


def _split(url: str) -> tuple[str, str, list[tuple[str, int]], str, str]:
    """Return scheme, login, hosts, path and query of one URL."""
    scheme, _, rest = url.partition("://")
    before, _, query = rest.partition("?")
    servers, _, path = before.partition("/")
    login, _, hosts = servers.rpartition("@")
    if "#" in url or "@" in login + path or "@" in query.partition("=")[0] or any(c.isspace() for c in url):
        raise Unreadable(_UNREAD)
    found = []
    for text in hosts.split(","):
        host = _HOST.fullmatch(text)
        if host is None or not 0 < int(host["port"] or PORT) < 65_536:
            raise Unreadable(_UNREAD)
        found.append((host["host"].strip("[]"), int(host["port"] or PORT)))
    return scheme.lower(), login, found, path.strip("/"), query


def with_options(url: str, options: Mapping[str, Any]) -> str:
    """Return the URL in the desk's form, for a URL in Celery's form and the options of its transport.

    A URL of another scheme is returned unchanged. Raises Unreadable.
    """
    if url.partition("://")[0].lower() != OF_CELERY:
        return url
    own = options.get("sentinel_kwargs")
    own = own if isinstance(own, Mapping) else {}
    given = {"master_name": options.get("master_name")}
    given |= {f"sentinel_{name}": own.get(name) for name in ("username", "password")}
    added = urlencode({name: str(value) for name, value in given.items() if value})
    found = parse(f"{url.rstrip(';')}{'&' if '?' in url.rpartition(';')[2] else '?'}{added}" if added else url)
    assert found is not None
    is_tls = bool(options.get("ssl"))
    _, _, rest = found.server_url.partition("://")
    servers, _, after = rest.partition("/")
    login, _, _ = servers.rpartition("@")
    database, _, query = after.partition("?")
    hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in found.sentinels)
    own_query = {"sentinel_username": found.username, "sentinel_password": found.password}
    if is_tls and not own.get("ssl"):
        own_query["sentinel_tls"] = "no"
    tail = "&".join(filter(None, (query, urlencode({k: v for k, v in own_query.items() if v}))))
    scheme = SCHEMES[is_tls]
    return f"{scheme}://{login}{'@' if login else ''}{hosts}/{found.set_name}/{database}{'?' if tail else ''}{tail}"


def for_kombu(url: str) -> tuple[str, dict[str, Any], dict[str, str] | None]:
    """Return URL, transport options and TLS options (None: no TLS) for kombu. Raises Unreadable.

    A URL of another scheme is returned unchanged, without options.
    """
    found = parse(url)
    if found is None:
        return url, {}, None
    _, _, rest = found.server_url.partition("://")
    servers, _, after = rest.partition("/")
    login, _, _ = servers.rpartition("@")
    database, _, query = after.partition("?")
    hosts = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in found.sentinels]
    urls = [f"sentinel://{login}{'@' if login else ''}{host}/{database}" for host in hosts]
    own: dict[str, Any] = {"socket_timeout": 1, "socket_connect_timeout": 1}
    own |= {k: v for k, v in (("username", found.username), ("password", found.password)) if v}
    tls = None
    if found.server_url.startswith("rediss"):
        tls = {"ssl_cert_reqs": "required"} | {k: v for k, v in parse_qsl(query) if k.startswith("ssl_")}
    if found.is_tls:
        own |= {"ssl": True} | (tls or {})
    return ";".join(urls), {"master_name": found.set_name, "sentinel_kwargs": own}, tls
