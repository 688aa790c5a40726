"""Secrets by the name of their field or column: `password`, `apiKey`, `X-Auth-Token`, `mot_de_passe` …

In text, the name may be at a distance: `Key (api_token)=(…)`, `INSERT INTO t (login, password) VALUES (…)` with its
parameters, `password … input_value='…'`. Each text is read once: no search goes back before the previous match.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from jobs_admin.core.secret_patterns import PLACEHOLDER

# Patterns run on a lower-case text of the same length, three times faster than ignoring case.
LOWER = {code: code + 32 for code in range(65, 91)}
LOWER |= {0xFF21 + n: 97 + n for n in range(26)} | {0xFF41 + n: 97 + n for n in range(26)}  # full-width letters

# Words that are secret after one of these, joined with `_`, `-` or nothing: `api_key`, `mfaCode`.
ENDINGS = {
    "key": ("api", "private", "access", "account", "client", "signing", "signature", "encryption", "decryption", "master",
            "fernet", "shared", "subscription", "integration", "instrumentation", "ingestion", "deploy", "functions",
            "consumer", "license", "licence", "activation", "hmac", "aes", "ssh", "cipher", "crypto", "symmetric",
            "vapid", "merchant", "auth", "admin", "recovery", "bot", "secret", "security", "secure", "nonce"),
    "code": ("auth", "mfa", "security", "verification", "recovery", "backup", "factor"),
    "number": ("card",),
    "card": ("credit",),
    "string": ("connection",),
    "answer": ("security",),
    "verifier": ("code",),
    "assertion": ("client", "saml"),
    "response": ("saml",),
    "phrase": ("seed", "recovery", "backup"),
    "words": ("seed", "recovery", "backup"),
}  # fmt: skip
# Passwords and secrets in other languages; the later ones are not part of other ASCII words.
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
# Compared with the name in lower case without separators; sentry-sdk's list and additions.
_PARTS = (
    "password", "passwd", "passphrase", "passcode", "passwort", "kennwort", "secret", "token", "authorization", "cookie", "session",
    "sessid", "csrf", "xsrf", "fernet", "mnemonic", "credential", "jwt", "bearer", "signature", "macaroon",
    *(start + word for word, starts in ENDINGS.items() for start in starts),
    *(_NOT_ALPHANUMERIC.sub("", word) for word in FOREIGN),
)  # fmt: skip
_COMPLETE = frozenset(
    {"auth", "pass", "ssn", "pan", "mfa", "totp", "iban", "salt", "refresh", "parola", "clave", "mdp"}
)
# Separate words of a name (`db_pwd`, `userPin`), because many harmless words contain them (`spinner`).
_ANY_WORD = frozenset(
    {"pwd", "pw", "psw", "pswd", "psk", "pin", "otp", "cvv", "cvc", "cvv2", "cvc2", "ssn", "mdp", "cred", "creds"}
)
_WORD_ENDS = ("pwd", "pw")  # `bindpw`
_LAST_WORD = frozenset({"auth", "pass", "salt"})
# `storepass`, but not `bypass`
_PASS_OF = re.compile(
    r"(?:store|key|db|user|ssh|root|admin|sql|pg|smtp|s?ftp|mail|proxy|ldap|imap|http|login|master|vault|cert|pfx|p12|jks)pass\Z"
)
# Endings of names about a secret that do not contain it: `token_type`, `password_changed_at`.
_ABOUT = frozenset(
    {
        "type", "count", "length", "duration", "status", "enabled", "disabled", "required", "policy", "strength", "ttl",
        "timeout", "version", "algorithm", "alg", "scheme", "domain", "expires", "expired", "expiry", "expiration", "at",
        "in", "on", "date", "lifetime", "minutes", "seconds", "hours", "days", "age", "error", "errors", "file", "path",
        "s", "ms", "sent", "name", "names", "field", "label", "hint", "format", "class", "prefix", "valid", "backend",
    }
)  # fmt: skip
_ABOUT_FIRST = frozenset({"has", "is", "use", "uses", "needs", "require", "requires", "allow", "max", "min", "num"})
# Keys that are not secret, whatever they look like.
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
    """Return whether a field with this name contains a secret, by the name alone, at any length."""
    # Cached: all jobs of a task, and all lines of a long text, have the same few names.
    return _remembered(name) if len(name) <= 100 else _is_secret_name(name)


def _is_secret_name(name: str) -> bool:
    lower = name.translate(LOWER)
    plain = _HARMLESS.sub("", _NOT_ALPHANUMERIC.sub("", lower))
    if plain in _COMPLETE or any(part in plain for part in _PARTS):
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
    """Return whether a field with this name contains a secret if its value looks random: `tenant_key`,
    `connect.sid`.
    """
    words = [word.lower() for word in _WORDS.findall(name[-60:])]
    if len(words) == 1 and words[0] != "key":
        words = [words[0].removesuffix("key"), "key"] if words[0].endswith("key") else words
    if not words or words[-1] not in {"key", "sid", "sign"}:
        return False
    return words[-1] != "key" or (len(words) > 1 and words[-2] not in _OPEN_KEYS)


def is_key(name: str, value: str) -> bool:
    """Return whether a value under a name for which `names_a_key` is true is random.

    Random: digits and letters of both cases in one long piece; a session id or signature may also be hexadecimal.
    """
    value = value.removeprefix("base64:")
    if not name.lower().endswith("key") and _HEX.fullmatch(value):
        return True
    return _RANDOM.match(value) is not None and _LONG_PIECE.search(value) is not None


_COLUMNS = re.compile(
    r"""(?i)\(([^()]{0,4000}(?:\([^()]{0,200}\)[^()]{0,400}){0,10})\)\s{0,5}(?:=\s{0,5}|(?:[\w ]{0,60}\s)?values?\s{0,5})(?=\()"""
)
# SQL Server names the constraint before the value, MySQL the index after it.
_DUPLICATE_KEY = re.compile(
    r"""(?:constraint|index) '([^'\n]{1,200})'[^\n]{0,300}?duplicate key value is \(([^()\n]{3,500})\)"""
)
_DUPLICATE = re.compile(r"""Duplicate entry '([^'\n]{3,500})' for key '([\w.`-]{1,200})'""")
_NEXT_ROW = re.compile(r"\s{0,5},\s{0,5}(?=\()")
_MARKS = re.compile(r"""\\.|'(?:[^'\\]|\\.|'')*(?:'|\Z)|"(?:[^"\\]|\\.|"")*(?:"|\Z)|[\[({\])},]""", re.DOTALL)
_STATEMENT = re.compile(
    r"(?i)\[SQL:|\b(?:insert into|replace into|merge into|delete from|(?<!key )(?<!do )(?<!for )update)\s"
)
_SLOT = re.compile(r"%s|\?(?![\w&])|[$:](\d{1,5})\b")
_PARAMETERS = re.compile(
    r"""(?i)\b(?:params?|parameters|args|arguments|bind(?:s|ings)?)["']?\s{0,2}[:=]\s{0,2}(?=[\[($])"""
)
_COMPARED = re.compile(r"""(?i)([\w.]{1,100})["`\]]?\s{0,3}(?:=|<>|!=|\blike\b|\bilike\b)\s{0,3}\Z""")
_NUMBERED = re.compile(r"""\$(\d{1,5})\s{0,2}=\s{0,2}('(?:[^']|'')*'|[^\s,]+)""")
_NOTHING = re.compile(r"(?i)\s*(?:null|default|now\(\)|\?|%s|%\(\w+\)s|[$:@]\w+)?(?:::\w+)?\s*\Z")

