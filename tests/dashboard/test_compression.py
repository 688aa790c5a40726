"""Pages travel compressed; live parts that did not change still cost nothing."""

from __future__ import annotations

import gzip

from tests.dashboard.conftest import HTMX, bury, group

GZIP = {"Accept-Encoding": "gzip"}


def test_a_page_is_compressed_for_who_asks_for_it_and_reads_the_same(ann):
    bury(30, group=group())
    plain, packed = ann.get("/failures/"), ann.get("/failures/", headers=GZIP)
    assert packed["Content-Encoding"] == "gzip" and "Accept-Encoding" in packed["Vary"]
    assert len(packed.content) * 4 < len(plain.content)
    text = gzip.decompress(packed.content).decode()
    assert text.count("data-row=") == 30 and "Content-Encoding" not in plain


def test_its_length_tells_nothing_because_it_is_padded_at_random(ann):
    bury(3)
    lengths = [len(ann.get("/failures/", headers=GZIP).content) for _ in range(20)]
    assert max(lengths) - min(lengths) > 30


def test_a_compressed_part_that_did_not_change_is_answered_with_not_modified(ann):
    bury(3, group=group())
    first = ann.get("/groups/", headers=HTMX | GZIP)
    assert first["Content-Encoding"] == "gzip" and first["ETag"].startswith('W/"')
    again = ann.get("/groups/", headers=HTMX | GZIP | {"If-None-Match": first["ETag"]})
    assert again.status_code == 304 and not again.content
