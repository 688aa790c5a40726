"""API shapes of saved views. Fields may be added, and none is removed."""

from __future__ import annotations

from ninja import Schema


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