_LABEL = re.compile(
    r"""(?ix) (?<![\w-]) (?: input_value | value | val | default | content | input | received | actual | given | got )
        (?: ["']? \s{0,3} [=:] \s{0,3} | > | [ ] (?= ["'\[] ) ) (?= [^\s{(] )
    | (?<= ["'] ) > (?= [^\s<] )"""
)
# Places where a message names the field it is about.
_FIELD = re.compile(
    r"""(?mix) ^ [ \t-]{0,40} ([\w.-]{2,200}) [ \t]* \r?$
    | (?<![\w-]) (?: loc | name | key | field | path | param | parameter | property | attribute | column | variable | header )
      \\{0,3} ["']? \s{0,3} [:=]? \s{0,3} (?= [\[(\\"':=\s\w] ) [\[(]?
      ( (?<= [\[(] ) [^\])\n={}<>]{1,200} | \\{0,3} ["'] [^\])\n={}<>]{1,200}? (?= ["'] \\{0,3} [\s\])},:;/>] | ["'] \Z )
      | (?<= [:=] ) [\w.-]{2,100} | (?<= [:=] [ ] ) [\w.-]{2,100} )"""
)
_VALUE = re.compile(r"""\[?[bru]{0,2}(?:'((?:[^'\\\n]|\\.)*)'?|"((?:[^"\\\n]|\\.)*)"?|([^\s,;"'<>\]})]+))""")
# A Kubernetes Secret: everything under its data.
_MANIFEST = re.compile(r"""(?<!\w)kind\\{0,7}["']?:\s{0,3}\\{0,7}["']?Secret(?!\w)""")
_DATA = re.compile(r"""(?<!\w)(?:stringData|data)\\{0,7}["']?:""")
_ENTRY = re.compile(
    r"""(?:\s{0,3}[,{]\s{0,40}|[ \t]{0,3}(?:\n|\\n)[ \t]{1,40})\\{0,7}["']?[\w.-]{1,253}\\{0,7}["']?:[ \t]{1,3}"""
    r"""(\\{0,7}["'][^"'\n]*["']|[^\s,}"'\\]+)"""
)
_NEAR = 250  # characters between a field and its value
_NAME = re.compile(r"[\w-]+")


