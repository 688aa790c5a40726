"""Dependency of an error: the host or service that a job called and that failed it.

Read from the chain of errors, first cause first: an address in a client library's message, else the service that the
library calls. An application error (`ValueError`) has none. All text is untrusted: what is read is bounded, and each
pattern is linear.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from functools import lru_cache

from jobs_admin.core.client_libraries import (
    ANY_BROKER,
    ANY_DATABASE,
    ANY_HTTP,
    PORTS,
    service_of_frame,
    service_of_type,
)
from jobs_admin.core.text import representable
from jobs_admin.core.trace_path import USUAL_TRACE
from jobs_admin.core.traces import Raised, chain_of, place_of

MOST_NAME = 120
SEVERAL, OTHER = "several", "other"  # names for several or no single dependency
_HEAD, _END = 2_000, 1_000  # characters read at the start and end of a message
_MOST_ERRORS = 12  # errors read of a chain: the first causes and the last


@dataclass(frozen=True, slots=True)
class Dependency:
    name: str
    reason: str


_HOST = r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?)"
_ADDRESS = rf"(https?|wss?)://(?:[^\s/@'\"<>]{{0,300}}@)?{_HOST}(?::(\d{{1,5}}))?(?![\w@])"
_SCHEMES = {"ws": "http", "wss": "https"}

# Pattern and service; "" if the first group is a scheme.
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(rf"(HTTPS?)ConnectionPool\(host='{_HOST}', port=(\d{{1,5}})\)"), ""),
    (re.compile(rf"\b(?:for url|for URL|url|URL|endpoint URL|endpoint):? ?[=:(]? ?['\"(]{{0,2}}{_ADDRESS}"), ""),
    (re.compile(rf"\b(?:GET|POST|PUT|PATCH|DELETE|HEAD|OPTIONS|request to|connect to|connecting to) ['\"]?{_ADDRESS}"), ""),
    (re.compile(rf"()Cannot connect to host {_HOST}:(\d{{1,5}})"), ANY_HTTP),
    (re.compile(rf"()\bgetaddrinfo (?:ENOTFOUND|EAI_AGAIN|EAI_FAIL) {_HOST}(?::(\d{{1,5}}))?"), ANY_HTTP),
    (re.compile(rf"()\bconnect (?:ECONNREFUSED|ETIMEDOUT|EHOSTUNREACH|ENETUNREACH|ECONNRESET) {_HOST}(?::(\d{{1,5}}))?"), "port"),
    (re.compile(rf"()\bError -?\d{{1,6}} (?:while )?connecting to {_HOST}:(\d{{1,5}})"), "redis"),
    (re.compile(rf"()\bError while reading from {_HOST}:(\d{{1,5}})"), "redis"),
    (re.compile(rf"()\bconnection to server at \"{_HOST}\"(?: \([^()\n]{{0,60}}\))?, port (\d{{1,5}})"), "postgresql"),
    (re.compile(rf"()\b(?:could not translate host name|failed to resolve host) ['\"]{_HOST}['\"]"), "postgresql"),
    (re.compile(rf"()\bMySQL server (?:on|host) '{_HOST}(?::(\d{{1,5}}))?'"), "mysql"),
    (re.compile(rf"()\bipv[46](?:#|:|%3A){_HOST}(?::|%3A)(\d{{1,5}})"), "grpc"),
    (re.compile(rf"()\bUnable to connect to port (?P<port>\d{{1,5}}) on {_HOST}"), "ssh"),
    (re.compile(rf"()\bFailed to resolve '{_HOST}'"), ANY_HTTP),
)  # fmt: skip
# Only used if the error's type belongs to this library.
_PATTERNS_OF = {
    "mongodb": re.compile(rf"(?:^|, ){_HOST}:(\d{{1,5}}): "),
    "kafka": re.compile(rf"\b{_HOST}:(\d{{1,5}})(?:/|\b)"),
    "amqp": re.compile(rf"\b(?:host=|to |amqps?://(?:[^\s/@]{{0,300}}@)?){_HOST}:(\d{{1,5}})"),
    "smtp": re.compile(rf"\bto {_HOST}:(\d{{1,5}})"),
    "elasticsearch": re.compile(rf"\bhost='{_HOST}', port=(\d{{1,5}})"),
}
_ADDRESS_IN_CODE = re.compile(rf"['\"]{_ADDRESS}")

# Programming errors: never a dependency's, whatever the message quotes.
_MISTAKES = frozenset(
    "ValueError TypeError KeyError AttributeError IndexError NameError UnboundLocalError ZeroDivisionError AssertionError "  # noqa: SIM905
    "NotImplementedError RecursionError ImportError ModuleNotFoundError UnicodeDecodeError UnicodeEncodeError LookupError "
    "SyntaxError RangeError ReferenceError JSONDecodeError ValidationError FileNotFoundError IsADirectoryError "
    "NotADirectoryError PermissionError FileExistsError MemoryError DoesNotExist MultipleObjectsReturned".split()
)
# Network errors without a library: only their frames show the service.
_NETWORK = re.compile(
    r"\A(?:socket\.|ssl\.|asyncio\.exceptions\.|billiard\.exceptions\.|celery\.exceptions\.|concurrent\.futures\.(?:_base\.)?)?"
    r"(?:Connection(?:Refused|Reset|Aborted)?Error|BrokenPipeError|TimeoutError|timeout|gaierror|herror|SSL\w{0,40}Error|"
    r"OSError|IncompleteRead|EOFError|SoftTimeLimitExceeded|TimeLimitExceeded)\Z"
)
_NODE_NETWORK = re.compile(
    r"fetch failed\Z|socket hang up|(?:read|write|connect) E[A-Z]{3,20}\b|Client network socket disconnected|connect timeout"
)
_OPERATIONAL = re.compile(
    r"Operational|Interface|Connect|Time[dO]?[oO]ut|Unavailable|Disconnect|TooMany|Shutdown|CannotConnect|Closed|Reset|Refused|"
    r"Broken|Network|Socket|SSL|TLS|MaxRetries|RateLimit|Throttl|Throughput|SlowDown|Limit|Overload|Server|BusyLoading|ReadOnly|"
    r"OutOfMemory|Cluster|MasterDown|NoBrokers|BrokersDown|NodeNotReady|AutoReconnect|NotPrimary|QueryCanceled|Rpc|Auth|"
    r"Refresh|HTTP|Http|URL|Url|Protocol|Transport|Request|Response|Retry|SSHException|Api|API|Chunked|Redirect|AMQP|Channel|"
    r"Read|Write|Pool|Axios|Fetch|Remote|Temporary|Transient|IncompleteRead|Internal|Gateway|Helo|SMTPException|DatabaseError"
)
# Refused because of the data sent, not because the service fails.
_OF_DATA = re.compile(
    r"Integrity|Programming|DataError|NotSupported|Validation|Violation|Undefined|Syntax|CardError|InvalidRequest|"
    r"RecipientsRefused|SenderRefused|NoSuch|NotFound|Exists|Conditional|LockNotOwned|LockNotAvailable|LockError|Deadlock|ExecAbort|"
    r"NoScript|InvalidURL|InvalidSchema|MissingSchema|InvalidHeader|JSONDecode|Duplicate|Truncation|OutOfRange|Forbidden|"
    r"AssumeRole|WatchError|DecodingError|UnsupportedProtocol|LocalProtocol"
)
_DATA_IN_MESSAGE = re.compile(
    r"WRONGTYPE|[Dd]eadlock|[Ll]ock (?:wait )?timeout|LockNotAvailable|NoSuch|NotFound|AccessDenied|Invalid|Conditional|"
    r"no such (?:table|column)|database is locked|does not exist|sqlite3?\b"
)
_CLIENT_ERROR = re.compile(r"An error occurred \((\w{1,80})\) when calling the ")
# Answers about this request only: the next one may succeed.
_OF_REQUEST = re.compile(
    r"\A(?:Client error '|HTTP Error |HTTP |Request failed with status code )?\(?(?:400|402|404|405|406|409|41[0-8]|422)\b"
)
_STATUS_OF_DATA = re.compile(r"\A\(?55\d\b")  # SMTP: permanent refusal


def attribute(error: str, message: str, trace: str) -> Dependency | None:
    """Return the dependency that failed; None if the error has none. Deterministic; never raises.

    `error`: the type, with its module if known. `trace`: the traceback, with or without the message at its end.
    """
    text = representable(message)
    return _attributed(error[:255], text if len(text) <= _HEAD + _END else f"{text[:_HEAD]}\n{text[-_END:]}", trace)


@lru_cache(maxsize=128)
def _attributed(error: str, message: str, trace: str) -> Dependency | None:
    chain = _chain(error, message, trace)
    found: Dependency | None = None
    of_service = ""
    for n, raised in enumerate(chain):
        service = _service(raised)
        if service is None:
            continue
        what = _what(raised, is_last=n == len(chain) - 1)
        if (address := _address_in(raised, service)) is not None:
            name, of_address = address
            is_other = of_service not in ("", ANY_HTTP, ANY_DATABASE, ANY_BROKER) and of_address not in (
                of_service,
                "port",
            )
            return found if found is not None and is_other else Dependency(name, f"Address in the message of {what}")
        if service and (found is None or of_service in (ANY_HTTP, ANY_DATABASE, ANY_BROKER)):
            of_service, found = service, _of_library(raised, service, what)
    return found


def is_specific(name: str) -> bool:
    """Return whether a name identifies a service, not only its kind."""
    return name not in (ANY_HTTP, ANY_DATABASE, ANY_BROKER)


def _chain(error: str, message: str, trace: str) -> list[Raised]:
    """Return the errors of a chain that may have led to the last one, first cause first."""
    chain = list(_known_chain(trace)) if len(trace) <= USUAL_TRACE else chain_of(trace)
    chain = [*chain[: _MOST_ERRORS - 2], *chain[-2:]] if len(chain) > _MOST_ERRORS else chain
    last = replace(chain[-1]) if chain else Raised()
    # The report has more precise data on the last error than the end of its traceback.
    if _last_name(last.error) != _last_name(error) or "." not in last.error:
        last.error = error
    last.message = message or last.message
    if not chain:
        return [last]
    if _is_mistake(last) and len(chain) > 1 and not chain[-2].leads_on:
        return [last]  # a programming error while handling another error
    return [*chain[:-1], last]


# Cached, because most errors of a group have one of few traces, each with its own message.
_known_chain = lru_cache(maxsize=512)(chain_of)


def _last_name(error: str) -> str:
    return error.rpartition(".")[2]


def _is_mistake(raised: Raised) -> bool:
    # Return whether it is a programming error. undici throws a TypeError for a failed request.
    return _last_name(raised.error) in _MISTAKES and raised.message.strip() != "fetch failed"


def _service(raised: Raised) -> str | None:
    """Return the service by the error's type and frames; "" if only its message can identify it; None if the error
    has no dependency.
    """
    name, service = _last_name(raised.error), service_of_type(raised.error)
    if _is_mistake(raised) or (service and _OF_DATA.search(name)) or name.startswith("DoesNotExist"):
        return None
    if raised.error.startswith("sqlite3.") or (service in ("", ANY_HTTP) and _OF_REQUEST.match(raised.message)):
        return None
    if service:
        return service if _is_operational(raised, name, service) else None
    if _NETWORK.match(raised.error) or (name in ("Error", "TypeError") and _NODE_NETWORK.match(raised.message)):
        return next((one for frame in reversed(raised.frames) if (one := service_of_frame(frame))), "")
    if raised.frames and not raised.frames[-1].is_application:
        library = service_of_frame(raised.frames[-1])
        return library if library and _OPERATIONAL.search(name) else ""
    return ""


def _is_operational(raised: Raised, name: str, service: str) -> bool:
    if caused := _CLIENT_ERROR.search(raised.message):
        return bool(_OPERATIONAL.search(caused[1])) and not _OF_DATA.search(caused[1])
    if service == ANY_HTTP:
        return True
    if _DATA_IN_MESSAGE.search(raised.message[:300]) or (service == "smtp" and _STATUS_OF_DATA.match(raised.message)):
        return False
    return bool(_OPERATIONAL.search(name))


def _address_in(raised: Raised, service: str) -> tuple[str, str] | None:
    """Return the first address in the message as a name, and its service."""
    text = raised.message
    for pattern, of in _PATTERNS:
        if (found := pattern.search(text)) is None:
            continue
        if "port" in pattern.groupindex:
            host, port, scheme = found[3], found["port"], of
        else:
            groups = (*found.groups(), "", "")
            scheme, host, port = (groups[0] or "").lower() or of, groups[1], groups[2] or ""
        if name := address_name(host, port, _SCHEMES.get(scheme, scheme)):
            return name, {"https": ANY_HTTP, "wss": ANY_HTTP}.get(scheme, scheme)
    own = _PATTERNS_OF.get(service)
    if own is not None and (found := own.search(text)) and (name := address_name(found[1], found[2], service)):
        return name, service
    return None


def address_name(host: str, port: str, scheme: str) -> str:
    """Return `host` or `host:port` in lower case, without the scheme's default port; "" for an invalid address.

    IP addresses and the local host keep the port except for HTTP: several services may listen there.
    """
    host = host.lower().rstrip(".")
    plain = host.strip("[]")
    try:
        is_number = ipaddress.ip_address(plain) is not None
    except ValueError:
        is_number = False
    if is_number and ":" in plain:
        host = f"[{plain}]"
    if not host or (not is_number and (host.startswith("[") or not re.search("[a-z]", host))):
        return ""
    number = int(port) if port else 0
    if number > 65535:
        return ""
    is_web = scheme in ("http", "https", "port")
    own = (80, 443) if scheme == "port" or (scheme == ANY_HTTP and number == 443) else PORTS.get(scheme, ())
    is_own = number in own and (is_web or not (is_number or host == "localhost"))
    name = host if not number or is_own else f"{host}:{number}"
    return name if len(name) <= MOST_NAME else ""


def _of_library(raised: Raised, service: str, what: str) -> Dependency:
    """Return the dependency without an address in the message: for HTTP, the address in the calling code; else the
    service.
    """
    if service == ANY_HTTP:
        for frame in reversed(raised.frames):
            if frame.is_application:
                found = _ADDRESS_IN_CODE.search(frame.code[:500])
                if found and (name := address_name(found[2], found[3] or "", _SCHEMES.get(found[1], found[1]))):
                    return Dependency(name, f"Address in the code of {place_of(frame)}"[:200])
                break
    library = next((one for one in reversed(raised.frames) if service_of_frame(one)), None)
    if library is not None and not service_of_type(raised.error):
        return Dependency(service, f"Library frame {place_of(library)}"[:200])
    return Dependency(service, f"Type of {what}"[:200])


def _what(raised: Raised, *, is_last: bool) -> str:
    return f"{'' if is_last else 'the cause '}{raised.error[:100]}"


_NAME = re.compile(r"[a-z0-9_\[][a-z0-9_.:@\[\]-]{0,119}\Z")


def declared_name(text: str) -> str:
    """Return a policy's declared name in its stored form: lower case, one line."""
    return representable(" ".join(text.split()).lower())[:MOST_NAME]


def valid_name(text: str) -> str:
    """Return a name in its stored form, lower case; "" if it cannot name a dependency."""
    name = text.strip().lower()
    return name if _NAME.match(name) else ""
