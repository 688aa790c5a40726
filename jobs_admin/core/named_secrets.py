"""Redaction of values with a secret name: `password=…`, `"api_key": "…"`, `--token …`, `Authorization: Bearer …`.

Each value is read once, from its name to its end, which is searched by hand, so no length limit exposes its tail.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

from jobs_admin.core.secret_fields import (
    ELSEWHERE,
    ENDINGS,
    FOREIGN,
    LOWER,
    is_key,
    is_secret_name,
    names_a_key,
    without_columns,
)
from jobs_admin.core.secret_patterns import PLACEHOLDER, replace_counted

# Searched with `str.find`, in lower case: several times faster than one pattern for all, and most traces contain none.
_FRAGMENTS = (
    "password", "passwd", "passphrase", "pass_phrase", "passcode", "passwort", "kennwort", "secret", "token", "authorization", "cookie",
    "sess", "csrf", "xsrf", "credential", "signature", "macaroon", *FOREIGN,
)  # fmt: skip
# Also parts of many harmless words: the complete name decides (`is_secret_name`).
_PARTS = ("pwd", "psk", "pin", "cvv", "cvc", "otp", "pw", "psw", "ssn", "mdp", "cred")
_BEHIND = {
    word: tuple(start + sep for start in starts for sep in ("", "_", "-", ".", *(" " * (word == "key"))))
    for word, starts in ENDINGS.items()
}
# One of these is between any name and its value, or before the name: `_BETWEEN`, `_begins`, `_TAG`.
_MAY_NAME = re.compile(r"""[=:：＝"'<]|%3|--|\s-\w""")
# Text between a name and its value.
_BETWEEN = re.compile(
    r"""(?x) [\w-]{0,20} (?![\w-])
        ( (?: \\{0,7} ["'] \]? | \] (?= = \S | \s? = \s? ["'] | \s=>\s ) )? \s{0,3} (?: => | := | [=:：＝] )
          (?: \s{4,40} (?= \\{0,7} ["'] ) | \s{0,3} (?: string\(\d{1,5}\)\s )? )
        | %5d (?: %3d | = )
        | \\{0,7} " ; s:\d{1,7}: (?= \\{0,7} " )
        | [ ] (?: provided | given | used | is | was ) [ ]? : [ ]
        | \\{0,7} " (?: \r?\n | \\{1,7}r? \\{0,7}n | \\{1,7}n ){2,4}
        | (?:%2[27])? (?:%20|\+)? %3[ad] (?:%20|\+)? (?:%2[27])?
        | \\{0,7} ["'] \s{0,3} , \s{0,3} (?= [bru]{0,2} \\{0,7} ["'] )
        | [ ]{1,3} )"""
)
# Names that are ordinary words too: only if they name a data field (`'pass': …`, `salt=…`).
_PASSES = frozenset({"pass", "parola", "clave"})
_NO_WORD = re.compile(r"(?=\S{0,60}[A-Za-z])(?=\S{0,60}\d)[^\s/]{6,}")  # `pass: yes-11`
_LONGEST_NAME = 60
_LAST_OF_NAMES = frozenset({"key", "code", "passe", "sandi"})  # of names with several words
_COMMON = ("pass", "auth", "mfa", "salt", "iban", "jwt", "bearer", "parola", "clave", "sid", "sign")
_OF_NAMES = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:.-"
_OF_NAME = _OF_NAMES.replace(":.", "")
_NAMED_SO = frozenset({"value", "val", "v", "content", "data", "default"})
_THEN = re.compile(r"""\\{0,7}["']\s{0,3}:\s{0,3}""")
_QUOTE = re.compile(r"""(?i)[bru]{0,2}(\\{0,7})(["'])""")
_FOLDER = re.compile(r"(?<![\w-])(?:OLD)?PWD\Z")  # environment variables
_SNAKE_CASE = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)+")
_NAMES = re.compile(r"\s?[=:]")
# A change in Terraform's notation: `"old" -> "new"`, `"" => "new"`
_CHANGE = re.compile(r"""\\{0,7}["']\s{0,3}[-=]>\s{0,3}(?=\\{0,7}["'])""")
_OPTION = re.compile(r"-\w|--[a-z-]+")
_TRIPLE = re.compile(r"""(?i)[bru]{0,2}('''|\"\"\")""")
_QUOTED = {
    '"': re.compile(r'[^"\\\n]*(?:\\.[^"\\\n]*)*'),
    "'": re.compile(r"[^'\\\n]*(?:\\.[^'\\\n]*)*"),
}
# Maximal form of values that are judged by their content: each is read up to there, or not at all.
_DRAWN = re.compile(r"""[bru]{0,2}\\{0,7}["']?(?:base64:)?[\w+/=~%.-]{14,200}(?=[\s,;&"'<>(){}\[\]\\]|\Z)""")
_BARE = re.compile(r"""[^\s,;&"'<>(){}\[\]\\]+""")
_ENCODED = re.compile(r"""(?i)(?:[^\s,;&"'<>(){}\[\]\\%]|%(?!26|2[27c]|7d|5d|0a)[0-9a-f]{2})+""")
# A connection string's value that contains separators: `{a;b}}c}`. An expression is code:
# `f"password={settings.password}"`.
_BRACED = re.compile(r"""\{(?![\w.()\[\]"':!, =+-]*\})(?:[^{}\n]|\}\}){3,200}\}(?=[;\s"']|\Z)""")
_CALLED = re.compile(r"[A-Za-z_.]+\Z|[a-z_]+(?:\.[A-Za-z_]\w*)+\Z")  # `password=get_password(…)` is a line of code
# Values that code writes after these without quotes: a variable that repeats the name (`token = next_token`), a type
# (`token: TokenStream`, `token: tokens.Name`).
_DRAWN_NAMES = frozenset({"token", "credential", "signature", "cookie", "key"})
_VARIABLE = re.compile(
    r"[A-Za-z_]*(?:(?<=[A-Za-z])_(?:token|credential|signature|cookie|key)s?|(?<=[a-z])(?:Token|Credential|Signature|Cookie|Key)s?)\Z"
)
_OF_CODE = frozenset({": ", " = ", '": ', "': ", '"] = ', "'] = "})  # between a name and its value
_TYPE = re.compile(r"(?:[A-Z][a-z]{2,}){2,}\Z|(?:[A-Za-z_]{3,}\d{0,2}\.){1,6}[A-Za-z_]{3,}\Z")
_ATTRIBUTE = re.compile(r"(?:self|cls|settings|config|conf|app|os|args|request|options)\.[a-z_.]+\Z|self\.")
_REST_OF_TOKEN = re.compile(r"""[^\s"'<>]*""")
_COOKIE = re.compile(r"[^\s=]{1,200}=")
_LINE = re.compile(r"[^\n]*")
_LINE_UNQUOTED = re.compile(r"""[^\n"']*""")
_SCHEME = re.compile(
    r"""(?x) (?: (?i:bearer|basic|digest|negotiate|token|apikey|aws4-hmac-sha256) [ \t]+ (?= [^\s\[] )
    # A scheme that is not known is followed by what no sentence holds: `GenieKey eb24-…`, `OAuth realm="…"`.
    | [A-Za-z][\w-]{1,40} [ \t]+ (?! \[redacted ) (?= \S{0,300} [\d=:/+] | [a-z]{0,99} [A-Z]+ [a-z] | \S{20} ) ) \S{0,300}"""
)
_WORDS_ALONE = re.compile(
    r"[A-Z][a-z]+(?:,? [A-Za-z]+){2,40}\.(?=\\{0,7}[\"'\]\n]|\Z|\s)"
)  # a sentence, as in form errors
_ANSWERS = re.compile(rf"""\[["']{_WORDS_ALONE.pattern}["']\]""")
_WRAPPED = re.compile(r"""[A-Z]\w{1,40}\(\s?[bru]{0,2}(?=["'])""")  # `SecretBytes(b'…')`
_LONG_QUOTED = re.compile(r"""["'](?=[^"'\n]{0,200}\d)[\w.+/=-]{16,}["']""")
_BLOCK = re.compile(r"[|>][+-]?[ \t]*(\n|\\n)([ \t]{1,80})")  # YAML value that starts on the next line
_SCHEMA = re.compile(r"""["']type\\{0,7}["']\s{0,3}:\s{0,3}\\{0,7}["'](?:string|integer|number|boolean|object|array)""")
_BRACKETS = re.compile(r"""[\[\](){}]|\\{0,7}["']""")
_MOST_REPEATED = 10  # values searched in the rest of the text
_OF_WORDS = re.compile(r"[a-z._]+\Z|.*[\s{}()\[\]<>]", re.DOTALL)
_SESSION_ID = re.compile(r"(?i)sess(?:ion)?s?[_-]?(?:id|key)")
_DIGIT = re.compile("[0-9]")
_DATA = re.compile(r"""["'0-9]""")  # a list or object without any of these is code
_TAG = re.compile(r"<(?<!\?P<)([\w:.-]{1,60})(?:\s[^<>]{0,300})?>([^<]+)")  # not of a pattern: `(?P<token>…)`
# around a placeholder in an address: `/reset/<token>/`
_BEFORE_SLOT, _BEHIND_SLOT = frozenset("/:(`"), frozenset("/@:)`")
_PLAIN_WORDS = frozenset(
    {
        "none",
        "true",
        "false",
        "null",
        "self",
        "await",
        "str",
        "int",
        "bytes",
        "any",
        "bool",
        "boolean",
        "callable",
        "dict",
        "float",
        "integer",
        "list",
        "object",
        "string",
        "yes",
        "no",
        "bearer",
        "basic",
        "digest",
        "negotiate",
        # Modes of a browser's fetch.
        "include",
        "omit",
        "same-origin",
    }
)
# Words of a message about an option: `--password needs a value`.
_AFTER_OPTION = frozenset(
    {
        "needs",
        "requires",
        "is",
        "was",
        "must",
        "cannot",
        "has",
        "expects",
        "expected",
        "option",
        "argument",
        "flag",
        "and",
        "or",
    }
)
# Words of ordinary sentences: "invalid token: expected …", "signature: mismatch".
_SPOKEN = frozenset({"token", "signature", "cookie"})


