"""Secrets of channels: generated, encrypted with the desk's keys, decrypted to sign or to send."""

from __future__ import annotations

import base64
import binascii
import re
import secrets

from cryptography.fernet import InvalidToken

from jobs_admin import config

PREFIX = "whsec_"
_BYTES = 32
_LEAST, _MOST = 24, 64  # bytes, by Standard Webhooks 1.0


class CannotOpen(Exception):
    """No key of REDRIVE_PAYLOAD_KEYS decrypts it."""


def make() -> str:
    """Return a new secret of a signed webhook."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_BYTES)).decode()


def seal(secret: str) -> str:
    return config.payload_keys().encrypt(secret.encode()).decode()


def unseal(sealed: list[str]) -> list[str]:
    """Return the secrets, latest first. Raises CannotOpen."""
    try:
        return [config.payload_keys().decrypt(one.encode()).decode() for one in sealed]
    except InvalidToken as error:
        message = "The secret was encrypted with a key that is not in REDRIVE_PAYLOAD_KEYS. Enter the secret again."
        raise CannotOpen(message) from error


def is_signing_secret(text: str) -> bool:
    """Return whether the text is `whsec_` and 24 to 64 bytes in Base64."""
    if not re.fullmatch(r"whsec_[A-Za-z0-9+/]+={0,2}", text):
        return False
    try:
        return _LEAST <= len(base64.b64decode(text.removeprefix(PREFIX) + "==")) <= _MOST
    except binascii.Error:
        return False
