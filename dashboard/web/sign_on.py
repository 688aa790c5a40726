"""Sign-in with an OpenID provider (REDRIVE_OIDC_…): authorization-code flow with PKCE, by Authlib (`redrive[oidc]`).

Authlib is imported where it is used: a desk without it has no provider.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import quote_plus, urlsplit

from django.contrib.auth.backends import ModelBackend
from django.contrib.sessions.backends.base import SessionBase
from django.db import transaction
from django.urls import reverse
from django.utils.crypto import constant_time_compare, get_random_string

from jobs_admin import config
from jobs_admin.core.desk_settings import is_safe_origin
from jobs_admin.core.text import terminal_line
from jobs_admin.db import audit
from jobs_admin.models.access import Viewer
from jobs_admin.rights.sign_on import ACT, Person

log = logging.getLogger(__name__)

SKEW_S = 60  # clock skew allowed between desk and provider
WITHIN_S = 600  # from the start of a sign-in to its answer
BACKEND = "dashboard.web.sign_on.Backend"
# Only signatures with the provider's private key. With HS256 its public key, or the desk's secret, would be the key;
# `none` has no key.
ALGORITHMS = [
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519",
]  # fmt: skip
_TIMEOUT_S = 5.0
_METADATA_CACHED_S, _DOWN_CACHED_S = 300.0, 10.0
_MOST_BYTES = 1_000_000
_STARTED = "sign_on"  # session key
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
# issuer -> time of reading (monotonic seconds), and the metadata or why there is none.
_metadata: dict[str, tuple[float, dict[str, Any] | str]] = {}
# Anyone can start a sign-in. While the provider is slow, a web process keeps a thread for everyone else.
_AT_ONCE = 2
_requests = threading.BoundedSemaphore(_AT_ONCE)
_WAIT_S = 0.3

# Limit of refusals in the audit that anyone can cause; the log has all of them.
_RECORDED = 100
_RECORDED_S = 900.0
_recorded: deque[float] = deque(maxlen=_RECORDED)


class Backend(ModelBackend):
    """Sessions of people who signed in at the provider. Accepts no password."""

    def authenticate(self, request: Any, username: str | None = None, password: str | None = None, **more: Any) -> None:
        return None


class SignOnError(Exception):
    """Failed sign-in. The text is the message for the page; `detail` is for the log."""

    def __init__(self, text: str, detail: str = "") -> None:
        super().__init__(text)
        self.detail = detail


class ProviderDown(SignOnError):
    """Provider that does not answer, or not as specified."""


def provider_name() -> str:
    return config.setting("OIDC_NAME") or urlsplit(config.setting("OIDC_ISSUER")).hostname or ""


def start(session: SessionBase, after: str) -> str:
    """Return the provider's URL where the sign-in continues, and store in the session what its answer must match."""
    from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
    from authlib.oauth2.rfc7636 import create_s256_code_challenge

    endpoint = read_metadata()["authorization_endpoint"]
    state, nonce, verifier = (get_random_string(48) for _ in range(3))
    session[_STARTED] = {"state": state, "nonce": nonce, "verifier": verifier, "after": after, "at": time.time()}
    # Anyone can start a session here; its row is deleted by a later start, once it has ended.
    session.set_expiry(WITHIN_S)
    session.clear_expired()
    return prepare_grant_uri(
        endpoint, config.setting("OIDC_CLIENT_ID"), "code", redirect_uri=_redirect_uri(),
        scope=config.setting("OIDC_SCOPES"), state=state, nonce=nonce,
        code_challenge=create_s256_code_challenge(verifier), code_challenge_method="S256",
    )  # fmt: skip