class _Named(NamedTuple):
    """A name in a text, followed by something that a value may follow."""

    start: int  # of the part of the name that is secret
    name: str  # that part
    name_end: int  # of the complete name
    between: str
    end: int  # start of the value


def without_named(text: str) -> tuple[str, int]:
    """Return `text` without the values of secret names, and the number hidden."""
    if _MAY_NAME.search(text) is None:
        return text, 0
    text, hidden = without_columns(text)
    lower = _lower(text)
    parts, at = [], 0
    repeated: set[str] = set()
    branches = _Branches(text)
    for found in _names(lower):
        if found.start < at:
            continue  # inside a hidden value
        name = _complete_name(text, found)
        if name and not is_secret_name(name) and _DRAWN.match(text, found.end) is None:
            continue
        value = _value(text, lower, found, branches) if name else None
        is_code = value is not None and value[0] == found.end and _is_code(found, name, text[slice(*value)])
        if value is not None and not is_code and _is_hidden(found, name, text[slice(*value)]):
            start, end = value
            if len(repeated) < _MOST_REPEATED and _is_unmistakable(text[start:end]):
                repeated.add(text[start:end])
            parts += [text[at:start], PLACEHOLDER]
            hidden, at = hidden + 1, end
        elif not name or not is_secret_name(name):
            continue
        else:
            opened = _QUOTE.match(text, found.end)
            end = opened.end() if opened and value is None else -1
        change = _CHANGE.match(text, end) if end >= 0 else None
        if change and (opened := _QUOTE.match(text, change.end())) and (later := _quoted(text, found, opened)):
            parts += [text[at : later[0]], PLACEHOLDER]
            hidden, at = hidden + 1, later[1]
    parts.append(text[at:])
    text = "".join(parts)
    if "<" in text:
        text, count = replace_counted(_TAG, _hide_element, text)
        hidden += count
    for again in sorted(repeated, key=len, reverse=True):
        if again in text:
            text, count = re.subn(rf"(?<!\w){re.escape(again)}(?!\w)", PLACEHOLDER, text)
            hidden += count
    return text, hidden


