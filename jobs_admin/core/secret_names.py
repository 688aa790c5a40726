"""Which names say that their value is a secret: `password`, `apiKey`, `X-Auth-Token`, `mot_de_passe` …"""

from __future__ import annotations

import re

# Patterns are tried on the text in lower case, of the same length: that is three times faster than ignoring case.
LOWER = {code: code + 32 for code in range(65, 91)}
LOWER |= {0xFF21 + n: 97 + n for n in range(26)} | {0xFF41 + n: 97 + n for n in range(26)}  # full-width letters

# Compared with the name in lower case and without `_`, `-` and the like; sentry-sdk's list, and what it misses.
_PARTS = (
    "password", "passwd", "passphrase", "passcode", "passwort", "kennwort", "secret", "token", "apikey",
    "authorization", "cookie", "session", "csrf", "xsrf", "creditcard", "cardnumber", "privatekey", "accesskey",
    "accountkey", "clientkey", "fernet", "credential", "jwt", "bearer", "connectionstring", "signingkey",
    "encryptionkey", "masterkey", "sharedkey", "signature", "authcode", "mfacode", "securitycode", "verificationcode",
    "recoverycode", "backupcode", "twofactorcode", "securityanswer", "contrasena", "motdepasse", "senha", "wachtwoord",
    "haslo",
)  # fmt: skip
_PARTS_ELSEWHERE = ("contraseña", "hasło", "пароль", "密码", "密碼", "パスワード", "비밀번호")
_WHOLE = frozenset({"auth", "pass", "ssn", "pan", "mfa", "totp", "iban", "salt", "refresh"})
# Whole words of a name (`db_pwd`, `userPin`), since many harmless words hold them (`spinner`).
_ANY_WORD = frozenset({"pwd", "pw", "pin", "otp", "cvv", "cvc", "cvv2", "cvc2", "ssn"})
_LAST_WORD = frozenset({"auth", "pass"})
# What ends a name that tells about a secret and does not hold it: `token_type`, `password_changed_at`.
_ABOUT = frozenset(
    {
        "type", "count", "length", "duration", "status", "enabled", "disabled", "required", "policy", "strength", "ttl",
        "timeout", "version", "algorithm", "alg", "scheme", "domain", "expires", "expired", "expiry", "expiration", "at",
        "in", "on", "date", "lifetime", "minutes", "seconds", "hours", "days", "age", "error", "errors", "file", "path",
        "s", "ms",
    }
)  # fmt: skip
_HARMLESS = re.compile(r"tokeni[sz]|tokenur[il]|secretar|(?:pos|ob)session")
_NOT_ALPHANUMERIC = re.compile(r"[^a-z0-9]+")
_NO_WORD = re.compile(r"[\W_]+")
_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+")
_LONGEST_ENDING = max(map(len, _ABOUT))


def is_secret_name(name: str) -> bool:
    """Whether a field of this name holds a secret, judged by the name alone, however long it is."""
    lower = name.translate(LOWER)
    plain = _HARMLESS.sub("", _NOT_ALPHANUMERIC.sub("", lower))
    if plain in _WHOLE or any(part in plain for part in _PARTS):
        return _last_word(name) not in _ABOUT
    if not name.isascii():
        plain = _NO_WORD.sub("", lower.lower())
        if any(part in plain for part in _PARTS_ELSEWHERE):
            return True
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words or words[-1] in _ABOUT:
        return False
    return not _ANY_WORD.isdisjoint(words) or words[-1] in _LAST_WORD


def _last_word(name: str) -> str:
    words: list[str] = _WORDS.findall(name[-_LONGEST_ENDING - 1 :])
    return words[-1].lower() if words else ""
