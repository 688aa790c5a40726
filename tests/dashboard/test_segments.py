from __future__ import annotations

from urllib.parse import unquote, urlsplit

import pytest
from django.urls import Resolver404, resolve, reverse
from hypothesis import given
from hypothesis import strategies as st

from jobs_admin.core.path_segment import escaped, name_of

NAMES = [
    "",
    "emails",
    "a/b",
    "..",
    ".",
    "../../x",
    "a%2Fb",
    "~",
    "~2F",
    "-",
    " ",
    "q?x=1#y",
    "a\\b",
    "ä/ö",
    "🙂",
    "x" * 200,
]


@given(st.text(max_size=200).filter(lambda name: name.isprintable() or True))
def test_any_name_survives_the_way_there_and_back(name):
    try:
        name.encode()
    except UnicodeEncodeError:
        return
    assert name_of(escaped(name)) == name and not set("/?#%\\ ") & set(escaped(name))


@given(st.text(max_size=30), st.text(max_size=30))
def test_two_names_never_share_a_segment(one, other):
    try:
        assert (escaped(one) == escaped(other)) == (one == other)
    except UnicodeEncodeError:
        return


@pytest.mark.parametrize("name", NAMES)
def test_the_address_of_a_queue_leads_to_that_queue(name):
    address = reverse("redrive:queue-detail", args=["shop", name])
    assert urlsplit(address).path == address and ".." not in address.split("/")
    assert resolve(unquote(address)).kwargs == {"source": "shop", "queue": name}


@pytest.mark.parametrize("segment", ["a~2fb", "a~41", "~~", "a~", "~zz", ".", "~FF", "a b", "~2"])
def test_what_no_name_is_written_as_leads_nowhere(segment):
    with pytest.raises(Resolver404):
        resolve(f"/queues/shop/{segment}/")