def _is_hidden(found: _Named, name: str, value: str) -> bool:
    """Return whether a value after such a name is its secret: not code, and not already masked."""
    if "****" in value or (len(value) < 100 and value.lower() == name.lower().lstrip("_")):
        return False
    if found.name == "sess" and not _SESSION_ID.search(name):
        return len(value) >= 8 and _DIGIT.search(value) is not None
    return is_secret_name(name) or is_key(name, value)


def _is_code(found: _Named, name: str, value: str) -> bool:
    """Return whether an unquoted value is a variable or type in a line of code. Settings files contain `name=value`."""
    if (
        found.name not in _DRAWN_NAMES
        or found.between not in _OF_CODE
        or name.isupper()
        or "-" in name
        or len(value) > 99
    ):
        return False
    is_repeated = value.rpartition(".")[2].replace("_", "").lower() == name.replace("_", "").lower()
    return is_repeated or bool(_VARIABLE.match(value) or (found.between == ": " and _TYPE.match(value)))


def _is_unmistakable(value: str) -> bool:
    """Return whether a hidden value is a secret anywhere in the text: no word, number or list."""
    return 6 <= len(value) <= 200 and not value.isalpha() and not value.isdigit() and _OF_WORDS.match(value) is None


def may_name(text: str, words: Collection[str] | None) -> bool:
    """Return whether one of the words may be a secret's name: most words are known from earlier jobs, and most
    texts have none.
    """
    return words is None or not text.isascii() or any(map(_may_be_name, words))


