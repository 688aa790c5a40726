"""The API object, and argument types shared by its calls. Each call invokes one service."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpRequest
from django.urls import reverse
from ninja import NinjaAPI, Path, Query, Schema
from ninja.operation import Operation
from ninja.security import HttpBearer
from pydantic import AfterValidator, AwareDatetime, ConfigDict, Field

from dashboard.web import moments
from dashboard.web.access import viewer_of_request
from dashboard.web.api import errors, shapes
from jobs_admin import config
from jobs_admin.core.text import representable, whole_number
from jobs_admin.models.access import Viewer
from jobs_admin.worker.versions import VERSION


class Token(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> Viewer | None:
        return viewer_of_request(request)


class _Api(NinjaAPI):
    """API whose description is built once per mount, because that takes half a second of processor time."""

    def get_openapi_operation_id(self, operation: Operation) -> str:
        """Return the name of the call, which is unique and independent of its module."""
        name: str = operation.view_func.__name__
        return name

    def get_openapi_schema(self, *, path_prefix: str | None = None, path_params: dict[str, Any] | None = None) -> Any:
        prefix = self.get_root_path(path_params or {}) if path_prefix is None else path_prefix
        described = self.__dict__.setdefault("_described", {})
        if prefix not in described:
            described[prefix] = super().get_openapi_schema(path_prefix=prefix)
        return described[prefix]


api = _Api(
    title="Redrive",
    version=VERSION,
    description="The failure desk for background jobs. Every call needs `Authorization: Bearer TOKEN`.",
    auth=Token(),
    urls_namespace="redrive:api",
    docs_url=None,  # its page loads scripts from other hosts, which the Content-Security-Policy blocks
    openapi_url="/openapi.json",
)
errors.install(api)

Text = Annotated[str, AfterValidator(representable)]
Moment = Annotated[AwareDatetime, AfterValidator(moments.sane)]
Limit = Annotated[int, Query(ge=1, le=500)]
Number = Annotated[int, Path(ge=1, lt=2**63)]
NO_CURSOR = "Invalid cursor: pass `next` from the previous page, unchanged"


def _cursor(text: str | None) -> str | None:
    """Parse a cursor. An invalid one must not silently mean page one: a program would page forever."""
    if text and whole_number(text) is None:
        raise ValueError(NO_CURSOR)
    return text


After = Annotated[str | None, Query(max_length=100), AfterValidator(_cursor)]
AfterQueue = Annotated[str | None, Query(max_length=400)]


class Body(Schema):
    model_config = ConfigDict(extra="forbid")  # a misspelt field must not be ignored silently


class Reason(Body):
    reason: Text = Field("", max_length=500)


REFUSALS = dict.fromkeys((401, 403, 404, 409, 422), shapes.Error)


def viewer_of(request: HttpRequest) -> Viewer:
    """Return the viewer of the token, which `door` has checked against the right in `@needs`."""
    viewer: Viewer = request.auth
    return viewer


def page_of(name: str, *args: object) -> str:
    """Return the absolute URL of a page, as reached from outside."""
    return config.page_url(reverse(name, args=args))