def finish(session: SessionBase, answer: Mapping[str, str]) -> tuple[Person, str]:
    """Return the person in the provider's answer, and the next page. Each started sign-in accepts one answer."""
    started = session.pop(_STARTED, None)
    is_in_time = started is not None and 0 <= time.time() - started["at"] <= WITHIN_S
    if not is_in_time or not constant_time_compare(started["state"], answer.get("state", "")):
        raise SignOnError(
            "This sign-in was not started in this browser, was used already, or took longer than 10 minutes. You were not "
            f"logged in. Open {config.setting('URL')} and sign in again."
        )
    metadata = read_metadata()
    issuer = answer.get("iss", "" if metadata.get("authorization_response_iss_parameter_supported") else None)
    if issuer is not None and issuer != config.setting("OIDC_ISSUER"):
        raise _refused(f"the answer is of issuer {issuer!r}")
    if not answer.get("code"):
        raise _refused(f"error {answer.get('error', '')!r}")
    tokens = _exchange(metadata, answer["code"], started["verifier"])
    claims = _verify(metadata, tokens, started["nonce"])
    return _person(_with_userinfo(metadata, tokens, claims)), started["after"]


def read_metadata() -> dict[str, Any]:
    """Return the provider's metadata, at most five minutes old; failures are cached for ten s. Raises SignOnError."""
    issuer = config.setting("OIDC_ISSUER")
    read_at, found = _metadata.get(issuer, (0.0, None))
    cached_s = _METADATA_CACHED_S if isinstance(found, dict) else _DOWN_CACHED_S
    if found is None or time.monotonic() - read_at > cached_s:
        try:
            found = _fetch_metadata(issuer)
        except ProviderDown as error:
            found = error.detail
        _metadata[issuer] = time.monotonic(), found
    if isinstance(found, str):
        raise ProviderDown(_DOWN, found)
    return found


def _fetch_metadata(issuer: str) -> dict[str, Any]:
    found = _read_json("GET", f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    if found.get("issuer") != issuer:
        raise ProviderDown(_DOWN, f"its issuer is {found.get('issuer')!r}, not {issuer!r} as in REDRIVE_OIDC_ISSUER")
    for name in _ENDPOINTS:
        _endpoint(found, name)
    return found


def record_refusal(error: SignOnError) -> None:
    """Log a refused sign-in, and record it in the audit."""
    detail = terminal_line(error.detail or str(error), 300)
    log.warning("A sign-in at %s was refused: %s", config.setting("OIDC_ISSUER"), detail)
    now = time.monotonic()
    if len(_recorded) < _RECORDED or now - _recorded[0] > _RECORDED_S:
        _recorded.append(now)
        with transaction.atomic():
            audit.record(Viewer("sign-on"), ACT, reason=detail, allowed=False)


_DOWN = (
    "The sign-in provider is unreachable or misconfigured. You were not logged in. Try again in a minute; an admin finds the "
    "reason with `doctor`."
)


def _refused(detail: str) -> SignOnError:
    text = "The provider’s answer was refused. You were not logged in. Sign in again; the reason is in the desk’s log and audit."
    return SignOnError(text, detail)


def _redirect_uri() -> str:
    # From the setting, not from the request's Host header, which the client chooses.
    return config.page_url(reverse("redrive:sign-on-callback"))


def _endpoint(metadata: Mapping[str, Any], name: str) -> str:
    """Return a URL of the metadata: it receives the secret and tokens, so it must use TLS or be on this machine."""
    url = metadata.get(name)
    if not isinstance(url, str) or not is_safe_origin(url):
        raise ProviderDown(_DOWN, f"its {name} is {url!r}, not an https:// address")
    return url


def _read_json(method: str, url: str, headers: Mapping[str, str] = MappingProxyType({}), **more: Any) -> dict[str, Any]:
    """Return the JSON object at a URL of the provider. Raises SignOnError if it refuses, otherwise ProviderDown."""
    import httpx

    if not _requests.acquire(timeout=_WAIT_S):
        text = "Too many people are signing in. You were not logged in. Try again in a moment."
        raise SignOnError(text, f"{_AT_ONCE} other sign-ins were waiting for {url}")
    content, until = b"", time.monotonic() + 2 * _TIMEOUT_S
    try:
        with (
            httpx.Client(timeout=_TIMEOUT_S, follow_redirects=False) as client,
            client.stream(method, url, headers={"Accept": "application/json"} | headers, **more) as answer,
        ):
            for chunk in answer.iter_bytes():
                content += chunk
                if len(content) > _MOST_BYTES or time.monotonic() > until:
                    raise ProviderDown(_DOWN, f"{url} answers with more than {_MOST_BYTES:,} bytes, or too slowly")
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # a token that is not a valid header value
        raise ProviderDown(_DOWN, f"{url} does not answer ({type(error).__name__})") from error
    finally:
        _requests.release()
    if method == "POST" and answer.status_code in {400, 401, 403}:
        raise _refused(f"{url} answers {answer.status_code}: {content[:200]!r}")
    if answer.status_code != 200:
        raise ProviderDown(_DOWN, f"{url} answers {answer.status_code}")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ProviderDown(_DOWN, f"{url} answers without JSON") from error
    if not isinstance(found, dict):
        raise ProviderDown(_DOWN, f"{url} answers with JSON that is not an object")
    return found


def _exchange(metadata: Mapping[str, Any], code: str, verifier: str) -> dict[str, Any]:
    """Return the tokens for a code, which the provider accepts only once."""
    client_id, secret = config.setting("OIDC_CLIENT_ID"), config.setting("OIDC_CLIENT_SECRET")
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": _redirect_uri(),
        "code_verifier": verifier,
    }
    ways = metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
    url = _endpoint(metadata, "token_endpoint")
    if "client_secret_basic" in ways:
        return _read_json("POST", url, data=form, auth=(quote_plus(client_id), quote_plus(secret)))
    return _read_json("POST", url, data=form | {"client_id": client_id, "client_secret": secret})