@lru_cache(maxsize=8192)
def _may_be_name(token: str) -> bool:
    return len(token) > _LONGEST_NAME or is_secret_name(token) or names_a_key(token) or token.lower() in _LAST_OF_NAMES


def _lower(text: str) -> str:
    """Return the text in lower case with the same length: only one letter gets longer."""
    return text.lower() if text.isascii() else text.replace("İ", "I").lower().translate(LOWER)


def _names(lower: str) -> list[_Named]:
    """Return all names in a lower-case text, in order."""
    found: list[_Named] = []
    for word in _FRAGMENTS + _PARTS if lower.isascii() else _FRAGMENTS + _PARTS + ELSEWHERE:
        start = lower.find(word)
        while start >= 0:
            _add(found, lower, start, word)
            start = lower.find(word, start + len(word))
    for word in _COMMON:
        start = lower.find(word)
        while start >= 0:
            end = start + len(word)
            if not _goes_on(lower, end):
                _add(found, lower, start, word)
            start = lower.find(word, end)
    for word, behind in _BEHIND.items():
        start = lower.find(word)
        while start >= 0:
            if lower[max(0, start - 16) : start].endswith(behind) or (word == "key" and _goes_on(lower, start - 1)):
                _add(found, lower, start, word)
            start = lower.find(word, start + len(word))
    found.sort()
    return found


def _goes_on(lower: str, at: int) -> bool:
    return lower[at : at + 1].isalnum() or lower[at : at + 1] in {"_", "-"}


def _add(found: list[_Named], lower: str, start: int, word: str) -> None:
    between = _BETWEEN.match(lower, start + len(word))
    if between is not None:
        found.append(_Named(start, word, between.start(1), between[1], between.end()))


def _hide_element(found: re.Match[str]) -> str | None:
    """`<wsse:Password>x</…`."""
    value = found[2].strip()
    name = found[1].rpartition(":")[2]
    if found[2][0] in _BEHIND_SLOT and found.string[found.start() - 1 : found.start()] in _BEFORE_SLOT:
        return None
    if value in {"", PLACEHOLDER} or not (is_secret_name(name) or (names_a_key(name) and is_key(name, value))):
        return None
    return found[0][: found.start(2) - found.start()] + PLACEHOLDER


def _complete_name(text: str, found: _Named) -> str:
    """Return the complete name; "" if no secret's value follows: one follows `--password x`, none follows `pinned:
    x`.
    """
    between = found.between
    before = text[max(0, found.start - 60) : found.start]
    if between.isspace():
        outside = before.rstrip(_OF_NAMES)
        option = before[len(outside) :]
        if option.startswith("-") and not option.startswith("--"):  # Go and Java options: `-storepass x`
            if outside[-1:].strip(" \"'\n") or (
                text[found.end : found.end + 1] not in {'"', "'"} and _NO_WORD.match(text, found.end) is None
            ):
                return ""
        elif not option.startswith("--") and _LONG_QUOTED.match(text, found.end) is None:
            return ""
    elif (
        found.name in _COMMON
        and between != "="
        and '"' not in between
        and "'" not in between
        and not between.startswith("] =>")
        and not _is_pass(text, found)
    ):
        return ""
    own = before[len(before.rstrip(_OF_NAME)) :]
    if not own and found.name in ENDINGS:  # `API key: …`
        own = before[len(before.rstrip(_OF_NAME + " .")) :].strip(" .").replace(".", " ").rpartition(" ")[2] + "_"
    name = (own + text[found.start : found.name_end]).lstrip("-")
    return name if is_secret_name(name) or names_a_key(name) else ""


