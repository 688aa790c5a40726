"""The content security policy, the same for every page and therefore rendered once."""

from __future__ import annotations

from urllib.parse import urlsplit

from csp.constants import HEADER, NONE, SELF
from csp.utils import build_policy
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from django.utils.deprecation import MiddlewareMixin
from django.utils.functional import cached_property

DIRECTIVES = {
    "default-src": [NONE],
    "script-src": [SELF],
    "style-src": [SELF],
    "img-src": [SELF, "data:"],
    "font-src": [SELF],
    "connect-src": [SELF],
    "form-action": [SELF],
    "frame-ancestors": [NONE],
    "base-uri": [NONE],
    "object-src": [NONE],
}
_OF_STATIC_FILES = ("script-src", "style-src", "img-src", "font-src", "connect-src")


class PolicyMiddleware(MiddlewareMixin):
    """Middleware that sets the policy on every response; static files may come from the host of STATIC_URL.

    No view changes it: there are no exemptions and no nonces.
    """

    @cached_property
    def policy(self) -> str:
        parts = urlsplit(settings.STATIC_URL)
        if not parts.netloc:
            return build_policy(config=DIRECTIVES)
        origin = f"{parts.scheme}://{parts.netloc}" if parts.scheme else parts.netloc
        return build_policy(config=DIRECTIVES | {name: [*DIRECTIVES[name], origin] for name in _OF_STATIC_FILES})

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        response.headers[HEADER] = self.policy
        return response
