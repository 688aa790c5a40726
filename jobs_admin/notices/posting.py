"""One request to one endpoint, and what came back: within 15 seconds in all, and never more than was asked for."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import certifi
import httpcore

from jobs_admin.core.text import representable
from jobs_admin.core.web_address import Allowed, WebAddress
from jobs_admin.notices import guard

LONGEST_S = 15.0
_AFTER_SUCCESS_S = 2.0  # for the body of an answer that has said "taken" already
_MOST_READ = 64 * 1024
_MOST_TEXT = 2_000  # bytes of UTF-8
_AGENT = "Redrive/1"


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
    status: int | None  # None: there was none, `error` says why
    text: str = ""  # the beginning of its body
    error: str = ""  # why there was none
    retry_after: str = ""  # the header, as it came
    took_ms: int = 0
    is_for_good: bool = False  # of a mail server: the same mail will never be taken
    has_no_recipient: bool = False  # of a mail server: it knows none of the addresses, and never will


def send(request: Request, allowed: Allowed, resolve: guard.Resolve | None = None) -> Answer:
    """Ask, within LONGEST_S. A redirect is an answer like any other, and compressed bodies are not opened.

    httpcore, not httpx: it knows no redirects, cookies, proxies of the environment or decompression.
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
    # Whoever has said how it stands has answered, whatever became of the rest.
    return Answer(
        status,
        _read_text(body[:_MOST_READ], headers.get("content-encoding", "")),
        error if status is None else "",
        headers.get("retry-after", "")[:200],
        round((time.monotonic() - began) * 1000),
    )


@cache
def _trust() -> ssl.SSLContext:
    """The authorities of the system, SSL_CERT_FILE among them, and those that come with certifi."""
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