def _verify(metadata: Mapping[str, Any], tokens: Mapping[str, Any], nonce: str) -> dict[str, Any]:
    """Return the claims of the ID token after checking signature, issuer, audience, times and nonce."""
    from authlib.oidc.core import CodeIDToken
    from joserfc import jwt
    from joserfc.jwk import KeySet
    from joserfc.jws import JWSRegistry

    client_id = config.setting("OIDC_CLIENT_ID")
    # Read for each sign-in, so that new and revoked keys take effect at once.
    published = _read_json("GET", _endpoint(metadata, "jwks_uri"))
    options = {"iss": {"essential": True, "value": config.setting("OIDC_ISSUER")}}
    options |= {"aud": {"essential": True, "value": client_id}, "sub": {"essential": True}, "exp": {"essential": True}}
    try:
        keys = KeySet.import_key_set(published)  # type: ignore[arg-type]
        registry = JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
        token = jwt.decode(tokens["id_token"], keys, registry=registry)
        params = {"nonce": nonce, "client_id": client_id, "access_token": tokens.get("access_token")}
        claims = CodeIDToken(token.claims, token.header, options, params)
        claims.validate(leeway=SKEW_S)
    except Exception as error:  # keys and tokens can have any shape: whatever cannot be verified is refused
        raise _refused(f"the ID token is not valid: {type(error).__name__}: {error}") from error
    subject = claims["sub"]
    if (
        not isinstance(subject, str)
        or not subject.isascii()
        or not subject.isprintable()
        or not 0 < len(subject) <= 255
    ):
        raise _refused("the ID token’s subject is not 1 to 255 ASCII characters")
    return dict(claims)


def _with_userinfo(metadata: Mapping[str, Any], tokens: Mapping[str, Any], claims: dict[str, Any]) -> dict[str, Any]:
    """Return the claims, with those of the userinfo endpoint if the ID token has no groups."""
    if config.setting("OIDC_GROUPS_CLAIM") in claims or not metadata.get("userinfo_endpoint"):
        return claims
    bearer = {"Authorization": f"Bearer {tokens.get('access_token', '')}"}
    found = _read_json("GET", _endpoint(metadata, "userinfo_endpoint"), headers=bearer)
    if found.get("sub") != claims["sub"]:
        raise _refused("the userinfo endpoint answers for another subject")
    return found | claims


def _person(claims: Mapping[str, Any]) -> Person:
    groups = claims.get(config.setting("OIDC_GROUPS_CLAIM"))
    named = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
    names = [claims.get("preferred_username"), claims.get("email"), claims["sub"]]
    return Person(
        config.setting("OIDC_ISSUER"),
        claims["sub"],
        next(name for name in names if isinstance(name, str) and name.strip()),
        frozenset(group for group in named if isinstance(group, str)),
    )
