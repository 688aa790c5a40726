"""Trigram filters: a test of which texts can contain a substring.

A trigram is three consecutive bytes of a text's UTF-8, with A–Z as a–z. A filter has a few bits for each trigram of
some texts, at positions given by a hash (a Bloom filter). A text that contains a substring has all its trigrams: if the
filter lacks one, none of its texts contains the substring. If it has all, the texts are compared. A filter does not
reveal its texts.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass

VERSION = 1  # of these rules: filters of another version are rebuilt

_LENGTH = 3  # bytes
_BITS = 6  # per trigram: 8 % of all filters have a given trigram that is not in their texts
_STEP = 32  # a filter's size is a multiple of these bytes, so that few sizes occur
_ONE = ord("1")
_HALF, _LOW = 15, 0x7FFF  # bits of a hash; its second position has the halves swapped


def _table(seed: str) -> tuple[int, ...]:
    """Return a 30-bit number for each byte: Python processes those fastest."""
    return tuple(n >> 2 for n in struct.unpack("<256I", hashlib.shake_128(seed.encode()).digest(1_024)))


_FIRST, _MIDDLE, _LAST = (_table(seed) for seed in ("first", "middle", "last"))


def hash_trigrams(texts: Iterable[str]) -> set[int]:
    """Return the hash of each trigram in these texts."""
    found: set[tuple[int, int, int]] = set()
    for text in texts:
        folded = text.encode("utf-8", "surrogatepass").lower()  # on bytes: only A–Z change
        found.update(zip(folded, folded[1:], folded[2:], strict=False))
    first, middle, last = _FIRST, _MIDDLE, _LAST
    return {first[a] ^ middle[b] ^ last[c] for a, b, c in found}


def build_filter(texts: Iterable[str]) -> bytes:
    """Return the filter of these texts."""
    trigrams = hash_trigrams(texts)
    size = max(1, -(-len(trigrams) * _BITS // (8 * _STEP))) * _STEP
    bits = size * 8
    flags = bytearray(b"0") * bits
    for one in trigrams:
        flags[one % bits] = _ONE
        flags[(one >> _HALF | (one & _LOW) << _HALF) % bits] = _ONE
    return int(flags, 2).to_bytes(size, "big")


@dataclass(frozen=True, slots=True)
class Required:
    """Required trigrams, as hashes: all of `every`, and those of one side of each of `choices`."""

    every: frozenset[int] = frozenset()
    choices: tuple[tuple[Required, ...], ...] = ()


def require_all(of: Iterable[Required | None]) -> Required | None:
    """Return what all of these require; None if they require nothing."""
    found = [one for one in of if one is not None]
    if not found:
        return None
    return Required(
        frozenset[int]().union(*(one.every for one in found)), tuple(side for one in found for side in one.choices)
    )


def require_any(of: Iterable[Required | None]) -> Required | None:
    """Return what any one of these requires; None if one of them requires nothing."""
    sides, found = list(of), list[Required]()
    for side in sides:
        if side is None:
            return None
        found.append(side)
    if not found:
        return None
    return found[0] if len(found) == 1 else Required(choices=(tuple(found),))


def build_test(required: Required) -> Callable[[bytes], bool]:
    """Return a function that tests whether a filter's texts may have what is required."""
    places: dict[int, list[tuple[int, int]]] = {}
    choices = [[build_test(side) for side in sides] for sides in required.choices]

    def may_have(found: bytes) -> bool:
        size = len(found)
        if (places_of_size := places.get(size)) is None:
            places_of_size = places[size] = _places(required.every, size)
        for at, mask in places_of_size:
            if not found[at] & mask:
                return False
        return all(any(test(found) for test in sides) for sides in choices)

    return may_have


def _places(trigrams: Iterable[int], size: int) -> list[tuple[int, int]]:
    """Return byte and bit of each trigram in a filter of `size` bytes."""
    bits = size * 8
    found = {place for one in trigrams for place in (one % bits, (one >> _HALF | (one & _LOW) << _HALF) % bits)}
    return [(place // 8, 128 >> place % 8) for place in sorted(found)]
