"""Encryption of raw messages for the desk before they leave the worker (REDRIVE_PUBLIC_KEY, library `cryptography`).

Each message has its own key: X25519 between a new key pair and the desk's public key, HKDF (SHA-256),
ChaCha20-Poly1305. Only the desk can decrypt it (`jobs_admin/trust/unsealing.py`); the worker cannot. The copy to show
is redacted, not encrypted.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import replace

from jobs_admin.core.envelope import Envelope

VARIABLE = "REDRIVE_PUBLIC_KEY"
INFO = b"redrive raw message 1"
KEY_BYTES = 32
NONCE = bytes(12)  # each key encrypts one message

Seal = Callable[[Envelope], Envelope]


class BadPublicKey(ValueError):
    """REDRIVE_PUBLIC_KEY cannot be used. The message gives the reason; nothing was changed."""


def key_id(public: bytes) -> str:
    """Return the id of a public key in reports: eight hex characters."""
    return hashlib.sha256(public).hexdigest()[:8]


def id_of(public_key: str) -> str:
    """Return the id of a public key for `sealer`; "" for none."""
    return key_id(_bytes_of(public_key)) if public_key else ""


def unsealed(envelope: Envelope) -> Envelope:
    """Return the envelope unchanged: no public key is set."""
    return envelope


def sealer(public_key: str) -> Seal:
    """Return the function that encrypts an envelope's raw message.

    `public_key`: printed by `manage.py public_key`; "" encrypts nothing.

    Raises BadPublicKey.
    """
    if not public_key:
        return unsealed
    try:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    except ImportError as error:
        raise BadPublicKey(f"{VARIABLE} is set, but the library cryptography is not installed") from error
    try:
        public = _bytes_of(public_key)
        desk = X25519PublicKey.from_public_bytes(public)
    except ValueError as error:
        raise BadPublicKey(f"{VARIABLE} is not a key as Redrive's command public_key prints it") from error
    name = key_id(public)

    def seal(envelope: Envelope) -> Envelope:
        if envelope.raw is None:
            return envelope
        own = X25519PrivateKey.generate()
        sender = own.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        key = HKDF(SHA256(), KEY_BYTES, salt=sender + public, info=INFO).derive(own.exchange(desk))
        return replace(envelope, raw=sender + ChaCha20Poly1305(key).encrypt(NONCE, envelope.raw, INFO), sealed=name)

    return seal


def _bytes_of(public_key: str) -> bytes:
    return base64.b64decode(public_key.strip(), altchars=b"-_", validate=True)
