"""The desk's counterpart of `worker/sealing.py`: its public key, and decryption of raw messages as they are filed.

Each payload key has an id, the one that its public key has in reports: eight hex characters that reveal nothing of the
key.
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
# The key of the one message that is being read, where it was stored beside the message (`raw_entries`).
_stored_key: ContextVar[bytes | None] = ContextVar("stored_key", default=None)


def public_key() -> str:
    """Return the public key for workers (REDRIVE_PUBLIC_KEY), of the first of REDRIVE_PAYLOAD_KEYS."""
    return base64.urlsafe_b64encode(_public(_private(config.setting("PAYLOAD_KEYS")[0]))).decode()


def key_ids() -> tuple[str, ...]:
    """Return the ids of REDRIVE_PAYLOAD_KEYS in their order: the first encrypts, all decrypt."""
    return tuple(_by_id(tuple(config.setting("PAYLOAD_KEYS"))))


def payload_key_id(key: str) -> str:
    """Return the id of one payload key, which reveals nothing about the key."""
    return key_id(_public(_private(key)))


def ciphers() -> Mapping[str, Fernet]:
    """Return what each of REDRIVE_PAYLOAD_KEYS encrypts with, by its id, in their order."""
    return _ciphers(tuple(config.setting("PAYLOAD_KEYS")))


def opened(envelope: Envelope) -> Envelope:
    """Return the envelope with its raw message decrypted. Raises Unreadable where no key of this desk opens the message."""
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
    """Return the key of the sealed message in an entry of any version; None where it is not sealed, or no key of this desk opens it."""
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
    """Let `opened` use this key for the one message that is read meanwhile; None: those of the desk, as ever."""
    before = _stored_key.set(key)
    try:
        yield
    finally:
        _stored_key.reset(before)


def _message_key(name: str, raw: bytes) -> bytes | None:
    """Return what the message was encrypted with, for the payload key of this id; None where that key is not configured.

    Raises ValueError where the message does not begin with a public key.
    """
    private = _by_id(tuple(config.setting("PAYLOAD_KEYS"))).get(name)
    if private is None:
        return None
    sender = raw[:KEY_BYTES]
    shared = private.exchange(X25519PublicKey.from_public_bytes(sender))
    return HKDF(SHA256(), KEY_BYTES, salt=sender + _public(private), info=INFO).derive(shared)


@cache
def _private(payload_key: str) -> X25519PrivateKey:
    """Return the private key derived from the key that encrypts messages at rest: there is no second secret to store."""
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