def _is_path(text: str, found: _Named) -> bool:
    return text[max(0, found.start - _LONGEST_NAME) : found.start].rstrip(_OF_NAME).endswith("/")


def _is_pass(text: str, found: _Named) -> bool:
    return found.name in _PASSES and _NO_WORD.match(text, found.end) is not None


def _value(text: str, lower: str, found: _Named, branches: _Branches) -> tuple[int, int] | None:  # noqa: C901
    """Return the span of the value after a name; None if it is not to be hidden."""
    # In one function: each branch is one way to write a value.
    name, between, start = found.name, found.between, found.end
    quote = _QUOTE.match(text, start)
    if quote:
        triple = _TRIPLE.match(text, start)
        if triple:
            end = text.find(triple[1], triple.end())
            return triple.end(), len(text) if end < 0 else end
        if (
            quote[2] not in between
            and text[max(0, found.start - _LONGEST_NAME) : found.start].rstrip(_OF_NAME)[-1:] == quote[2]
        ):
            return None  # it closes the text that contains the name: `prompt='Password: '`
        return _quoted(text, found, quote)
    if "%" in between:
        ends = _ENCODED.match(text, start)
        return (start, ends.end()) if ends and ends.end() - start >= 3 else None
    if text[start : start + 1] == "{" and (braced := _BRACED.match(text, start)):
        return start, braced.end()
    if text[start : start + 1] in {"[", "(", "{"}:
        return branches.value(between, start)
    if between.startswith("] =>"):  # `print_r` writes a value unquoted, to the end of its line
        line = _LINE.match(text, start)
        return (start, line.end()) if line and line[0].strip() not in {"", "Array"} else None
    header_end = _header_end(text, name, between, start)
    if header_end is not None:
        return start, header_end
    if text[start : start + 1] in {"|", ">"} and (block := _BLOCK.match(text, start)):
        return _block(text, block)
    if _WORDS_ALONE.match(text, start):
        return None
    wrapped = _WRAPPED.match(text, start)
    if wrapped and (inner := _QUOTE.match(text, wrapped.end())):
        return _quoted(text, found, inner)
    ends = _BARE.match(text, start)
    if ends is None or ends.end() - start < 3:
        return None
    end = ends.end()
    if _is_plain(text, lower, found, end):
        return None
    bare = lower[start:end] if end - start < 100 else ""
    if text[end : end + 1] in {"(", "["}:
        if bare and _CALLED.match(bare):
            return None
        end = _REST_OF_TOKEN.match(text, end).end()  # type: ignore[union-attr]  # matches also nothing
    return start, end


def _is_plain(text: str, lower: str, found: _Named, end: int) -> bool:
    """Return whether the bare word after a name, which ends at `end`, is no secret but a word, path, amount or
    heading.
    """
    name, between, start = found.name, found.between, found.end
    bare = lower[start:end] if end - start < 100 else ""
    return bool(
        ("\n" in between and _NAMES.match(text, end))  # a heading: `COOKIES:\ncsrftoken = '…'`
        or bare == name
        or bare.rstrip(".") in _PLAIN_WORDS
        or bare.startswith(":")
        or _ATTRIBUTE.match(bare)
        or (name in _SPOKEN and bare.isalpha() and between.endswith(": "))
        or (name == "authorization" and bare.isalpha() and lower[end : end + 1] == " " and text[start].islower())
        or (between.isspace() and bare in _AFTER_OPTION)
        # `/run/secrets/db_password: Permission denied`
        or (between.rstrip(" ") != between and _is_path(text, found))
        or (bare.startswith("/") and _FOLDER.search(text, max(0, found.start - 4), found.name_end))
        or (name == "token" and bare.isdigit() and lower.startswith("tokens", found.start))  # an amount
    )