def without_columns(text: str) -> tuple[str, int]:
    """Return `text` without the values of secret columns and fields, and the number hidden."""
    lower = text.lower()
    spans: list[tuple[int, int]] = []
    if ")=(" in text or "value" in lower or ") = (" in text:
        for start, end, hides in _rows(text):
            if hides and not _NOTHING.match(text[start:end]):
                spans.append((start, end))
    if ("param" in lower or "arg" in lower or "bind" in lower) and _SLOT.search(text):
        spans += _parameters(text)
    if "Duplicate entry '" in text:
        spans += [
            found.span(1) for found in _DUPLICATE.finditer(text) if any(map(is_secret_name, _NAME.findall(found[2])))
        ]
    if "duplicate key value is (" in text:
        spans += [
            found.span(2)
            for found in _DUPLICATE_KEY.finditer(text)
            if any(map(is_secret_name, _NAME.findall(found[1])))
        ]
    if "Secret" in text and _MANIFEST.search(text):
        spans += _data(text)
    spans += _labelled(text)
    if not spans:
        return text, 0
    parts, at, hidden = [], 0, 0
    for start, end in sorted(spans):
        if start < at or text[start:end] == PLACEHOLDER:
            continue
        parts += [text[at:start], PLACEHOLDER]
        at, hidden = end, hidden + 1
    return "".join([*parts, text[at:]]), hidden


def _rows(text: str) -> Iterator[tuple[int, int, bool]]:
    """Yield the span of each value of a list of columns, and whether its column is secret. Each list is read once."""
    at = 0
    for found in _COLUMNS.finditer(text):
        secret = [any(map(is_secret_name, _NAME.findall(column))) for column in found[1].split(",")]
        if found.start() < at or True not in secret:
            continue
        at, more = found.end(), True
        while more:
            items, at = _items(text, at)
            if len(items) == len(secret):
                for (start, end), hides in zip(items, secret, strict=True):
                    yield start, end, hides
            elif items:  # a value that contains a comma, or a truncated list
                yield items[0][0], items[-1][1], True
            further = _NEXT_ROW.match(text, at)
            more = further is not None
            at = further.end() if further else at


