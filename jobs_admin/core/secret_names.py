"""Which names say that their value is a secret: `password`, `apiKey`, `X-Auth-Token`, `mot_de_passe` …"""

from __future__ import annotations

import re
from functools import lru_cache

# Patterns are tried on the text in lower case, of the same length: that is three times faster than ignoring case.
LOWER = {code: code + 32 for code in range(65, 91)}
LOWER |= {0xFF21 + n: 97 + n for n in range(26)} | {0xFF41 + n: 97 + n for n in range(26)}  # full-width letters

# Words that are secret behind one of these, with `_`, `-` or nothing between: `api_key`, `mfaCode`.
ENDINGS = {
    "key": ("api", "private", "access", "account", "client", "signing", "signature", "encryption", "decryption", "master",
            "fernet", "shared", "subscription", "integration", "instrumentation", "ingestion", "deploy", "functions",
            "consumer", "license", "licence", "activation", "hmac", "aes", "ssh", "cipher", "crypto", "symmetric",
            "vapid", "merchant", "auth", "admin", "recovery", "bot", "security", "secure", "nonce"),
    "code": ("auth", "mfa", "security", "verification", "recovery", "backup", "factor"),
    "number": ("card",),
    "card": ("credit",),
    "string": ("connection",),
    "answer": ("security",),
    "verifier": ("code",),
    "assertion": ("client", "saml"),
    "response": ("saml",),
    "phrase": ("seed", "recovery", "backup"),
}  # fmt: skip
# Passwords and secrets as other languages name them; those behind are not parts of other words in ASCII.
ELSEWHERE = (
    "contraseña", "hasło", "пароль", "гасло", "парола", "лозинка", "密码", "密碼", "口令", "暗証番号", "パスワード", "비밀번호",
    "암호", "şifre", "lösenord", "jelszó", "κωδικός", "συνθηματικό", "סיסמה", "סיסמא", "كلمة السر", "كلمة المرور", "كلمة_السر",
    "كلمة_المرور", "رمز عبور", "पासवर्ड", "รหัสผ่าน", "mật khẩu", "mật_khẩu", "slaptažodis", "clé_secrète", "clé_api", "schlüsselwort",
)  # fmt: skip
FOREIGN = (
    "contrasena", "motdepasse", "mot_de_passe", "mot-de-passe", "mot de passe", "senha", "wachtwoord", "haslo", "passord", "losenord",
    "adgangskode", "salasana", "heslo", "jelszo", "lozinka", "sifre", "kata_sandi", "kata sandi", "mat_khau", "geheimnis", "segredo",
    "segreto", "zugangsdaten", "clave_api", "cle_api", "chave_api",
)  # fmt: skip
_NOT_ALPHANUMERIC = re.compile(r"[^a-z0-9]+")
# Compared with the name in lower case and without `_`, `-` and the like; sentry-sdk's list, and what it misses.
_PARTS = (
    "password", "passwd", "passphrase", "passcode", "passwort", "kennwort", "secret", "token",
    "authorization", "cookie", "session", "sessid", "csrf", "xsrf", "fernet", "credential", "jwt", "bearer", "signature", "macaroon",
    *(start + word for word, starts in ENDINGS.items() for start in starts),
    *(_NOT_ALPHANUMERIC.sub("", word) for word in FOREIGN),
)  # fmt: skip
_WHOLE = frozenset({"auth", "pass", "ssn", "pan", "mfa", "totp", "iban", "salt", "refresh", "parola", "clave", "mdp"})
# Whole words of a name (`db_pwd`, `userPin`), since many harmless words hold them (`spinner`).
_ANY_WORD = frozenset(
    {"pwd", "pw", "psw", "pswd", "pin", "otp", "cvv", "cvc", "cvv2", "cvc2", "ssn", "mdp", "cred", "creds"}
)
_WORD_ENDS = ("pwd", "pw")  # `bindpw`
_LAST_WORD = frozenset({"auth", "pass", "salt"})
# `storepass`, and not `bypass`
_PASS_OF = re.compile(
    r"(?:store|key|db|user|ssh|root|admin|sql|pg|smtp|s?ftp|mail|proxy|ldap|imap|http|login|master|vault|cert|pfx|p12|jks)pass\Z"
)
# What ends a name that tells about a secret and does not hold it: `token_type`, `password_changed_at`.
_ABOUT = frozenset(
    {
        "type", "count", "length", "duration", "status", "enabled", "disabled", "required", "policy", "strength", "ttl",
        "timeout", "version", "algorithm", "alg", "scheme", "domain", "expires", "expired", "expiry", "expiration", "at",
        "in", "on", "date", "lifetime", "minutes", "seconds", "hours", "days", "age", "error", "errors", "file", "path",
        "s", "ms", "sent", "name", "names", "field", "label", "hint", "format", "class", "prefix", "valid", "backend",
    }
)  # fmt: skip
_ABOUT_FIRST = frozenset({"has", "is", "use", "uses", "needs", "require", "requires", "allow", "max", "min", "num"})
# Keys that open nothing, whatever they look like.
_OPEN_KEYS = frozenset(
    {
        "public", "publishable", "site", "primary", "foreign", "unique", "sort", "partition", "range", "hash", "row", "natural",
        "join", "cache", "lock", "shard", "routing", "group", "lookup", "dict", "map", "idempotency", "dedup", "dedupe",
        "deduplication", "request", "correlation", "trace", "object", "s3", "blob", "file", "storage", "upload", "image", "asset",
        "content", "record", "item", "document", "message", "event", "job", "task", "order", "translation", "hot",
    }
)  # fmt: skip
_RANDOM = re.compile(
    r"(?=[^\n]{0,99}[0-9])(?=[^\n]{0,99}[a-z])(?=[^\n]{0,99}[G-Z])(?![A-Z]{2}[0-9a-f]{32}\Z)[\w+/=~%.-]{14,200}\Z"
)
_HEX = re.compile(r"[0-9A-Fa-f]{32,}")
_LONG_PIECE = re.compile(r"[A-Za-z0-9+/=]{12}")
_HARMLESS = re.compile(r"tokeni[sz]|tokenur[il]|secretar|(?:pos|ob)session")
_NO_WORD = re.compile(r"[\W_]+")
_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+")
_LONGEST_ENDING = max(map(len, _ABOUT))
_PARTS_ELSEWHERE = tuple(_NO_WORD.sub("", word) for word in ELSEWHERE)


