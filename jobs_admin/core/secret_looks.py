"""Secrets that everybody knows by their look, whatever they are called: tokens by their prefix, cards, keys, passwords in URLs.

Every pattern is linear in the length of the text: its quantifiers are bounded, and it can start only where the character
before it does not belong to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

PLACEHOLDER = "[redacted]"

# What tokens begin with, and no ordinary word; and such as begin names of settings too (`npm_config_registry`), so that a digit
# is looked for behind them.
_PREFIXES = (
    "sk_live_", "sk_test_", "rk_live_", "rk_test_", "pk_live_", "pk_test_", "whsec_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_",
    "github_pat_", "glpat-", "glrt-", "gldt-", "glptt-", "glcbt-", "glsoat-", "glft-", "glimt-", "glagent-", "gloas-",
    "xoxa-", "xoxb-", "xoxe-", "xoxe.", "xoxp-", "xoxr-", "xoxs-", "xapp-", "SG.", "AIza", "ya29.", "GOCSPX-", "gsk_",
    "dop_v1_", "doo_v1_", "dor_v1_", "shpat_", "shpca_", "shppa_", "shpss_", "sq0atp-", "sq0csp-", "lin_api_", "lin_oauth_",
    "rdv_", "hvs.", "hvb.", "hvr.", "glsa_", "glc_", "sntrys_", "sntryu_", "sbp_", "nfp_", "pscale_tkn_", "pscale_pw_",
    "pscale_oauth_", "dckr_pat_", "dckr_oat_", "xkeysib-", "xsmtpsib-", "HRKU-", "NRAK-", "NRJS-", "NRII-", "ATATT3",
    "ATCTT3", "ATBB", "tskey-", "AGE-SECRET-KEY-1", "PMAK-", "figd_", "dp.pt.", "dp.st.", "dp.ct.", "dp.sa.", "dp.scim.",
    "dp.audit.", "rubygems_", "sk.eyJ", "ntn_", "pplx-", "xai-", "CFPAT-", "FLWSECK", "rzp_live_",
)  # fmt: skip
_PREFIXES_OF_MORE = ("sk-", "npm_", "pypi-", "hf_", "r8_", "secret_")
_RUN = re.compile(r"[\w.-]{18,}")
_LONG_RUN = b"x" * 18
# What an ASCII character is: of such a run, of a card's number.
_OF_RUNS = bytes(ord("x" if chr(code).isalnum() or chr(code) in "_.-" else " ") for code in range(128)) + b" " * 128
_OF_CARDS = bytes(ord("0" if chr(code).isdigit() else " ") for code in range(128)) + b" " * 128
_CARD_LONG = b"0" * 13
_DIGIT = re.compile(r"[0-9]")
_MAILGUN = re.compile(r"key-[0-9A-Za-z]{20,}")
_JWT = re.compile(r"eyJ[\w-]{8,}\.\.?[\w-]{4,}(?:\.[\w-]*){0,3}")
# A Discord bot's: the digits of its id as base64, a time, a signature.
_DISCORD = re.compile(r"[MNO](?=[\w-]{0,30}\d)[\w-]{23,27}\.[\w-]{6}\.(?=[\w-]{0,40}\d)[\w-]{27,40}\Z")
_AZURE = re.compile(r"(?<![\w~.-])[\w~.-]{3}\dQ~[\w~.-]{31,40}")

# What a text must hold for the pattern to be tried (any of these, in lower case), the pattern, and what stands there afterwards.
_PATTERNS: tuple[tuple[tuple[str, ...], re.Pattern[str], str], ...] = (
    (("digest",), re.compile(r"""(?i)\b(digest\s{1,3})(?=[a-z]{2,12}=")[^\n]+"""), rf"\g<1>{PLACEHOLDER}"),
    (
        ("code=", "sig=", "hmac=", "auth=", "pw=", "pass=", "state=", "nonce=", "key="),
        re.compile(r"""(?i)([?&;](?:code|sig|hmac|auth|pw|pass|state|nonce|key)=)(?!\[redacted)[^\s&"'#<>]{8,}"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("bearer", "basic", "digest", "negotiate"),
        re.compile(r"(?i)\b(bearer|basic|digest|negotiate)(\s{1,3})(?=[a-z._~+/-]{0,200}[0-9=])[a-z0-9._~+/=-]{8,}"),
        rf"\g<1>\g<2>{PLACEHOLDER}",
    ),
    (
        ("akia", "asia", "aida", "aroa", "ltai"),
        re.compile(r"(?<![A-Z0-9])(?:AKIA|ASIA|AIDA|AROA|LTAI)[A-Z0-9]{16}(?![A-Z0-9])"),
        PLACEHOLDER,
    ),
    (("sk",), re.compile(r"SK(?<!\wSK)[0-9a-f]{32}(?!\w)"), PLACEHOLDER),
    (("dapi",), re.compile(r"(?<!\w)dapi[0-9a-f]{32}(?!\w)"), PLACEHOLDER),
    (("-us",), re.compile(r"(?<!\w)[0-9a-f]{32}-us\d{1,2}(?!\w)"), PLACEHOLDER),
    (("q~",), _AZURE, PLACEHOLDER),
    (("1//0",), re.compile(r"(?<![\w/.-])1//0[\w-]{20,}"), PLACEHOLDER),
    # Addresses that are passwords themselves.
    (
        ("hooks.slack", "/webhooks/", "webhook.office"),
        re.compile(
            r"(?i)(hooks\.slack\.com/\w{1,20}/|discord(?:app)?\.com/api/(?:v\d{1,2}/)?webhooks/|webhook\.office\.com/)"
            r"""(?!\[)[^\s"'<>]+"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    ((":aa",), re.compile(r"(?<!\d)(\d{6,12}:)AA[\w-]{30,}"), rf"\g<1>{PLACEHOLDER}"),
    # On command lines, in SQL, in a .netrc.
    (
        ("-u",),
        re.compile(r"""(\s(?:-u|--user)[\s=]{0,2}["']?[^\s:"'=]{1,100}:)(?!\[redacted)[^\s"']+"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (("mysql",), re.compile(r"""(mysql[^\n]{0,200}?\s-p)(?!\[redacted)[^\s"']{3,}"""), rf"\g<1>{PLACEHOLDER}"),
    (("sshpass",), re.compile(r"""(sshpass\s{1,3}-p\s{0,3}["']?)(?!\[redacted)[^\s"']+"""), rf"\g<1>{PLACEHOLDER}"),
    (
        ("identified", "password '"),
        re.compile(
            r"(?i)\b((?:identified\s{1,3}(?:with\s{1,3}\S{1,40}\s{1,3})?(?:by|as)|with\s{1,3}(?:encrypted\s{1,3})?password)\s{1,3}')"
            r"(?!\[redacted)[^'\n]+"
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("login",),
        re.compile(r"(\blogin\s{1,3}\S{1,100}\s{1,3}password\s{1,3})(?!\[redacted)\S+"),
        rf"\g<1>{PLACEHOLDER}",
    ),
)
# JSON may write a slash as `\/`.
_URL = re.compile(r""":(?:\\{0,7}/){2}([^\s"'<>:]*(?::(?!\\{0,7}/\\{0,7}/)[^\s"'<>:]*)*)""")
_PORT = re.compile(r"\d{1,5}(?:[/?#\\]|\Z)")
_CARD = re.compile(
    r"[2-6](?<![\w.-].)(?:(?<!2)\d{3}|(?<=2)[2-7]\d{2})[ -]?(?:\d{4}[ -]?\d{4}[ -]?\d{4}|\d{6}[ -]?\d{4,5})(?![\w.]?\d)"
)
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----")


def without_private_keys(text: str) -> tuple[str, int]:
    """By hand and not by one pattern: that would read on from every BEGIN to the end of the text."""
    if "PRIVATE KEY" not in text:
        return text, 0
    parts, hidden, at = [], 0, 0
    began, ended = _KEY_BEGINS.search(text), _KEY_ENDS.search(text)
    if ended and (began is None or ended.start() < began.start()):  # its beginning was cut away
        parts, hidden, at = [PLACEHOLDER], 1, ended.end()
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


def without_looks(text: str) -> tuple[str, int]:
    """`text` without what is known by its look alone, and how many were hidden."""
    hidden = 0
    if "/" in text and ":" in text:
        text, hidden = counted(_URL, _hide_userinfo, text)
    lower = folded(text)
    for needed, pattern, replacement in _PATTERNS:
        for word in needed:
            if word in lower:
                text, count = pattern.subn(replacement, text)
                hidden += count
                break
    text, tokens = _without_tokens(text)
    cards = 0
    if _may_hold_a_card(text):
        text, cards = counted(_CARD, _hide_card, text)
    return text, hidden + tokens + cards


def folded(text: str) -> str:
    """In lower case, where a pattern that ignores case finds a letter of a to z, too: `ſ`, `ı` and the Kelvin sign are such."""
    return text.lower() if text.isascii() else text.casefold().replace("ı", "i")


def _without_tokens(text: str) -> tuple[str, int]:
    if not text.isascii():
        return counted(_RUN, lambda found: _shown_token(found[0]), text)
    # The same runs, without a pattern that is tried at every character: a tenth of its cost, and most texts hold none.
    marked = text.encode().translate(_OF_RUNS)
    start = marked.find(_LONG_RUN)
    if start < 0:
        return text, 0
    parts, hidden, at = [], 0, 0
    while start >= 0:
        end = marked.find(b" ", start)
        end = len(text) if end < 0 else end
        shown = _shown_token(text[start:end])
        if shown is not None:
            parts += [text[at:start], shown]
            hidden, at = hidden + 1, end
        start = marked.find(_LONG_RUN, end)
    return "".join([*parts, text[at:]]), hidden


def _may_hold_a_card(text: str) -> bool:
    return not text.isascii() or text.encode().translate(_OF_CARDS, b" -").find(_CARD_LONG) >= 0


def is_card(number: int) -> bool:
    found = _CARD.fullmatch(str(number))
    return found is not None and _hide_card(found) is not None


def counted(pattern: re.Pattern[str], hide: Callable[[re.Match[str]], str | None], text: str) -> tuple[str, int]:
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


def _hide_userinfo(found: re.Match[str]) -> str | None:
    """`user:password@` in a URL: the name may stay, the password not, nor a name that is a token itself."""
    rest = found[1]
    at = rest.rfind("@")
    user, colon, password = rest[: max(at, 0)].partition(":")
    if at < 0 or any(c in user for c in "/?#"):
        return None
    before = found[0][: -len(rest)]
    if colon:
        # `host:8443/a/b@2x.png` has a port there.
        if password in {"", PLACEHOLDER} or (_PORT.match(password) and not password.isdigit()):
            return None
        return f"{before}{user}:{PLACEHOLDER}{rest[at:]}"
    if len(user) >= 16 and any(c.isdigit() for c in user):
        return f"{before}{PLACEHOLDER}{rest[at:]}"
    return None


def _shown_token(run: str) -> str | None:
    if run.startswith(_PREFIXES):
        prefix = next(prefix for prefix in _PREFIXES if run.startswith(prefix))
        return PLACEHOLDER if len(run) >= len(prefix) + 16 else None
    if run.startswith(_PREFIXES_OF_MORE):
        return PLACEHOLDER if _DIGIT.search(run, 3) else None
    if ".atlasv1." in run or (run[0] in "MNO" and _DISCORD.match(run)):
        return PLACEHOLDER
    known = (_JWT if run.startswith("eyJ") else _MAILGUN).match(run)
    return PLACEHOLDER + run[known.end() :] if known else None


def _hide_card(found: re.Match[str]) -> str | None:
    digits = [int(c) for c in found[0] if c.isdigit()]
    doubled = (sum(divmod(2 * d, 10)) if i % 2 else d for i, d in enumerate(reversed(digits)))
    return PLACEHOLDER if sum(doubled) % 10 == 0 else None
