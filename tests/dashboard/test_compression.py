"""Pages travel compressed; live parts that did not change still cost nothing."""

from __future__ import annotations

import gzip

import brotli
import pytest

from dashboard.web.middleware.compression import in_brotli, in_gzip
from tests.kit.failures import bury
from tests.kit.groups import group
from tests.kit.pages import HTMX

GZIP = {"Accept-Encoding": "gzip"}
BROTLI = {"Accept-Encoding": "gzip, deflate, br, zstd"}


def test_a_page_is_compressed_on_request_and_reads_the_same(ann):
    bury(30, group=group())
    plain, packed = ann.get("/failures/"), ann.get("/failures/", headers=GZIP)
    assert packed["Content-Encoding"] == "gzip" and "Accept-Encoding" in packed["Vary"]
    assert len(packed.content) * 4 < len(plain.content)
    text = gzip.decompress(packed.content).decode()
    assert text.count("data-row=") == 30 and "Content-Encoding" not in plain


def test_who_takes_brotli_gets_brotli(ann):
    bury(30, group=group())
    packed = ann.get("/failures/", headers=BROTLI)
    assert packed["Content-Encoding"] == "br" and "Accept-Encoding" in packed["Vary"]
    assert brotli.decompress(packed.content).decode().count("data-row=") == 30


@pytest.mark.parametrize("takes", ["", "identity", "deflate", "gzip;q=0, br;q=0", "xbr"])
def test_who_takes_neither_gets_it_plain(ann, takes):
    assert "Content-Encoding" not in ann.get("/failures/", headers={"Accept-Encoding": takes})


@pytest.mark.parametrize("takes", [GZIP, BROTLI])
def test_its_length_shows_nothing_because_it_is_padded_at_random(ann, takes):
    bury(3)
    lengths = [len(ann.get("/failures/", headers=takes).content) for _ in range(20)]
    assert max(lengths) - min(lengths) > 30


@pytest.mark.parametrize("content", [b"x" * 200, bytes(range(256)) * 400, "é\u202e".encode() * 5_000])
def test_padding_changes_nothing_of_what_is_read(content):
    for _ in range(150):
        assert brotli.decompress(in_brotli(content)) == gzip.decompress(in_gzip(content)) == content


def test_a_compressed_part_that_did_not_change_is_answered_with_not_modified(ann):
    bury(3, group=group())
    first = ann.get("/groups/", headers=HTMX | GZIP)
    assert first["Content-Encoding"] == "gzip" and first["ETag"].startswith('W/"')
    again = ann.get("/groups/", headers=HTMX | GZIP | {"If-None-Match": first["ETag"]})
    assert again.status_code == 304 and not again.content
