"""The columns of the failure list that a person chose. Which columns exist, the page knows: here they are names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from django.db import transaction

from jobs_admin.core.refused import Refused
from jobs_admin.db import audit
from jobs_admin.db.authorizing import authorize
from jobs_admin.models import ListColumns
from jobs_admin.models.access import VIEWER, Viewer

MOST = 8
_NAME = re.compile(r"[a-z][a-z_]{0,39}")


def read(viewer: Viewer) -> list[str]:
    """Return the names of the chosen columns; empty for the default ones."""
    found = (
        ListColumns.objects.filter(user_id=viewer.user_id) if viewer.user_id is not None else ListColumns.objects.none()
    )
    return found.values_list("names", flat=True).first() or []


def choose(viewer: Viewer, names: Sequence[str]) -> None:
    """Store the columns; an empty choice is the default ones. Raises Refused."""
    authorize(
        viewer, VIEWER, None, "columns.choose", "columns", message="Your role does not allow this. Nothing was changed."
    )
    if viewer.user_id is None:
        raise Refused("invalid", "A token has no columns of its own. Nothing was changed.")
    wanted = parse(names)
    with transaction.atomic():
        before = read(viewer)
        if wanted:
            ListColumns.objects.update_or_create(user_id=viewer.user_id, defaults={"names": wanted})
        else:
            ListColumns.objects.filter(user_id=viewer.user_id).delete()
        audit.record(viewer, "columns.choose", "columns", before={"names": before}, after={"names": wanted})


def parse(names: Sequence[str]) -> list[str]:
    """Return the names, each once. Raises Refused for more than MOST, and for what is no name."""
    found = list(dict.fromkeys(names))
    if len(found) > MOST or not all(_NAME.fullmatch(one) for one in found):
        raise Refused("invalid", f"Choose at most {MOST} columns. Nothing was changed.", "columns")
    return found
