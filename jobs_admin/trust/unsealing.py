"""Decryption of raw messages as reports are filed, the counterpart of `worker/sealing.py`, and the public key for it.

The id of a payload key, eight hex characters that reveal nothing about the key, identifies its public key in reports.

A report stored raw (`Unfiled`) is one document, including the key of its message if a worker sealed that. The document
is encrypted only with the current payload key, even if the worker sealed the message for an older one.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cache

from cryptography.exceptions import InvalidTag
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from jobs_admin import config
from jobs_admin.core.envelope import UNOPENABLE, Envelope, Unreadable
from jobs_admin.installation import COMMAND
from jobs_admin.worker.sealing import INFO, KEY_BYTES, NONCE, key_id

_OF_THE_DESK = b"redrive report key 1"
# Key of the message being read, if it was stored beside the message (`raw_entries`).
_stored_key: ContextVar[bytes | None] = ContextVar("stored_key", default=None)


def public_key() -> str:
    """Return the public key for workers (REDRIVE_PUBLIC_KEY), that of the first of REDRIVE_PAYLOAD_KEYS."""
    return base64.urlsafe_b64encode(_public(_private(config.setting("PAYLOAD_KEYS")[0]))).decode()


def key_ids() -> tuple[str, ...]:
    """Return the ids of REDRIVE_PAYLOAD_KEYS in order: the first encrypts, all decrypt."""
    return tuple(_by_id(tuple(config.setting("PAYLOAD_KEYS"))))


def payload_key_id(key: str) -> str:
    """Return the id of a payload key, which reveals nothing about the key."""
    return key_id(_public(_private(key)))


def ciphers() -> Mapping[str, Fernet]:
    """Return id -> cipher of each of REDRIVE_PAYLOAD_KEYS, in order."""
    return _ciphers(tuple(config.setting("PAYLOAD_KEYS")))


def opened(envelope: Envelope) -> Envelope:
    """Return the envelope with its raw message decrypted. Raises Unreadable if no key of this desk decrypts it."""
    if not envelope.sealed or envelope.raw is None:
        return envelope
    try:
        key = _stored_key.get() or _message_key(envelope.sealed, envelope.raw)
    except ValueError as error:
        raise Unreadable(_CHANGED) from error
    if key is None:
        raise Unreadable(
            f"{UNOPENABLE}for key {envelope.sealed}, which belongs to none of REDRIVE_PAYLOAD_KEYS. Put back the key of that "
            f"public key, and the report is filed. Then give workers the key that `{COMMAND} public_key` prints now."
        )
    try:
        return replace(envelope, raw=ChaCha20Poly1305(key).decrypt(NONCE, envelope.raw[KEY_BYTES:], INFO), sealed="")
    except (ValueError, InvalidTag) as error:
        raise Unreadable(_CHANGED) from error


_CHANGED = "its message is encrypted and was changed or truncated in transit: no key opens it"


def message_key(entry: Mapping[bytes, bytes]) -> bytes | None:
    """Return the key of the sealed message in an entry of any version.

    None if the message is not sealed, or no key of this desk decrypts it.
    """
    try:
        meta, raw = json.loads(entry[b"meta"]), entry[b"raw"]
        key = _message_key(meta["sealed"], raw)
        if key is not None:
            ChaCha20Poly1305(key).decrypt(NONCE, raw[KEY_BYTES:], INFO)
    except (KeyError, TypeError, ValueError, RecursionError, InvalidTag):
        return None
    return key


@contextmanager
def stored_key(key: bytes | None) -> Iterator[None]:
    """Make `opened` use this key for the message read within the context; None: the keys of the desk."""
    before = _stored_key.set(key)
    try:
        yield
    finally:
        _stored_key.reset(before)


def _message_key(name: str, raw: bytes) -> bytes | None:
    """Return the key that encrypted the message, for the payload key of this id; None if that key is not configured.

    Raises ValueError if the message does not begin with a public key.
    """
    private = _by_id(tuple(config.setting("PAYLOAD_KEYS"))).get(name)
    if private is None:
        return None
    sender = raw[:KEY_BYTES]
    shared = private.exchange(X25519PublicKey.from_public_bytes(sender))
    return HKDF(SHA256(), KEY_BYTES, salt=sender + _public(private), info=INFO).derive(shared)


@cache
def _private(payload_key: str) -> X25519PrivateKey:
    """Return the private key, derived from the key that encrypts stored messages, so that there is no second secret."""
    secret = HKDF(SHA256(), KEY_BYTES, salt=None, info=_OF_THE_DESK).derive(base64.urlsafe_b64decode(payload_key))
    return X25519PrivateKey.from_private_bytes(secret)


def _public(private: X25519PrivateKey) -> bytes:
    return private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


@cache
def _by_id(payload_keys: tuple[str, ...]) -> Mapping[str, X25519PrivateKey]:
    return {key_id(_public(private)): private for private in map(_private, payload_keys)}


@cache
def _ciphers(payload_keys: tuple[str, ...]) -> Mapping[str, Fernet]:
    return {key_id(_public(_private(key))): Fernet(key) for key in payload_keys}


_MESSAGE_KEY = ""  # not used by any field of an entry


def encode_entry(fields: Mapping[bytes, bytes], key: bytes | None = None) -> bytes:
    """Return the fields of an entry byte for byte, with the key of its message: `key`, or the one this desk finds."""
    encoded = {name.decode("latin-1"): value for name, value in fields.items()}
    if key := key or message_key(fields):
        encoded[_MESSAGE_KEY] = key
    return json.dumps({name: base64.b64encode(value).decode() for name, value in encoded.items()}).encode()


def entry_size(fields: Mapping[bytes, bytes]) -> int:
    """Return the size of an entry in bytes, including the names of fields, which its writer chooses."""
    return sum(len(name) + len(value) for name, value in fields.items())


def entry_head(fields: Mapping[bytes, bytes], most: int) -> dict[bytes, bytes]:
    """Return the fields truncated to `most` bytes in total, short ones first, because they identify the entry."""
    found: dict[bytes, bytes] = {}
    for name, value in sorted(fields.items(), key=lambda field: len(field[0]) + len(field[1])):
        if len(name) >= most:
            continue
        found[name] = value[: most - len(name)]
        most -= len(name) + len(found[name])
    return found


def decode_entry(document: bytes) -> tuple[dict[bytes, bytes], bytes | None]:
    """Return the fields of the entry, and the key of its message if stored. Raises ValueError."""
    encoded = {name: base64.b64decode(value) for name, value in json.loads(document).items()}
    key = encoded.pop(_MESSAGE_KEY, None)
    return {name.encode("latin-1"): value for name, value in encoded.items()}, key


def with_message_key(document: bytes) -> bytes:
    """Return the same document with the key of its message, if this desk finds one and the document has none."""
    try:
        fields, key = decode_entry(document)
    except (ValueError, TypeError, AttributeError):
        return document
    return document if key is not None else encode_entry(fields)
