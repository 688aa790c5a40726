"""Signatures of reports: HMAC-SHA256 with a key that the desk shares with the workers of one source.

key = SigningKey.parse("redrive.shop.3f9a1c2e77d0.…")
entry = sign(entry, key)     # in the worker, on the final report
is_signed_with(entry, key)   # on the desk
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from jobs_admin.core.envelope import LOST
from jobs_admin.core.keys import valid_source

KEY, SIGNATURE = b"key", b"sig"  # fields of an entry: the key's id, 64 hex characters
SECRET_BYTES = 32

_PREFIX = "redrive"
_PURPOSE = b"redrive report 1"
_ID = re.compile(r"[0-9a-f]{12}")


class BadSourceKey(ValueError):
    """The text is not a source key. The message gives the reason without the text; nothing was changed."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """Key of a source. `str(key)` is the secret text for workers."""

    source: str
    id: str
    secret: bytes = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> SigningKey:
        """Return the key in `redrive.SOURCE.ID.SECRET`. Raises BadSourceKey."""
        prefix, source, key_id, secret = (text.strip().split(".") + [""] * 4)[:4]
        if prefix != _PREFIX or not valid_source(source) or not _ID.fullmatch(key_id) or text.count(".") != 3:
            raise BadSourceKey("not a key printed by Redrive's command source-key create")
        try:
            found = base64.b64decode(f"{secret}=", altchars=b"-_", validate=True)
        except binascii.Error:
            found = b""
        if len(found) != SECRET_BYTES:
            raise BadSourceKey("not a complete key printed by Redrive's command source-key create")
        return cls(source, key_id, found)

    def __str__(self) -> str:
        secret = base64.urlsafe_b64encode(self.secret).decode().rstrip("=")
        return f"{_PREFIX}.{self.source}.{self.id}.{secret}"


def is_key_id(text: str) -> bool:
    """Return whether this is a valid id of a source key."""
    return _ID.fullmatch(text) is not None


def sign(entry: Mapping[bytes, bytes], key: SigningKey) -> dict[bytes, bytes]:
    """Return the entry with the key's id and a signature over all fields."""
    named = {**entry, KEY: key.id.encode()}
    return {**named, SIGNATURE: _signature(named, key)}


def is_signed_with(entry: Mapping[bytes, bytes], key: SigningKey) -> bool:
    """Return whether the entry is signed with this key and unchanged since."""
    return hmac.compare_digest(entry.get(SIGNATURE, b""), _signature(entry, key))


def _signature(entry: Mapping[bytes, bytes], key: SigningKey) -> bytes:
    mac = hmac.new(key.secret, _PURPOSE, hashlib.sha256)
    _add(mac, key.source.encode())
    for name in sorted(entry):
        # The desk adds the time and reason of a lost job, which the dead worker could not sign.
        if name not in (SIGNATURE, LOST):
            _add(mac, name)
            _add(mac, entry[name])
    return mac.hexdigest().encode()


def _add(mac: hmac.HMAC, part: bytes) -> None:
    """Add a part with its length, so that different entries never give the same input."""
    mac.update(len(part).to_bytes(8, "big"))
    mac.update(part)
