"""The calls for saved views. Fields may be added, and none is removed."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Schema, Status
from pydantic import Field

from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import REFUSALS, Body, Number, Text, api
from dashboard.web.links import view_url
from jobs_admin import config
from jobs_admin.failures import saved_views
from jobs_admin.models import SavedView
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer


class ViewItem(Schema):
    id: int
    name: str
    q: str  # as it was written: relative times stay relative
    columns: list[str]  # of the failure list: error, where, tenant, state, attempts, time, first, release, worker, job
    owner: str | None  # null: made by a token
    is_shared: bool
    count: int  # what it holds now, for who asks
    count_is_capped: bool
    count_is_estimate: bool
    url: str


Columns = Annotated[
    list[Text], Field(max_length=saved_views.MOST_COLUMNS)
]  # names of the failure list's; empty: the reader's own


class NewView(Body):
    name: Text = Field(min_length=1, max_length=saved_views.LONGEST_NAME)
    q: Text = ""
    columns: Columns = []
    is_shared: bool = True


class ViewChange(Body):
    name: Text | None = Field(None, min_length=1, max_length=saved_views.LONGEST_NAME)
    q: Text | None = None
    columns: Columns | None = None
    is_shared: bool | None = None


def _answer(viewer: Viewer, view: SavedView) -> dict[str, Any]:
    counted = saved_views.count(viewer, view)
    return {
        "id": view.pk,
        "name": view.name,
        "q": view.query,
        "owner": view.owner.get_username() if view.owner else None,
        "columns": view.columns,
        "is_shared": view.is_shared,
        "count": counted.number,
        "count_is_capped": counted.is_capped,
        "count_is_estimate": counted.is_estimate,
        "url": config.page_url(view_url(view.query, view.columns)),
    }


@api.get("/views", response={200: shapes.Listed[ViewItem], **REFUSALS}, tags=["views"])
@needs(VIEWER)
def list_saved_views(request: HttpRequest) -> Any:
    """Return shared views with their current counts."""
    viewer: Viewer = request.auth
    views = saved_views.listing(viewer)
    return {"items": [_answer(viewer, view) for view in views], "next": None, "count": len(views)}


@api.post("/views", response={201: ViewItem, **REFUSALS}, tags=["views"])
@needs(OPERATOR)
def create_saved_view(request: HttpRequest, body: NewView) -> Any:
    """Save a search as a view, shared with everyone on the desk."""
    values = {"name": body.name, "query": body.q, "columns": body.columns, "is_shared": body.is_shared}
    made = saved_views.save(request.auth, **values)
    return Status(201, _answer(request.auth, made))


@api.patch("/views/{view_id}", response={200: ViewItem, **REFUSALS}, tags=["views"])
@needs(OPERATOR)
def change_saved_view(request: HttpRequest, view_id: Number, body: ViewChange) -> Any:
    given = body.model_dump(exclude_unset=True, exclude_none=True)
    changes = {("query" if name == "q" else name): value for name, value in given.items()}
    view = saved_views.get(request.auth, view_id)
    return _answer(request.auth, saved_views.change(request.auth, view, changes))


@api.delete("/views/{view_id}", response={204: None, **REFUSALS}, tags=["views"])
@needs(OPERATOR)
def delete_saved_view(request: HttpRequest, view_id: Number) -> Any:
    saved_views.delete(request.auth, saved_views.get(request.auth, view_id))
    return Status(204, None)
