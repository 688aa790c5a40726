"""Canonical form of an error: one name per type, and the message without values, by the line that raised it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple

from jobs_admin.core.normalising import MOST_MESSAGE, is_code_word, normalise

_RAISES = re.compile(r"(?:raise\b|assert\b)")
_LITERAL = re.compile(
    r"(?P<kind>[fF][rR]?|[rR][fF]?|)(?P<quote>[\"'])(?P<text>(?:(?!(?P=quote)).){1,500})(?P=quote)(?P<after> ?%|\.format\(|, ?(?=[a-z_]))?"
)
_FIELD = re.compile(r"\{([^{}]{0,200})\}")
_FIELD_UNNAMED = re.compile(r"\{[^{}]{0,200}\}")
_PERCENT = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?[sdrifgxX]")
_LAST_NAME = re.compile(r"([A-Za-z_]\w*)\W*\Z")
# Values with such names identify the error.
_DESCRIBES = re.compile(
    r"(?i)reason|code|status|state|err|exc|kind|type|why|cause|messag|msg|detail|action|method|field|column|attr|param|option|resp|body|content|\A(?:e|ex|op)\Z"
)

# Values with such names are the error's code, even if numeric. A `zip_code` is not.
_IS_CODE = re.compile(
    r"(?i)(?:\A|(?:error|err|status|http|exit|return|response|reply|fault|result|reason|failure|smtp|sql|api|grpc|os|sys)_?)"
    r"(?:code|status|errno|reason|sqlstate|returncode|state)\Z"
)
_SHORT = re.compile(r"[\w.:/-]{1,40}\Z")
# A word with digits in the code's literal text.
_WRITTEN = re.compile(r"(?<![^\s\[(:,])[\w.-]{0,20}\d[\w-]{0,20}(?=[\s\]):,.;]|\Z)")

_ANY_DIGIT = re.compile(r"\d")

# Values with such names may have several words.
_THING = re.compile(
    r"(?i)name|user|tenant|customer|patient|client|account|person|carrier|partner|provider|vendor|supplier|company|bank|merchant|shop|store|product|article|country|region|address|city|file|path|folder|date|time|value|input|title|label|key"
)


@dataclass(frozen=True, slots=True)
class Template:
    """Message template of a raising line, `raise Refused(f"order {order} of {tenant} refused")`: texts and values."""

    texts: tuple[str, ...]  # around the values, so one more than values
    varies: tuple[bool, ...]
    things: tuple[bool, ...]  # values that may have several words
    codes: tuple[bool, ...]  # values that are the error's code
    is_foreign: bool = False  # of a library: a word may be a schema name there

    def pieces(self, message: str) -> list[Piece] | None:
        """Return the message split into the code's text and values; None if the template does not match."""
        if not message.startswith(self.texts[0]) or (not self.varies and message != self.texts[0]):
            return None
        found, at = [Piece(self.texts[0], is_written=True)], len(self.texts[0])
        for n, text in enumerate(self.texts[1:]):
            is_last = n == len(self.varies) - 1
            ends = len(message) - len(text) if is_last and message.endswith(text) else message.find(text or "\n", at)
            if ends < at:
                return None
            value = message[at:ends]
            is_code = self.codes[n] and _SHORT.match(value) is not None
            found += [Piece(value, self.varies[n], self.things[n], is_code), Piece(text, is_written=True)]
            at = ends + len(text)
        return [*found, Piece(message[at:])]


class Piece(NamedTuple):
    """Part of a message: the code's text, or a value."""

    text: str
    varies: bool = False
    is_thing: bool = False
    is_code: bool = False
    is_written: bool = False

    def constants(self) -> list[tuple[int, int]]:
        """Return the spans (start, end) of words with digits in the code's text, which are constant."""
        if not self.is_written or not _ANY_DIGIT.search(self.text):
            return []
        return [found.span() for found in _WRITTEN.finditer(self.text)]


def template_of(code: str, *, is_foreign: bool = False) -> Template | None:
    """Return the message template of the raising line; None if it has none."""
    if not _RAISES.match(code):
        return None
    for found in _LITERAL.finditer(code[:1000]):
        after = found["after"] or ""
        if "f" in found["kind"].lower():
            parts = _FIELD.split(found["text"])
            texts, names = parts[::2], [_without_format(name) for name in parts[1::2]]
        elif after:
            texts = (_FIELD_UNNAMED if "format" in after else _PERCENT).split(found["text"])
            names = [part.strip(" ()") for part in code[found.end() : 1000].split(",")]
        elif len(code) <= 1000 and code.endswith((found[0] + ")", found[0])):
            return Template((found["text"],), (), (), (), is_foreign)  # no values
        else:
            continue
        # Adjacent values cannot be separated.
        if len(texts) >= 2 and all(texts[1:-1]):
            names += [""] * len(texts)
            names = names[: len(texts) - 1]
            varies = tuple(not _is_descriptive(name) for name in names)
            things = tuple(_is_thing(name) and free for name, free in zip(names, varies, strict=True))
            codes = tuple(_is_code(name) for name in names)
            return Template(tuple(texts), varies, things, codes, is_foreign)
    return None


