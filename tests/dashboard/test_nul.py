"""A NUL, which PostgreSQL takes in no text, is answered like any other text that is not there."""

from __future__ import annotations

import pytest
from django.urls import reverse

from tests.kit.failures import dead

pytestmark = pytest.mark.django_db
NUL = "a\x00b"


@pytest.mark.parametrize("qualifier", ["tenant", "queue", "worker", "group", "kwargs.order", "policy", "state"])
def test_the_completion_of_a_search(ann, qualifier):
    dead(1)
    assert ann.get(reverse("redrive:failure-complete"), {"q": f"{qualifier}:{NUL}"}).status_code == 200


@pytest.mark.parametrize(
    ("name", "sent", "status"),
    [
        ("group-rule-preview", {"kind": "merge", "groups": f"{NUL},c"}, 422),
        ("group-rule-preview", {"kind": "split", "groups": NUL, "by": NUL}, 422),
        ("group-rule-preview", {"kind": "ignore", "frame": NUL}, 200),
        ("group-rule-save", {"kind": "merge", "groups": f"{NUL},c"}, 409),
        ("group-bulk", {"act": "resolve", "groups": NUL}, 302),
        ("group-bulk", {"act": "undo", "receipt": NUL}, 302),
        ("failure-undo", {"key": NUL}, 302),
        ("failure-undo", {"key": f"failure:1@{NUL}"}, 302),
        ("failure-bulk", {"act": "discard", "q": f"tenant:{NUL}", "everything": "1", "reason": NUL}, 302),
    ],
)
def test_an_act(ann, name, sent, status):
    dead(1)
    assert ann.post(reverse(f"redrive:{name}"), sent).status_code == status
