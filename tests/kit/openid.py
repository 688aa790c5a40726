"""A real OpenID provider (oidc-provider-mock) on a real port, and a person's way from the desk to it and back.

It checks PKCE, which the package does not, and can be turned against the desk.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import json
import logging
import threading
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

HOW_TO_GET_IT = "no authlib or oidc-provider-mock (pip install --require-hashes -r requirements-strict.txt)"
CLIENT, SECRET = "redrive", "s3cret+/ of the desk"
BASIC = "Basic " + base64.b64encode(b"redrive:s3cret%2B%2F+of+the+desk").decode()  # RFC 6749, 2.3.1
ROLES = "admin=platform; operator:shop=oncall; viewer:shop=staff; viewer:bank=staff"


class Provider:
    """`tamper(claims, header, key)` returns another ID token in place of the right one. `answers`: path -> status and body
    in place of the provider's own. `calls`: paths, in order.
    """

    def __init__(self):
        import flask
        from oidc_provider_mock._app import app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.tamper, self.answers, self.calls, self.challenges = None, {}, [], set()
        provider = app(require_nonce=True)
        self._provider, provider.wsgi_app = provider.wsgi_app, self._answer
        self._storage = None

        @provider.before_request
        def note_storage():
            self._storage = flask.g.oidc_provider_mock_storage

        self._server = make_server("127.0.0.1", 0, provider, threaded=True)
        self.issuer = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        httpx.get(self.issuer)

    def close(self):
        if self._thread.is_alive():
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def put_person(self, subject, **claims):
        assert httpx.put(f"{self.issuer}/users/{subject}", json=claims).status_code == 204

    def rotate_key(self):
        """Sign with another key from now on, publish only that, and return the one before."""
        before = self.key
        self._storage.jwk = type(self._storage.jwk).generate_key(is_private=True)
        return before

    @property
    def key(self):
        from joserfc.jwk import RSAKey

        return RSAKey.import_key(self._storage.jwk.as_dict(is_private=True))

    def _answer(self, environ, start_response):
        path = environ["PATH_INFO"]
        self.calls.append(path)
        if path in self.answers:
            return _send(start_response, *self.answers[path])
        if path == "/oauth2/authorize":
            query = parse_qs(environ["QUERY_STRING"])
            assert query["code_challenge_method"] == ["S256"]
            self.challenges |= set(query["code_challenge"])
        if path != "/oauth2/token":
            return self._provider(environ, start_response)
        form = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        environ["wsgi.input"] = io.BytesIO(form)
        verifier = parse_qs(form.decode())["code_verifier"][0]
        digest = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
        if digest not in self.challenges or environ.get("HTTP_AUTHORIZATION") != BASIC:
            return _send(start_response, 400, {"error": "invalid_grant"})
        heads = []
        tokens = json.loads(b"".join(self._provider(environ, lambda *head: heads.append(head))))
        if self.tamper is not None and "id_token" in tokens:
            header, claims = (json.loads(_bytes(part)) for part in tokens["id_token"].split(".")[:2])
            tokens["id_token"] = self.tamper(claims, header, self.key)
        return _send(start_response, int(heads[0][0].split()[0]), tokens)


def _send(start_response, status, body):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    start_response(f"{status} X", [("Content-Type", "application/json"), ("Content-Length", str(len(content)))])
    return [content]


def _bytes(part):
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def need_provider():
    if not all(importlib.util.find_spec(name) for name in ("authlib", "joserfc", "oidc_provider_mock")):
        pytest.skip(HOW_TO_GET_IT)


@pytest.fixture(scope="session")
def openid_server():
    need_provider()
    running = Provider()
    yield running
    running.close()


@pytest.fixture
def provider(openid_server, settings, db):
    """The provider, trusted by the desk, which has read nothing of it yet."""
    openid_server.tamper = None
    openid_server.answers.clear()
    openid_server.calls.clear()
    _trust(settings, openid_server)
    return openid_server


@pytest.fixture
def fresh_provider(settings, db):
    """A provider for one test, which may end it."""
    need_provider()
    running = Provider()
    _trust(settings, running)
    yield running
    running.close()


def _trust(settings, server):
    from dashboard.web import sign_on

    settings.REDRIVE = settings.REDRIVE | {
        "OIDC_ISSUER": server.issuer, "OIDC_CLIENT_ID": CLIENT, "OIDC_CLIENT_SECRET": SECRET, "OIDC_ROLES": ROLES,
        "OIDC_NAME": "Acme ID",
    }  # fmt: skip
    settings.AUTHENTICATION_BACKENDS = [*settings.AUTHENTICATION_BACKENDS, sign_on.BACKEND]
    sign_on._recorded.clear()
    sign_on._metadata.clear()


def go_to_provider(client, after="", subject="ann"):
    """Start a sign-in, agree at the provider, and return its answer: path and query of the callback."""
    started = client.get("/login/sign-on/", {"next": after})
    agreed = httpx.post(started["Location"], data={"sub": subject})
    assert agreed.status_code == 302, agreed.text
    parts = urlsplit(agreed.headers["Location"])
    return f"{parts.path}?{parts.query}"


def sign_in(client, after="", subject="ann"):
    return client.get(go_to_provider(client, after, subject))
