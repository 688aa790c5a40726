"""Whether what a message quotes is a name in code or a schema, which stays, or a value: by its form and its neighbours."""

from __future__ import annotations

import re

_NAMES = frozenset(
    "attribute argument arg parameter param keyword kwarg field column property option setting variable header claim scope "  # noqa: SIM905
    "permission privilege role constraint index key table relation schema sequence trigger view extension collection topic "
    "exchange queue module package library class enum type dtype method function operator operation procedure codec encoding "
    "charset algorithm filter tag element attr plugin driver backend dialect engine template block macro directive "
    "feature flag grant event action interface protocol namespace annotation decorator fixture trait slot member object "
    "secret service status state reason code reference".split()
)
_BEFORE_NAMES = _NAMES | {"missing", "lacks", "requires"}
# What carries these words is a person or a thing, not a part of the program.
_THINGS = frozenset(
    "user username customer tenant patient client account person owner author contact recipient sender employee doctor host "  # noqa: SIM905
    "hostname server machine node file filename folder directory path dir order invoice article product item shop store ward "
    "ticket email mail mailbox address url uri document device session job value values input literal string text data date "
    "time entry line row record id identifier number amount name title label city country street word with database db "
    "section bucket project company organisation organization team group member_id got token password".split()
)
_STRAY = r"(?:['\"`][\w.-]{1,40}['\"`](?:,| and| or) ){0,3}"
_BEFORE = re.compile(
    rf"([A-Za-z]{{2,20}})(?: (?:name|named|called|in (?:the )?([a-z]{{1,20}})))?(?: ?[:=]| is| are)?[ =]?[\[({{]?{_STRAY}\Z"
)
_AFTER = re.compile(r" (?:is (?:an? )?(?:required |mandatory |missing |unknown ))?([a-z]{2,20})\b(?! [=:])")
_IS_MISSING = re.compile(r" (?:is (?:undefined|not defined|required|mandatory|missing)|was not defined)\b")
_CLASS = re.compile(r"<(?:class|enum|flag|module|function|type|unbound method|bound method|built-in function) \Z")
_SUBSCRIPT = re.compile(r"[A-Za-z_\]]\[\Z")
_CODE_KEY = re.compile(
    r"(?i)['\"](?:\w{1,30}[_-]|error|status|grpc|sub)?(?:error|code|type|reason|status|kind|errno)['\"] ?[:=] ?\Z"
    r"|\b(?:error|error_?code|code|reason|status)=\Z"
)

_NAME = re.compile(r"[$@%-]{0,2}[A-Za-z_][A-Za-z_.-]{0,100}\Z")
_NAME_NUMBERED = re.compile(r"[$@%-]{0,2}[A-Za-z_][\w.-]{0,100}\Z")
_CLASS_NAME = re.compile(r"[A-Za-z_][\w.<>]{0,200}\Z")
_CODE = re.compile(r"[A-Za-z][A-Za-z_.:/-]{0,60}\d{0,5}\Z")
# `patient_id`, `PatientId`, `UQ_NUMBER`, `billing.patients_key`: nobody is called that.
_CODED = re.compile(
    r"(?:[A-Za-z]+\.){0,4}(?:_*[A-Za-z]+(?:_[A-Za-z]+)+|[A-Z]?[a-z]+(?:[A-Z][a-z]+){1,6}|[A-Za-z]+__[A-Za-z]+)(?:\.[A-Za-z_]+){0,4}\Z"
)
_FILE_ENDING = re.compile(r"\.[a-z]{2,4}\Z")


def is_name(inside: str, message: str, start: int, end: int) -> bool:
    """Of what stands between the quotes at `start` and `end` of the message."""
    if not _NAME_NUMBERED.match(inside):
        return _CLASS_NAME.match(inside) is not None and _CLASS.search(message, max(0, start - 20), start) is not None
    before = max(0, start - 70)
    if _CLASS.search(message, before, start) or (
        _CODE.match(inside) and len(inside) <= 60 and _CODE_KEY.search(message, before, start)
    ):
        return True
    if _SUBSCRIPT.search(message, before, start):
        return True
    found = _BEFORE.search(message, before, start)
    # `value in column "amount"`: the noun beside the quote, where it is one, else that before it.
    nouns = [_singular(noun.lower()) for noun in reversed(found.groups()) if noun] if found else []
    word = next((noun for noun in nouns if noun in _THINGS or noun in _BEFORE_NAMES), "")
    if word in _THINGS:
        return False
    # An index or a key of data has digits (`key "session17"`), a constraint may.
    if word in _BEFORE_NAMES and (word != "key" or _NAME.match(inside)):
        return True
    if _IS_MISSING.match(message, end):
        return True
    after = _AFTER.match(message, end)
    if after and _singular(after[1]) in _NAMES:
        return True
    return _CODED.match(inside) is not None and ("_" in inside or not _FILE_ENDING.search(inside))


# `insufficient_funds`, `STRIPE_KEY`
_CODE_WORD = re.compile(r"[a-z]{2,20}(?:_[a-z]{1,20}){1,5}\Z|[A-Z][A-Z0-9]{0,20}(?:_[A-Z0-9]{1,20}){1,6}\Z")
_NOUN_BEFORE = re.compile(r"([A-Za-z]{2,20})[ =:]{1,2}\Z")


def is_code_word(word: str, before: str, *, is_thing: bool) -> bool:
    """Whether a word that stands bare in the place of a value is a name in code: by its form, and the noun before it.

    `is_thing`: the value's own name is that of a person or thing (`tenant`), which a noun before it overrules.
    """
    if not _CODE_WORD.match(word):
        return False
    found = _NOUN_BEFORE.search(before, max(0, len(before) - 30))
    noun = _singular(found[1].lower()) if found else ""
    return noun in _BEFORE_NAMES or (noun not in _THINGS and not is_thing)


def _singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and word not in _NAMES and word not in _THINGS else word
