"""Hides secrets in arguments, headers, messages and tracebacks, before they leave the worker.

Two rules, both visible in the result as `[redacted]`: the name of a field says that its value is a secret
(`password`, `api_key`, `Authorization` …), or the value looks like one that everybody knows (a JWT, an AWS key,
a private key, the password inside a URL, a card number that passes Luhn's check …). The raw message is kept
apart and is not touched by this. Every pattern is linear in the length of the text: its quantifiers are bounded
and it can start only where the character before it does not belong to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

PLACEHOLDER = "[redacted]"
TOO_DEEP = "[nested too deep]"
DEEPEST = 100
SHORTEST = 13  # characters of the shortest secret that is known by its look alone: a card number

# Compared with the name in lower case and without `_`, `-` and the like; sentry-sdk's list, and what it misses.
_SECRET_PARTS = (
    "password", "passwd", "passphrase", "secret", "token", "apikey", "authorization", "cookie", "session",
    "csrf", "xsrf", "creditcard", "cardnumber", "privatekey", "accesskey", "credential", "jwt", "bearer",
    "connectionstring", "signingkey", "encryptionkey", "masterkey",
)  # fmt: skip
_SECRET_NAMES = frozenset(
    {"auth", "pwd", "pass", "pin", "otp", "cvv", "cvc", "cvv2", "ssn", "pan", "mfa", "totp", "iban"}
)
# A number is no secret where the name tells of an amount: `max_tokens`, `session_count`.
_AMOUNT = re.compile(r"(?:max|min|num|total|prompt|completion)|(?:count|limit|used|tokens|sessions|timeout|age|size)\Z")
_NOT_ALPHANUMERIC = re.compile(r"[^a-z0-9]+")

_NAMED = re.compile(
    r"""(?ix) ( password | passwd | passphrase | secret | token | api[_-]?key | authorization | cookie
              | session[_-]?(?:id|key) | csrf | xsrf | credential
              | private[_-]?key | access[_-]?key | \b pwd | \b pin | \b cvv )
        ( [\w-]{0,20} ["']? \s{0,3} [=:] \s{0,3} )
        ( "[^"\n]{1,500}" | '[^'\n]{1,500}' | (?! (?:none|true|false|null|self|str|int|bytes) \b )
          [^\s,;&'"<>(){}\[\]]{3,500} (?! [\[(] ) )"""
)
# What a text must hold for the pattern to be tried, the pattern, and what stands there afterwards.
_PATTERNS: tuple[tuple[str, re.Pattern[str], str], ...] = (
    # user:password@ in a URL: the name may stay, the password not.
    ("://", re.compile(r"""(://[^\s/?#@:"']{0,100}:)[^\s/?#@"']{1,300}@"""), rf"\g<1>{PLACEHOLDER}@"),
    (
        "",
        re.compile(
            r"(?i)\b(bearer|basic|digest|negotiate)(\s{1,3})(?=[a-z._~+/-]{0,200}[0-9=])[a-z0-9._~+/=-]{8,4096}"
        ),
        rf"\g<1>\g<2>{PLACEHOLDER}",
    ),
    ("eyJ", re.compile(r"(?<![\w.-])eyJ[\w-]{8,4000}\.[\w-]{4,8000}(?:\.[\w-]{0,2000}){0,3}"), PLACEHOLDER),
    ("A", re.compile(r"(?<![A-Z0-9])(?:AKIA|ASIA|AIDA|AROA)[A-Z0-9]{16}(?![A-Z0-9])"), PLACEHOLDER),
    (
        "",
        re.compile(
            r"(?<![\w.-])(?:[spr]k_(?:live|test)_|gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|xapp-|sk-|SG\.|AIza|ya29\.|npm_"
            r"|pypi-|hf_|dop_v1_|shp(?:at|ca|pa|ss)_|whsec_|sq0(?:atp|csp)-|key-|lin_api_|rdv_)[\w.-]{16,300}"
        ),
        PLACEHOLDER,
    ),
)
_CARD = re.compile(
    r"(?<![\w.-])(?:[3456]\d{3}|2[2-7]\d{2})[ -]?(?:\d{4}[ -]?\d{4}[ -]?\d{4}|\d{6}[ -]?\d{4,5})(?![\w.]?\d)"
)
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----")


def is_secret_name(name: str) -> bool:
    """Whether a field of this name holds a secret, judged by the name alone."""
    plain = _NOT_ALPHANUMERIC.sub("", name[:200].lower())
    if plain in _SECRET_NAMES:
        return True
    return any(part in plain for part in _SECRET_PARTS)


def redact(value: object) -> tuple[object, int]:
    """A copy of JSON-like `value` without secrets, and how many were hidden. Never changes `value` itself."""
    return _redacted(value, 0)


def _redacted(value: object, depth: int) -> tuple[object, int]:
    if isinstance(value, str):
        return redact_text(value)
    if depth >= DEEPEST and isinstance(value, dict | list | tuple):
        return TOO_DEEP, 1
    if isinstance(value, dict):
        copy: dict[object, object] = {}
        hidden = 0
        for name, inner in value.items():
            if isinstance(name, str) and is_secret_name(name) and _tells(name, inner):
                copy[name], count = PLACEHOLDER, 1
            else:
                shown, in_name = redact_text(name) if isinstance(name, str) else (name, 0)
                copy[shown], count = _redacted(inner, depth + 1)
                count += in_name
            hidden += count
        return copy, hidden
    if isinstance(value, list | tuple):
        pairs = [_redacted(inner, depth + 1) for inner in value]
        return [shown for shown, _ in pairs], sum(count for _, count in pairs)
    return value, 0


def _tells(name: str, value: object) -> bool:
    """Whether the value gives the secret away. Nothing, true and false do not, and explain many failures."""
    if value is None or isinstance(value, bool) or value in ("", [], {}):
        return False
    return not (isinstance(value, int | float) and _AMOUNT.search(_NOT_ALPHANUMERIC.sub("", name[:200].lower())))


def redact_text(text: str) -> tuple[str, int]:
    """`text` without secrets, and how many were hidden."""
    is_named = "=" in text or ":" in text
    if len(text) < SHORTEST and not is_named:
        return text, 0
    text, hidden = _without_private_keys(text)
    if is_named:
        text, count = _counted(_NAMED, _hide_named, text)
        hidden += count
    for needed, pattern, replacement in _PATTERNS:
        if needed in text:
            text, count = pattern.subn(replacement, text)
            hidden += count
    text, count = _counted(_CARD, _hide_card, text)
    return text, hidden + count


def _counted(pattern: re.Pattern[str], hide: Callable[[re.Match[str]], str | None], text: str) -> tuple[str, int]:
    """Like `subn`, but counts only what `hide` really replaced (it answers None to leave a find alone)."""
    count = 0

    def replacement(found: re.Match[str]) -> str:
        nonlocal count
        shown = hide(found)
        if shown is None:
            return found[0]
        count += 1
        return shown

    return pattern.sub(replacement, text), count


def _hide_named(found: re.Match[str]) -> str | None:
    name, between, value = found.groups()
    bare = value.strip("\"'")
    # `password=password` is a line of code in a traceback; a scheme before its secret is left to the next pattern.
    if bare.lower() in {name.lower(), "bearer", "basic", "digest", "negotiate", PLACEHOLDER}:
        return None
    # "invalid token: expected …" is a sentence of every parser.
    if name.lower() == "token" and bare.isalpha() and between.endswith(": ") and value[0] not in "\"'":
        return None
    quote = value[0] if value[0] in "\"'" else ""
    return f"{name}{between}{quote}{PLACEHOLDER}{quote}"


def _hide_card(found: re.Match[str]) -> str | None:
    digits = [int(c) for c in found[0] if c.isdigit()]
    doubled = (sum(divmod(2 * d, 10)) if i % 2 else d for i, d in enumerate(reversed(digits)))
    return PLACEHOLDER if sum(doubled) % 10 == 0 else None


def _without_private_keys(text: str) -> tuple[str, int]:
    """By hand and not by one pattern: that would read on from every BEGIN to the end of the text."""
    if "PRIVATE KEY" not in text:
        return text, 0
    parts, hidden, at = [], 0, 0
    while found := _KEY_BEGINS.search(text, at):
        parts += [text[at : found.start()], PLACEHOLDER]
        hidden += 1
        end = text.find("-----END ", found.end())
        if end < 0:  # a key that was cut is still a key
            return "".join(parts), hidden
        close = text.find("-----", end + 9)
        at = close + 5 if 0 <= close <= end + 80 else end + 9
    parts.append(text[at:])
    return "".join(parts), hidden
