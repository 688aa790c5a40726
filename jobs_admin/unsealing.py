"""The desk's counterpart of `worker/sealing.py`: its public key, and decryption of raw messages as they are filed."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from django.conf import settings

from jobs_admin.core.envelope import UNOPENABLE, Envelope, Unreadable
from jobs_admin.worker.sealing import INFO, KEY_BYTES, NONCE, key_id

_OF_THE_DESK = b"redrive report key 1"


def public_key() -> str:
    """Return the public key for workers (REDRIVE_PUBLIC_KEY), of the first of REDRIVE_PAYLOAD_KEYS."""
    return base64.urlsafe_b64encode(_public(_private(settings.REDRIVE_PAYLOAD_KEYS[0]))).decode()


def opened(envelope: Envelope) -> Envelope:
    """Return the envelope with its raw message decrypted. Raises Unreadable where no key of this desk opens the message."""
    if not envelope.sealed or envelope.raw is None:
        return envelope
    private = _by_id(tuple(settings.REDRIVE_PAYLOAD_KEYS)).get(envelope.sealed)
    if private is None:
        raise Unreadable(
            f"{UNOPENABLE}for key {envelope.sealed}, which belongs to none of REDRIVE_PAYLOAD_KEYS. Put back the key of that "
            "public key, and the report is filed. Then give workers the key that `manage.py public_key` prints now."
        )
    sender, body = envelope.raw[:KEY_BYTES], envelope.raw[KEY_BYTES:]
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(sender))
        key = HKDF(SHA256(), KEY_BYTES, salt=sender + _public(private), info=INFO).derive(shared)
        return replace(envelope, raw=ChaCha20Poly1305(key).decrypt(NONCE, body, INFO), sealed="")
    except (ValueError, InvalidTag) as error:
        raise Unreadable("its message is encrypted and was changed or truncated in transit: no key opens it") from error


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
