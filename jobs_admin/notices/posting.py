"""One request to one endpoint and its answer, within 15 seconds in all, and the verdict: delivered, tried again later, or
parked.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import cache

import certifi
import httpcore

from jobs_admin.core import backoff, retry_after
from jobs_admin.core.policy import parse
from jobs_admin.core.text import representable
from jobs_admin.core.web_address import Allowed, WebAddress
from jobs_admin.notices import guard

LONGEST_S = 15.0
_AFTER_SUCCESS_S = 2.0  # for the body of a response whose status already reports success
_MOST_READ = 64 * 1024
_MOST_TEXT = 2_000  # bytes of UTF-8
_AGENT = "Redrive/1"

# Standard Webhooks 1.0: immediately, then after each of these.
WAITS_S = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
MOST_TRIES = len(WAITS_S) + 1
LONGEST_RETRY_AFTER_S = 86_400.0
_POLICY = parse(
    {
        "name": "deliveries",
        "max_attempts": MOST_TRIES,
        "backoff": {"kind": "table", "delays_s": list(WAITS_S)},
        "cap_s": WAITS_S[-1],
        "jitter": {"kind": "down", "fraction": 0.1},
        "retry_after": {"respect": True, "jitter": 0.1, "cap_s": LONGEST_RETRY_AFTER_S},
    }
)
_GONE = {
    "webhook": {410: "the endpoint answered 410 (gone)"},
    "slack": {
        403: "Slack permanently refuses the address (403)",
        404: "Slack no longer has this address (404)",
        410: "The Slack channel was archived or deleted (410)",
    },
    "pagerduty": {410: "the endpoint answered 410 (gone)"},
}
# Statuses that the same request would always get, and that do not count against the channel.
_NEVER = {"slack": {400}, "pagerduty": {400}}
_WITH_RETRY_AFTER = (429, 503)


@dataclass(frozen=True, slots=True)
class Request:
    """A request to be sent. `logged`: its text in the log, without secrets."""

    target: WebAddress
    headers: Mapping[str, str]
    body: bytes
    logged: str = ""
    method: str = "POST"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int | None  # None: no response; `error` says why
    text: str = ""  # the start of its body
    error: str = ""  # why there was no response
    retry_after: str = ""  # the unparsed header
    took_ms: int = 0
    is_for_good: bool = False  # from a mail server: it will never accept this mail
    has_no_recipient: bool = False  # from a mail server: it permanently refuses all the addresses


def send(request: Request, allowed: Allowed, resolve: guard.Resolve | None = None) -> Answer:
    """Send the request, within LONGEST_S. Redirects are not followed, and compressed bodies are not decompressed.

    httpcore, not httpx: it has no redirects, cookies, proxies from the environment or decompression.
    """
    began = time.monotonic()
    clock = guard.Time(LONGEST_S)
    status, headers, body, error = None, {}, b"", ""
    url = httpcore.URL(
        scheme=request.target.scheme, host=request.target.host, port=request.target.port, target=request.target.target
    )
    sent = {"Host": request.target.server, "User-Agent": _AGENT, "Accept-Encoding": "identity", "Connection": "close"}
    try:
        with (
            httpcore.ConnectionPool(
                ssl_context=_trust() if request.target.scheme == "https" else None,
                network_backend=guard.Pinned(request.target, clock, allowed, resolve),
                max_connections=1,
                max_keepalive_connections=0,
                http2=False,
            ) as pool,
            pool.stream(request.method, url, headers={**sent, **request.headers}, content=request.body) as response,
        ):
            status = response.status
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
            if 200 <= status < 300:
                clock.shorten(_AFTER_SUCCESS_S)
            for chunk in response.iter_stream():
                body += chunk
                if len(body) >= _MOST_READ:
                    break
    except (guard.NotPublic, guard.Unknown) as refused:
        error = str(refused)
    except (guard.TooSlow, httpcore.TimeoutException):
        error = f"No response after {time.monotonic() - began:.0f} s."
    except (httpcore.NetworkError, httpcore.ProtocolError, OSError, ValueError) as failed:
        error = _in_words(failed)
    # A received status counts as a response, even if the rest failed.
    return Answer(
        status,
        _read_text(body[:_MOST_READ], headers.get("content-encoding", "")),
        error if status is None else "",
        headers.get("retry-after", "")[:200],
        round((time.monotonic() - began) * 1000),
    )


@cache
def _trust() -> ssl.SSLContext:
    """Return a context that trusts the system's authorities, including SSL_CERT_FILE, and those of certifi."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


def _read_text(body: bytes, encoding: str) -> str:
    if encoding and encoding.lower() != "identity" and body:
        return f"({len(body)} bytes or more, compressed, not decoded)"
    text = representable(body[:_MOST_TEXT].decode("utf-8", "replace"))
    return text.encode()[:_MOST_TEXT].decode("utf-8", "ignore")


def _in_words(failed: Exception) -> str:
    text = representable(str(failed)).strip() or type(failed).__name__
    if isinstance(failed, httpcore.ConnectError):
        return f"No connection: {text}."[:300]
    if isinstance(failed, httpcore.ProtocolError):
        return f"The response is not HTTP: {text}."[:300]
    return f"The connection broke: {text}."[:300]


class Fate(Enum):
    DELIVERED = "delivered"
    AGAIN = "again"
    PARKED = "parked"
    DISABLED = "disabled"  # and the channel with it


@dataclass(frozen=True, slots=True)
class Verdict:
    fate: Fate
    error: str = ""
    next_try_at: datetime | None = None


def judge(
    kind: str, answer: Answer, tries: int, now: datetime, random: Callable[[], float], *, only_once: bool = False
) -> Verdict:
    """Return the verdict. `tries` counts this one, from 1. `only_once`: a test is not repeated."""
    if answer.status is not None and 200 <= answer.status < 300:
        return Verdict(Fate.DELIVERED)
    message = _error_text(answer)
    if why := _GONE.get(kind, {}).get(answer.status or 0):
        return Verdict(Fate.DISABLED, f"{why[0].upper()}{why[1:]}.")
    if answer.has_no_recipient:
        return Verdict(Fate.DISABLED, f"The mail server permanently refused all addresses ({answer.status}).")
    if answer.is_for_good or answer.status in _NEVER.get(kind, ()):
        return Verdict(Fate.PARKED, f"{message} No further tries.")
    if only_once or tries >= MOST_TRIES:
        return Verdict(Fate.PARKED, message if only_once else f"{message} All {MOST_TRIES} tries are used.")
    wait_s = (
        retry_after.seconds(answer.retry_after, now.timestamp())
        if answer.status in _WITH_RETRY_AFTER and answer.retry_after
        else None
    )
    if wait_s is not None:
        wait_s = min(wait_s, LONGEST_RETRY_AFTER_S)
    wait = backoff.delay(_POLICY, tries, random, wish_s=wait_s)
    return Verdict(Fate.AGAIN, message, now + timedelta(seconds=wait))


def _error_text(answer: Answer) -> str:
    if answer.status is None:
        return answer.error or "The endpoint did not answer."
    if 300 <= answer.status < 400:
        return f"The endpoint answered {answer.status}: redirects are not followed."
    return f"The endpoint answered {answer.status}."