def _parameters(text: str) -> Iterator[tuple[int, int]]:
    """Yield the values that a preceding statement binds to secret columns by position."""
    at = 0
    for found in _PARAMETERS.finditer(text):
        if found.start() < at:
            continue  # inside the previous list
        secret = _secret_slots(text[max(at, found.start() - 20_000) : found.start()])
        at = found.end()
        if not secret:
            continue
        if text[at] == "$":
            for bound in _NUMBERED.finditer(text, at, at + 20_000):
                if int(bound[1]) - 1 in secret:
                    yield bound.span(2)
            continue
        items, at = _items(text, at)
        rows = [_items(text, start)[0] for start, _ in items if text[start] in "[("]
        for row in rows or [items]:
            yield from _nonempty(text, (item for n, item in enumerate(row) if n in secret))


def _secret_slots(statement: str) -> set[int]:
    """Return the positions (from 0) of parameters that belong to secret columns, in the last statement of a text."""
    start = 0
    for begins in _STATEMENT.finditer(statement):
        start = begins.start()
    statement = statement[start:]
    columns = iter([span for span in _rows(statement) if span[2]])
    secret = set()
    start, end, hides = next(columns, (-1, -1, False))
    for n, slot in enumerate(_SLOT.finditer(statement)):
        while 0 <= end <= slot.start():
            start, end, hides = next(columns, (-1, -1, False))
        compared = _COMPARED.search(statement, max(0, slot.start() - 120), slot.start())
        if (hides and start <= slot.start()) or (compared and is_secret_name(compared[1].rpartition(".")[2])):
            secret.add(int(slot[1]) - 1 if slot[1] else n)
    return secret


def _items(text: str, at: int) -> tuple[list[tuple[int, int]], int]:
    """Return the span of each item of the list that opens at `at`, and the list's end: the end of the text if
    truncated.
    """
    items, depth, start = [], 0, at + 1
    for mark in _MARKS.finditer(text, at):
        if mark[0] in "[({" and len(mark[0]) == 1:
            depth += 1
        elif (mark[0] == "," and depth == 1) or (mark[0] in "])}" and depth == 1):
            items.append((start, mark.start()))
            start = mark.end()
            if mark[0] != ",":
                return _trimmed(text, items), mark.end()
        elif mark[0] in "])}":
            depth -= 1
    items.append((start, len(text)))
    return _trimmed(text, items), len(text)


def _trimmed(text: str, items: list[tuple[int, int]]) -> list[tuple[int, int]]:
    trimmed = []
    for start, end in items:
        inner = text[start:end]
        start += len(inner) - len(inner.lstrip())
        if inner.strip():
            trimmed.append((start, start + len(inner.strip())))
    return trimmed


def _nonempty(text: str, items: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Return the items that are not empty."""
    return ((start, end) for start, end in items if not _NOTHING.match(text[start:end]))


def _data(text: str) -> Iterator[tuple[int, int]]:
    at = 0
    for found in _DATA.finditer(text):
        if found.start() < at:
            continue
        at = found.end()
        while entry := _ENTRY.match(text, at):
            yield entry.span(1)
            at = entry.end()


def _labelled(text: str) -> Iterator[tuple[int, int]]:
    """Yield values after a label, of a field named before it: `password\\n  … [input_value='…'`, `<add key="pw"
    value="…">`.
    """
    before = 0
    for label in _LABEL.finditer(text):
        start = max(before, label.start() - _NEAR)
        before = label.end()
        record = max(text.rfind("}", start, label.start()), text.rfind("{", start, label.start()), start - 1) + 1
        named = ""
        for found in _FIELD.finditer(text, record, label.start()):
            if found[2] or label[0].startswith("input_value"):
                named = found[1] or found[2]
        if not any(is_secret_name(part) for part in _NAME.findall(named)):
            continue
        value = _VALUE.match(text, label.end())
        if value and value.lastindex and value.end(value.lastindex) - value.start(value.lastindex) >= 3:
            yield value.span(value.lastindex)