def _quoted(text: str, found: _Named, quote: re.Match[str]) -> tuple[int, int] | None:
    start, end = quote.end(), _end_of_quoted(text, quote)
    bare = text[start:end] if end - start < 100 else ""
    # `"password": ""` contains nothing; `password="password"` is a line of code in a traceback.
    if start == end or bare in {PLACEHOLDER, found.name} or _WORDS_ALONE.match(text, start, end + 1):
        return None
    if "," not in found.between:
        return start, end
    if _OPTION.fullmatch(bare):  # `["sshpass", "-p", "…"]`
        return None
    # `{"name": "DB_PASSWORD", "value": "…"}`: the next string is a name, and the one after it the value.
    then = _THEN.match(text, end)
    if then:
        second = _QUOTE.match(text, then.end()) if bare.lower() in _NAMED_SO else None
        return _quoted(text, found._replace(between=":"), second) if second else None
    # `("password", "…")` is a pair; `["id", "token", "name"]` are names.
    is_pair = text[max(0, found.start - 60) : found.start].rstrip(_OF_NAMES + "\\\"'bru")[-1:] in {"(", "["}
    closes = text[end : end + 10].lstrip("\\\"'")[:1] in {")", "]"}
    is_name = (bare.replace("_", "").isalpha() and bare.islower()) or _SNAKE_CASE.fullmatch(bare) is not None
    return None if is_name and not (is_pair and closes and found.name not in _COMMON + _PARTS) else (start, end)


class _Branches:
    """Complete lists and objects after a secret name, `'tokens': ['…']`; code that builds one is not hidden.

    Each character is read once, whatever number of names precede unclosed or nested brackets: a hidden branch is
    skipped with its content, and a branch without secrets has none inside either.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._harmless_to = 0  # nothing up to here is data

    def value(self, between: str, start: int) -> tuple[int, int] | None:
        """Return the span of the list or object that opens at `start`; None if it is not to be hidden."""
        text = self._text
        if between.isspace() or (between != "=" and '"' not in between and "'" not in between):
            return None
        if start < self._harmless_to or text.startswith(PLACEHOLDER[1:-1], start + 1):
            return None
        schema = _SCHEMA.search(text, start + 1, start + 1 + 200)
        if schema and self._end(start, schema.end()) is None:
            return None
        end = self._end(start, len(text)) or len(text)
        if _DATA.search(text, start, end) is None or _ANSWERS.fullmatch(text, start, end):
            self._harmless_to = end
            return None
        return start, end

    def _end(self, start: int, limit: int) -> int | None:
        """Return the position after the closing bracket; None if there is none before `limit`."""
        depth, within = 0, ""
        for found in _BRACKETS.finditer(self._text, start, limit):
            mark = found[0]
            if within:
                within = "" if mark == within else within
            elif mark[-1] in "\"'":
                within = mark
            else:
                depth += 1 if mark in "[({" else -1
                if depth == 0:
                    return found.end()
        return None


def _block(text: str, block: re.Match[str]) -> tuple[int, int]:
    """Return the span of the lines indented at least like the first."""
    newline, indent = block.groups()
    start = end = block.start(2)
    while True:
        line = text.find(newline, end)
        if line < 0:
            return start, len(text)
        end = line + len(newline)
        if not text.startswith(indent, end):
            return start, line


def _header_end(text: str, name: str, between: str, start: int) -> int | None:
    """Return the end of the line for a header with several words: `Cookie: a=…; b=…`, `Authorization: Digest …`."""
    if "\n" in between:
        return None
    if name == "authorization":
        scheme = _SCHEME.match(text, start)
        line = (_LINE if scheme and '="' in scheme[0] else _LINE_UNQUOTED).match(text, start) if scheme else None
        return line.end() if line else None
    if name == "cookie" and ":" in between and _COOKIE.match(text, start):
        return _LINE.match(text, start).end()  # type: ignore[union-attr]  # matches also nothing
    return None


def _end_of_quoted(text: str, quote: re.Match[str]) -> int:
    """Return the end of a quoted value: before its closing quote, or at the end of the line if there is none."""
    backslashes, mark = quote.groups()
    if not backslashes:
        return _QUOTED[mark].match(text, quote.end()).end()  # type: ignore[union-attr]  # matches also nothing
    at = text.find(backslashes + mark, quote.end())
    # More backslashes before it: a quote inside the value.
    while at > quote.end() and text[at - 1] == "\\":
        at = text.find(backslashes + mark, at + 1)
    end = len(text) if at < 0 else at
    line = text.find("\n", quote.end(), end)
    return end if line < 0 else line