def _without_format(name: str) -> str:
    return re.split(r"![rsa]|:[^\]]*\Z", name)[0]


def _is_thing(expression: str) -> bool:
    last = _LAST_NAME.search(expression)
    return last is not None and _THING.search(last[1]) is not None


def _is_code(expression: str) -> bool:
    last = _LAST_NAME.search(expression)
    return last is not None and _IS_CODE.match(last[1]) is not None


def _is_descriptive(expression: str) -> bool:
    last = _LAST_NAME.search(expression)
    return last is not None and _DESCRIBES.search(last[1]) is not None


# -- the type ---------------------------------------------------------------------------------------------------

# Aliases of one class in different versions of Python.
_ONE_CLASS = {"timeout": "TimeoutError", "IOError": "OSError", "EnvironmentError": "OSError", "socket.error": "OSError"}


def name_of(error_type: str) -> str:
    """Return the class name without its module: libraries move their errors between modules."""
    name = error_type.rpartition(".")[2]
    return _ONE_CLASS.get(name) or _ONE_CLASS.get(error_type) or name


# -- the message ------------------------------------------------------------------------------------------------

# Quoted words are names in code here (`has no attribute 'total'`): two names are two problems.
_QUOTES_NAMES = {
    "AttributeError",
    "ImportError",
    "KeyError",
    "ModuleNotFoundError",
    "NameError",
    "TypeError",
    "UnboundLocalError",
    "UndefinedError",
    "FieldError",
}
# A single word in the position of a value, and text already recognised as a value.
_BARE_WORD = re.compile(r"\w[\w.@:/+~-]{0,120}\Z")
_SENTENCE = re.compile(r"[A-Z][^ ]{0,40} (?:[^ ]{1,60} ){0,6}?[a-z]")
_PLACEHOLDER = re.compile(r"<[a-z]{2,6}>\Z")
_QUALIFIED = re.compile(r"\b(?:\w{1,100}\.(?:<locals>\.)?){1,10}(?=\w{1,100}\(\) )")


def plain_message(
    name: str, message: str, template: Template | None, replaced: list[tuple[str, str]] | None = None
) -> str:
    """Return the message without its values. `name`: the type from `name_of`. `template`: that of the raising line."""
    if name == "TypeError":
        # `Invoice.total() missing 1 required …`: Python 3.9 writes `total()`.
        message = _QUALIFIED.sub("", message[:MOST_MESSAGE])
    if name == "KeyError" and len(message) > 2 and message[0] == message[-1] and _SENTENCE.match(message[1:-1]):
        message = message[1:-1]  # a KeyError prints a sentence like a key
    keep_names = name in _QUOTES_NAMES
    pieces = template.pieces(message) if template is not None else None
    if pieces is None:
        return normalise(message, keep_names=keep_names, replaced=replaced)
    # A bare word in the position of a value (`tenant acme has no gateway`): the code shows that it varies.
    protected: list[str] = []  # text that stays unchanged

    def protect(words: str) -> str:
        protected.append(words)
        return chr(_FIRST_PROTECTED + len(protected) - 1)

    text = ""
    is_foreign = template is not None and template.is_foreign
    for piece in pieces:
        is_word = piece.varies and not is_foreign and _BARE_WORD.match(piece.text)
        if len(protected) > _MOST_PROTECTED:
            text += piece.text
        elif piece.is_code or (is_word and is_code_word(piece.text, text, is_thing=piece.is_thing)):
            text += protect(piece.text)
        elif (is_word and not _PLACEHOLDER.match(normalise(piece.text))) or (piece.is_thing and " " in piece.text):
            if replaced is not None:
                replaced.append(("word", piece.text))
            text += "\x00"
        else:
            at = 0
            for start, end in piece.constants()[:20]:
                text += piece.text[at:start] + protect(piece.text[start:end])
                at = end
            text += piece.text[at:]
    plain = normalise(text, keep_names=keep_names, replaced=replaced).replace("\x00", "<word>")
    if not protected:
        return plain
    return _PROTECTED.sub(lambda found: "".join(protected[ord(found[0]) - _FIRST_PROTECTED :][:1]), plain)


