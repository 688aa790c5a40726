"""The parts that a signature covers, and which texts are keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_admin.core.envelope import LOST
from jobs_admin.core.report_signature import KEY, SIGNATURE, BadSourceKey, SigningKey, is_signed_with, sign

SHOP = SigningKey("shop", "0123456789ab", bytes(range(32)))
ENTRY = {b"v": b"1", b"meta": b'{"source": "shop"}', b"raw": b"\x00\xff", b"trace": b"no"}


def test_a_signed_entry_is_the_same_with_two_fields_more():
    signed = sign(ENTRY, SHOP)
    assert signed | ENTRY == signed and signed.keys() - ENTRY.keys() == {KEY, SIGNATURE}
    assert is_signed_with(signed, SHOP)


def test_the_signature_is_the_same_in_every_version():
    """Workers and desk are upgraded apart: what is signed, and how, must not change under the same format."""
    assert sign(ENTRY, SHOP)[SIGNATURE] == b"97c7da2258ba38db6e525d3c7863248a1a760476e2b01548f1a71afcb376bef1"


@pytest.mark.parametrize("field", [*ENTRY, KEY, SIGNATURE])
def test_an_entry_of_which_a_field_was_changed_or_taken_out_is_not_signed(field):
    signed = sign(ENTRY, SHOP)
    assert not is_signed_with({**signed, field: signed[field] + b" "}, SHOP)
    assert not is_signed_with({name: value for name, value in signed.items() if name != field}, SHOP)


def test_an_entry_with_a_field_more_is_not_signed_but_for_what_the_desk_adds():
    assert not is_signed_with({**sign(ENTRY, SHOP), b"more": b""}, SHOP)
    assert is_signed_with({**sign(ENTRY, SHOP), LOST: b"{}"}, SHOP)


@pytest.mark.parametrize(
    "other",
    [SigningKey("shop", SHOP.id, bytes(32)), SigningKey("bank", SHOP.id, SHOP.secret)],
    ids=["secret", "source"],
)
def test_another_key_signs_otherwise(other):
    assert not is_signed_with(sign(ENTRY, SHOP), other)


@given(st.dictionaries(st.binary(max_size=3), st.binary(max_size=3), max_size=4), st.data())
def test_no_two_entries_have_one_signature(entry, data):
    """Also not where the end of one field is the beginning of the next."""
    other = data.draw(st.dictionaries(st.binary(max_size=3), st.binary(max_size=3), max_size=4))
    of_both = (
        {name: value for name, value in one.items() if name not in (KEY, SIGNATURE, LOST)} for one in (entry, other)
    )
    one, two = of_both
    assert (sign(one, SHOP)[SIGNATURE] == sign(two, SHOP)[SIGNATURE]) == (one == two)


def test_a_key_is_read_as_it_is_written_and_not_shown_by_chance():
    text = str(SHOP)
    assert SigningKey.parse(f" {text}\n") == SHOP and text.startswith("redrive.shop.0123456789ab.")
    assert "secret" not in repr(SHOP) and text.rpartition(".")[2] not in repr(SHOP)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        str(SHOP)[:-1],
        f"{SHOP}A",
        f"{SHOP}.x",
        str(SHOP).replace("shop", "No Source"),
        str(SHOP).replace("0123", "XYZ0"),
    ],
)
def test_what_is_no_key_is_refused_without_being_repeated(text):
    with pytest.raises(BadSourceKey) as refused:
        SigningKey.parse(text)
    assert not text or text not in str(refused.value)
