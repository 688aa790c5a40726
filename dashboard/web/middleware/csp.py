"""The content security policy: one for every page, so it is put into words once."""

from __future__ import annotations

from csp.constants import HEADER
from csp.utils import build_policy
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from django.utils.deprecation import MiddlewareMixin
from django.utils.functional import cached_property


class PolicyMiddleware(MiddlewareMixin):
    """CONTENT_SECURITY_POLICY on every answer. No view changes it: there are no exemptions and no nonces."""

    @cached_property
    def policy(self) -> str:
        return build_policy(config=settings.CONTENT_SECURITY_POLICY["DIRECTIVES"])

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        response.headers[HEADER] = self.policy
        return response