def is_secret_name(name: str) -> bool:
    """Whether a field of this name holds a secret, judged by the name alone, however long it is."""
    # The same few names stand in every job of a task, and in every line of a long text.
    return _remembered(name) if len(name) <= 100 else _is_secret_name(name)


def _is_secret_name(name: str) -> bool:
    lower = name.translate(LOWER)
    plain = _HARMLESS.sub("", _NOT_ALPHANUMERIC.sub("", lower))
    if plain in _WHOLE or any(part in plain for part in _PARTS):
        return _last_word(name) not in _ABOUT and _first_word(name) not in _ABOUT_FIRST
    if not name.isascii():
        plain = _NO_WORD.sub("", lower.lower())
        if any(part in plain for part in _PARTS_ELSEWHERE):
            return True
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words or words[-1] in _ABOUT or words[0] in _ABOUT_FIRST:
        return False
    return (
        not _ANY_WORD.isdisjoint(words)
        or words[-1] in _LAST_WORD
        or words[-1].endswith(_WORD_ENDS)
        or _is_pass(words[-1])
    )


def _is_pass(word: str) -> bool:
    return word.endswith("pass") and _PASS_OF.search(word) is not None


_remembered = lru_cache(maxsize=4096)(_is_secret_name)


def _last_word(name: str) -> str:
    words: list[str] = _WORDS.findall(name[-_LONGEST_ENDING - 1 :])
    return words[-1].lower() if words else ""


def _first_word(name: str) -> str:
    found = _WORDS.search(name[:9])
    return found[0].lower() if found else ""


def names_a_key(name: str) -> bool:
    """Return whether a field of this name holds a secret if its value looks random: `tenant_key`, `connect.sid`."""
    words = [word.lower() for word in _WORDS.findall(name[-60:])]
    if len(words) == 1 and words[0] != "key":
        words = [words[0].removesuffix("key"), "key"] if words[0].endswith("key") else words
    if not words or words[-1] not in {"key", "sid", "sign"}:
        return False
    return words[-1] != "key" or (len(words) > 1 and words[-2] not in _OPEN_KEYS)


def is_key(name: str, value: str) -> bool:
    """Return whether a value under a name that `names_a_key` is drawn rather than written.

    Digits and letters of both cases, in one long piece; a session id or a signature may also be hexadecimal.
    """
    value = value.removeprefix("base64:")
    if not name.lower().endswith("key") and _HEX.fullmatch(value):
        return True
    return _RANDOM.match(value) is not None and _LONG_PIECE.search(value) is not None