_FIRST_PROTECTED, _MOST_PROTECTED = 0xE000, 100  # in Unicode's private use area
_PROTECTED = re.compile("[\ue000-\ue0ff]")


@lru_cache(maxsize=2048)
def plain_known(name: str, message: str, template: Template | None) -> str:
    """Return `plain_message`, cached: most messages repeat soon, as a job is retried."""
    return plain_message(name, message, template)


_NOTHING_HAS = re.compile(r"'NoneType' object has no attribute '(\w{1,80})'\Z")


def name_of_none(plain: str, code: str) -> str:
    """Return ` (payer)` for `'NoneType' object has no attribute 'iban'` raised by `send(payer.iban)`: the missing
    object.
    """
    found = _NOTHING_HAS.match(plain)
    if not found:
        return ""
    names = set(re.findall(rf"\b(\w{{1,80}})(?:\(\)|\[[^\[\]]{{0,80}}\])?\.{found[1]}\b", code[:1000]))
    return f" ({names.pop()})" if len(names) == 1 else ""


# Errors that Python raises for a value; only the line shows which field it came from.
_OF_A_VALUE = {"ValueError", "TypeError", "InvalidOperation", "OverflowError", "ParserError"}
_READ = re.compile(r"\[['\"](\w{1,80})['\"]\]|\.get\(['\"](\w{1,80})['\"]")


def value_read(name: str, code: str) -> str:
    """Return ` (amount)` for `float(row["amount"])`: the only field that the failed line reads."""
    if name not in _OF_A_VALUE or code.startswith(("raise ", "assert ")):
        return ""
    names = {one or other for one, other in _READ.findall(code[:1000])}
    return f" ({names.pop()})" if len(names) == 1 else ""


# -- shorter forms ---------------------------------------------------------------------------------------------------

_STATUS = re.compile(r"\b[45]\d\d\b")
_REPR_WITH_STATUS = re.compile(r"[A-Z]\w{0,80}\(.{0,2000}\bstatus(?:_code)?=[45]\d\d\b")
WORD = re.compile(r"[a-z]+(?![a-z]*>)")
_ABOUT_STATUS = frozenset(
    "a an and answered at by check client code error failed for from get got http https information message more post "  # noqa: SIM905
    "put received request requests response returned server status the unexpected url was with".split()
)


@lru_cache(maxsize=1024)
def status_alone(plain: str) -> str:
    """Return `HTTP 404` for a message with no other content, in any words and order."""
    found = _STATUS.search(plain)
    if found is None:
        return plain
    # As Celery formats an error that cannot be pickled: with all headers of the response.
    if _REPR_WITH_STATUS.match(plain):
        return f"HTTP {found[0]}"
    try:
        phrase = HTTPStatus(int(found[0])).phrase.lower()
    except ValueError:
        return plain
    words = set(WORD.findall(plain.lower()))
    return f"HTTP {found[0]}" if words <= _ABOUT_STATUS | set(phrase.split()) | set(WORD.findall(phrase)) else plain


# Words that only state that something failed.
_GENERIC = frozenset(
    "a after again all an and attempt attempts be been call caught client completed connect connecting "  # noqa: SIM905
    "connection could encountered error errors exception fail failed failing failure fatal fetch for gave "
    "general generic giving happened has have http https in internal is issue it job max maximum network "
    "none not null occurred of on operation perform please problem processing raised reason request "
    "response retries retry server service something task the there this to transport try unable "
    "unexpected unhandled unknown unspecified up was went while with wrong".split()
)
_CAPITAL = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def is_generic(name: str, plain: str) -> bool:
    """Return whether a message has no content (`Unknown error`, `Request failed`, the class name, no words): its
    cause says more.
    """
    if len(plain) > 100:
        return False
    words = WORD.findall(plain.lower())
    if not words:
        return not _DIGIT.search(plain)
    return set(words) <= _GENERIC or words == [word.lower() for word in _CAPITAL.findall(name)]


_DIGIT = re.compile(r"\d")

# Messages of the operating system within a library's message.
_SYSTEM_MESSAGE = re.compile(
    r"(?:\[Errno -?\d{1,6}\] )?((?i:connection refused|connection reset by peer|connection timed out|broken pipe|no route to host"
    r"|network is unreachable|name or service not known|temporary failure in name resolution|nodename nor servname provided"
    r"|no address associated with hostname|no space left on device|too many open files|cannot allocate memory))"
)


def system_error(plain: str) -> str:
    """Return `connection refused` for any library's wording; the message itself if it contains no system error."""
    found = _SYSTEM_MESSAGE.search(plain)
    return found[1].lower() if found else plain
