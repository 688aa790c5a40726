"""Error messages without their values: `order 17` -> `order <number>`, each variable part named by its kind.

Documents in a message (JSON, schemas) shrink to their codes; quoted names of code or a schema stay, quoted values do
not.
"""

from __future__ import annotations

import re
from functools import lru_cache

_NAMES = frozenset(
    "attribute argument arg parameter param keyword kwarg field column property option setting variable header claim scope "  # noqa: SIM905
    "permission privilege role constraint index key table relation schema sequence trigger view extension collection topic "
    "exchange queue module package library class enum type dtype method function operator operation procedure codec encoding "
    "charset algorithm filter tag element attr plugin driver backend dialect engine template block macro directive "
    "feature flag grant event action interface protocol namespace annotation decorator fixture trait slot member object "
    "secret service status state reason code reference".split()
)
_BEFORE_NAMES = _NAMES | {"missing", "lacks", "requires"}
# Quoted text after these nouns is the name of a person or thing, not part of the program.
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
_CODE_KEY_BEFORE = re.compile(
    r"(?i)['\"](?:\w{1,30}[_-]|error|status|grpc|sub)?(?:error|code|type|reason|status|kind|errno)['\"] ?[:=] ?\Z"
    r"|\b(?:error|error_?code|code|reason|status)=\Z"
)

_NAME = re.compile(r"[$@%-]{0,2}[A-Za-z_][A-Za-z_.-]{0,100}\Z")
_NAME_NUMBERED = re.compile(r"[$@%-]{0,2}[A-Za-z_][\w.-]{0,100}\Z")
_CLASS_NAME = re.compile(r"[A-Za-z_][\w.<>]{0,200}\Z")
_ERROR_CODE = re.compile(r"[A-Za-z][A-Za-z_.:/-]{0,60}\d{0,5}\Z")
# `patient_id`, `PatientId`, `UQ_NUMBER`, `billing.patients_key`: identifiers, never names of persons.
_CODED = re.compile(
    r"(?:[A-Za-z]+\.){0,4}(?:_*[A-Za-z]+(?:_[A-Za-z]+)+|[A-Z]?[a-z]+(?:[A-Z][a-z]+){1,6}|[A-Za-z]+__[A-Za-z]+)(?:\.[A-Za-z_]+){0,4}\Z"
)
_FILE_ENDING = re.compile(r"\.[a-z]{2,4}\Z")


def is_name(inside: str, message: str, start: int, end: int) -> bool:
    """Return whether `inside`, between the quotes at `start` and `end` of the message, is a name in code."""
    if not _NAME_NUMBERED.match(inside):
        return _CLASS_NAME.match(inside) is not None and _CLASS.search(message, max(0, start - 20), start) is not None
    before = max(0, start - 70)
    if _CLASS.search(message, before, start) or (
        _ERROR_CODE.match(inside) and len(inside) <= 60 and _CODE_KEY_BEFORE.search(message, before, start)
    ):
        return True
    if _SUBSCRIPT.search(message, before, start):
        return True
    found = _BEFORE.search(message, before, start)
    # `value in column "amount"`: the noun next to the quote if there is one, else the noun before it.
    nouns = [_singular(noun.lower()) for noun in reversed(found.groups()) if noun] if found else []
    word = next((noun for noun in nouns if noun in _THINGS or noun in _BEFORE_NAMES), "")
    if word in _THINGS:
        return False
    # An index or key with digits is data (`key "session17"`), a constraint need not be.
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
    """Return whether an unquoted word in a value's position is a name in code, by its form and the noun before it.

    `is_thing`: the value's own name is a person or thing (`tenant`), which a noun before it overrides.
    """
    if not _CODE_WORD.match(word):
        return False
    found = _NOUN_BEFORE.search(before, max(0, len(before) - 30))
    noun = _singular(found[1].lower()) if found else ""
    return noun in _BEFORE_NAMES or (noun not in _THINGS and not is_thing)


def _singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and word not in _NAMES and word not in _THINGS else word


_PARAGRAPH = re.compile(r"\n[ \t]*\n")
_WORD = re.compile(r"[A-Za-z]{2}")
_DEBUG = re.compile(r"(?m)\b(debug\w{0,40} ?= ?)[^\n]{1,4096}$")
# A document with more keys than this is not read by people.
_FEW_KEYS = 3
_OPENS = re.compile(r"\{\s{0,8}(?:\"[\w.@$ -]{1,60}\"|'[\w.@$ -]{1,60}')\s?:")
_STEP = re.compile(
    r"(?P<open>[{\[])|(?P<close>[}\]])"
    r"|(?:\"(?P<key>[\w.@$ -]{1,60})\"|'(?P<key2>[\w.@$ -]{1,60})')\s?:\s{0,8}"
    r"(?:\"(?P<text>(?:[^\"\\\n]|\\.){0,500})\"|'(?P<text2>(?:[^'\\\n]|\\.){0,500})'|(?P<number>-?\d{1,9})\b)?"
    r"|\"(?:[^\"\\\n]|\\.){0,500}\"|'(?:[^'\\\n]|\\.){0,500}'"
)
_CODE_KEY = re.compile(
    r"(?i)(?!content)(?:\w{1,40}[_-]|error|status|sub)?(?:error|code|type|reason|status|kind|errno)\Z"
)
_NUMBER_KEY = re.compile(r"(?i)(?:\w{1,40}[_-]|error|status|sub)?(?:code|status|errno|result)\Z")
_TEXT_KEY = re.compile(
    r"(?i)(?:\w{1,40}[_-])?(?:message|msg|detail|details|desc|description|reason|error|title|info|summary|errormessage|errmsg)\Z"
)
_CODE = re.compile(r"[A-Za-z][A-Za-z_.:/-]{0,60}\d{0,5}\Z")
_DEEPEST = 2  # `{"Error": {"Code": …}}`


def without_documents(message: str) -> str:
    """Return the head of the message, with each document in it reduced to the codes that identify the error."""
    message = _head(message)
    if "debug" in message:
        message = _DEBUG.sub(r"\1<values>", message)
    if "{" not in message:
        return message
    parts, at = [], 0
    while (found := _OPENS.search(message, at)) is not None:
        end, keys, summary = _read(message, found.start())
        if keys > _FEW_KEYS:
            summary = summary or ("<values>" if len(_WORD.findall(message, 0, found.start())) > 2 else "")
        parts += [
            message[at : found.start()],
            f"{{{summary}}}" if keys > _FEW_KEYS and summary else message[found.start() : end],
        ]
        at = end
    return "".join([*parts, message[at:]])


def _head(message: str) -> str:
    """Return the first paragraph, the next one if the first only announces it, and headings of blocks in later ones."""
    if "\n" not in message:
        return message
    first, *others = _PARAGRAPH.split(message.strip())
    while others and (first.rstrip().endswith(":") or len(_WORD.findall(first)) < 2):
        first = f"{first}\n{others.pop(0)}"
    for paragraph in others:
        heading, _, block = paragraph.partition("\n")
        if heading.endswith(":") and heading[:1].strip() and block[:1] in {" ", "\t"}:
            first = f"{first}\n{heading}"
    return first


def _read(message: str, start: int) -> tuple[int, int, str]:
    """Return the end of the document that starts at `start`, its number of keys, and its codes or else its words."""
    depth = keys = 0
    codes: dict[str, None] = {}
    words: dict[str, None] = {}
    for step in _STEP.finditer(message, start):
        kind = step.lastgroup
        if kind == "open":
            depth += 1
        elif kind == "close":
            depth -= 1
            if depth <= 0:
                return step.end(), keys, ", ".join(sorted(codes) or words)
        elif (key := step["key"] or step["key2"]) is not None:
            keys += 1
            if depth > _DEEPEST:
                continue
            text = step["text"] or step["text2"]
            if text and _CODE_KEY.match(key) and _CODE.match(text):
                codes[f"{key}: {text}"] = None
            elif step["number"] and _NUMBER_KEY.match(key):
                codes[f"{key}: {step['number']}"] = None
            elif text and _TEXT_KEY.match(key):
                words[text] = None
    return len(message), keys, ", ".join(sorted(codes) or words)


MOST_MESSAGE = 4096  # characters read

# Error codes, by vendor or by position: `ORA-00942`, `E1001: …`, `[E1001] …`, `(E17)`.
_CODES = (
    r"(?:ORA|TNS|PLS|DPY|DPI|RMAN|SQL|SQLSTATE|AADSTS|ERR|ERROR|EC|AMQ|JMS|CWWK[A-Z]|SRVE|DSRA|KBN|TF|MSB|CVE|NETSDK|SP2)[-_]?\d{2,7}[A-Z]?"
    r"(?![\w-])"
    r"|(?:(?<=\[)|(?<=\())[A-Z]{1,4}\d{2,5}(?=[\])])"
    r"|(?:\A|(?<=: )|(?<=\n))[A-Z]{1,4}\d{2,5}(?=:(?!\d)| - )"
)
# Patterns tried where a word, a quote or a sign starts. The first match at a position wins; its name becomes the
# placeholder: `order 17` -> `order <number>`. Each repetition is bounded or starts only at the start of a word, so the
# result is linear.
_PATTERNS = {
    "code": _CODES,
    "kept": r"\[Errno -?\d{1,6}\]|[45]\d\d(?= (?:Client |Server )?[A-Z][a-z]|, message=| error\b)|(?<=\()\d{1,5}(?=, b?['\"])",
    "url": r"[a-zA-Z][a-zA-Z0-9+.]{1,15}://[^\s'\"<>]{1,2000}|(?<=\burl: )/[^\s'\"<>]{0,2000}",
    "email": r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}",
    # Names of data files; `settings.py` and `order.html` are names in code.
    "file": (
        r"(?<![\w.-])\w[\w.-]{0,120}\.(?:csv|tsv|txt|pdf|docx?|xlsx?|zip|t?gz|tar|bz2|parquet|avro|jsonl?|xml|png|jpe?g|gif|tiff?|webp"
        r"|svg|dat|bak|log|eml|mp[34]|wav|edi|hl7|dcm)(?![\w(]|\.\w)"
    ),
    "time": (
        r"(?<!\d)\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?: ?Z|[+-]\d\d:?\d\d)?)?(?!\d)"
        r"|(?<![\d:])T?\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?![\d:])"
        r"|[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d(?: GMT| [+-]\d{4})?"
    ),
    "uuid": r"(?<!\d)[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?!\w)",
    "ip": (
        r"(?<![\w.])\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?::\d{1,5})?(?!\w|\.\d)"
        r"|(?<![\w:])(?:[0-9a-fA-F]{1,4}:){3,7}(?::|[0-9a-fA-F]{1,4})(?![\w:])"
        r"|(?<![\w:])(?:[0-9a-fA-F]{1,4}:){1,6}(?::[0-9a-fA-F]{1,4}){1,6}(?![\w:])"
    ),
    "host": (r"(?<![\w.-])(?:localhost|[A-Za-z0-9](?:[\w-]{0,62}\.){1,8}[A-Za-z][A-Za-z-]{1,62}):\d{1,5}(?!\w)"),
    "path": (
        r"(?<![\w/.~])~?(?:/[\w.@+%=-]{1,255}){2,64}/?(?![\w/])"
        r"|(?<!\w)[A-Za-z]:(?:\\[^\\/:*?\"<>|\r\n']{1,255}){1,64}"
    ),
    "quoted": r"(?<!\w)b?'[^'\n]{0,500}'(?!\w)|\"[^\"\n]{0,500}\"|`[^`\n]{0,500}`"
    r"|“[^”\n]{0,500}”|‘[^’\n]{0,500}’",
    "hex": r"(?<!\w)(?:0[xX][0-9a-fA-F]{1,64}|(?=[a-fA-F]{0,64}\d)(?=\d{0,64}[a-fA-F])[0-9a-fA-F]{8,128})(?!\w)",
    # A token with letters between digits (`cus_9s6XKzkNRiz`, `9f31c2`), or an article or ticket number (`INV-2026-17`);
    # `customer_17` is a word and a number.
    "id": (
        r"(?<!\w)(?=[A-Za-z_]{0,64}\d{1,64}[A-Za-z])(?:\w{8,200}|(?=\d{0,6}[A-Za-z]{0,6}\d{1,6}[A-Za-z]{1,6}\d)\w{5,7})(?!\w)"
        r"|(?<![\w-])[A-Z]{1,6}(?:-[A-Z0-9]{1,12}){0,4}-\d{1,12}(?:-\w{1,20})?(?!\w)"
    ),
}
_NUMBER = r"(?:(?<![\w)\]>.-])-)?\d{1,400}(?:[.,]\d{1,400}){0,9}(?:[eE][+-]?\d{1,4}\b)?"
# Signs without which a pattern cannot match.
_SIGNS = {
    "url": re.compile("://|url: /"),
    "email": re.compile("@"),
    "host": re.compile(":"),
    "file": re.compile(r"\."),
    "path": re.compile(r"[/\\]"),
    "quoted": re.compile("['\"`“‘]"),
}
_OF_DIGITS = ("time", "uuid", "ip", "host", "hex", "id", "kept", "code")
_MAY_BE_CODE = re.compile(r"[A-Z][-_]?\d")
_REPEATED = re.compile(r"(<[a-z]{2,6}>)(?:,? ?\1)+")
_KIND = re.compile(f"<(?:{'|'.join(_PATTERNS)}|number|word|values)>")
_SIDE_BY_SIDE = re.compile(r"<value>(?:[-_/.:,; ]{0,2}<value>)+")
_LIST = re.compile(r"[\[(]<value>,?[\])]")
_JOINED = re.compile(r"[-_]<value>")


@lru_cache(maxsize=256)
def _variable(has_digits: bool, may_be_code: bool, *has_signs: bool) -> re.Pattern[str]:
    """Return the pattern of all kinds that can match. `has_signs`: for each name in _SIGNS."""
    signs = dict(zip(_SIGNS, has_signs, strict=True))
    names = [
        name
        for name in _PATTERNS
        if (has_digits or name not in _OF_DIGITS) and (may_be_code or name != "code") and signs.get(name, True)
    ]
    if not names:
        return re.compile(f"(?P<number>{_NUMBER})")
    patterns = "|".join(f"(?P<{name}>{_PATTERNS[name]})" for name in names)
    # Only a number can start inside a word.
    return re.compile(f"(?<![A-Za-z_])(?=[^\\s,.;=)])(?:{patterns})|(?P<number>{_NUMBER})")


def _worth_trying(message: str) -> re.Pattern[str]:
    has_digits = _DIGIT.search(message) is not None
    return _variable(
        has_digits,
        has_digits and _MAY_BE_CODE.search(message) is not None,
        *[sign.search(message) is not None for sign in _SIGNS.values()],
    )


_DIGIT = re.compile(r"\d")
_DATA_FILE = re.compile(r"\.(?:csv|tsv|txt|pdf|docx?|xlsx?|zip|gz|jsonl?|xml|png|jpe?g|dat|log|eml).\Z")
_NAME_IN_QUOTES = re.compile(r"['\"`][A-Za-z_][A-Za-z_.-]{0,100}['\"`]\Z")
# Numbers that identify the error stay.
_BEFORE_NUMBER = re.compile(
    r"(?i)\b(?:http(?: ?error)?|status(?:[ _]code)?|sqlstate|exit (?:code|status)|signal|errno|error code)[ :=]{1,2}\Z"
    r"|[{,(] ?['\"]?(?:\w{1,20}_)?(?:code|status|errno|result)['\"]?: ?\Z"
)
# `returned 404`, `failed with 17`; but `returned 404 rows`.
_BEFORE_STATUS = re.compile(
    r"(?i)\b(?:returned|responded|answered|replied|got|gave|failed|rejected|refused|ended|exited|status was)"
    r"(?: with)?(?: an?)?(?: http| status| error| code){0,2}[ :=]{1,2}\Z"
)
_IS_SHORT_NUMBER = re.compile(r"[1-5]\d\d\Z")
_COUNTED = re.compile(
    r" (?!status|errors?\b)(?:more |of |[a-z]{2,20}s\b|[a-z]{2,20} [a-z]{2,20}s\b)|%| ?[kMG]?B\b| ?m?s\b"
)
_BEFORE_CODE = re.compile(
    r"(?i)\b(?:error|err|code|fault|reason|sqlstate|status|exception|failure|failed|rejected|refused|declined|denied|returned)"
    r"(?: (?:with|code|no\.?|number|by)){0,2}[ :=#]{1,3}[\[(\"']?\Z"
)
_IS_CODE = re.compile(r"[A-Z]{1,6}\d{2,6}[A-Z]?\Z|[A-Z0-9]{5}\Z")
_KEY = re.compile(r"[{ (\[,]\Z")
_KEY_OF = re.compile(r"[A-Za-z_][\w.-]{0,100}\Z")
_KEY_ENDS = re.compile(r": |:[\"'\[{\dtfn-]")
# Text quoted in an error's repr, as a status or as a field's message: it is normalised too.
_BEFORE_TEXT = re.compile(
    r"[A-Z]\w{0,60}(?:Error|Exception|Timeout|Refused|Disconnected)\(\Z|\b(?:message|reason|msg|details?|code|description|str) ?= ?\Z"
    r"|['\"](?:\w{1,30}_)?(?:message|reason|e?msg|errmsg|details?|code|type|desc|description|error|info|summary|title)['\"]: ?\Z"
    r"|\(\d{1,5}, \Z"
    # An error with several arguments prints them as a tuple.
    r"|\A\((?:b?['\"][^'\"\n]{0,60}['\"], )?\Z"
)
# A sentence quoted after these is another system's message.
_BEFORE_SENTENCE = re.compile(
    r": \[\Z|[\w)] \(\Z|(?i:\b(?:returned|said|says|answered|replied|responded|because|reason"
    r"|message|error|details?|failed)(?: with)?:? )\Z"
)
_IS_SENTENCE = re.compile(r"[A-Z][^ ]{0,40} (?:[^ ]{1,40} ){0,5}?[a-z]")
_IS_STATUS = re.compile(r"[1-5]\d\d [A-Z]")


def normalise(message: str, *, keep_names: bool = False, replaced: list[tuple[str, str]] | None = None) -> str:
    """Return the message in one line, with each variable part replaced by `<number>`, `<uuid>`, `<url>` …

    `keep_names`: keep quoted words that could be names in code. `replaced`: receives the replacements, (name, text).
    """
    plain = _normalised(_without_quotations(without_documents(message[:MOST_MESSAGE])), keep_names, replaced, 0)
    # Lists of three and of two ids are the same.
    return " ".join(_REPEATED.sub(r"\1", plain).split())


def unify_placeholders(plain: str) -> str:
    """Return a normalised message with one placeholder for all kinds: a tenant may be a word, an address or a
    number.
    """
    plain = _LIST.sub("<value>", _SIDE_BY_SIDE.sub("<value>", _KIND.sub("<value>", plain)))
    plain = _JOINED.sub("-<value>", _SIDE_BY_SIDE.sub("<value>", plain))
    # One bad row of an upload and two are the same.
    if ", " in plain:
        parts = {part.strip("{}[]()"): part for part in reversed(plain.split(", "))}
        plain = ", ".join(reversed(parts.values()))
    return plain.rstrip("}])")


_CAPITALS_BEFORE = re.compile(r"(?<!\w)[A-Z]{1,6}\Z")


def _is_code(start: int, message: str, end: int) -> bool:
    """Return whether the word there has the form of an error code and is announced by the words before it: `error
    E1001`.
    """
    return _IS_CODE.match(message, start, end) is not None and (
        _BEFORE_CODE.search(message, max(0, start - 40), start) is not None
    )


def _normalised(message: str, keep_names: bool, replaced: list[tuple[str, str]] | None, depth: int) -> str:
    def placeholder(found: re.Match[str]) -> str:
        # In one function: it is called for each variable part of each message.
        name = found.lastgroup or ""
        text = found[0]
        if name in ("kept", "code"):
            return text
        start = found.start()
        if name == "number":
            before = max(0, start - 40)
            if _BEFORE_NUMBER.search(message, before, start):
                return text
            if (
                len(text) == 3
                and _IS_SHORT_NUMBER.match(text)
                and _BEFORE_STATUS.search(message, before, start)
                and not _COUNTED.match(message, found.end())
            ):
                return text
            prefix = _CAPITALS_BEFORE.search(message, before, start) if message[start - 1 : start].isupper() else None
            if prefix and _is_code(prefix.start(), message, found.end()):
                return text
        elif name == "id":
            if _is_code(start, message, found.end()):
                return text
        elif name == "quoted":
            if keep_names and _NAME_IN_QUOTES.match(text) and not _DATA_FILE.search(text):
                return text
            before = max(0, start - 70)
            opening = 2 if text[0] == "b" else 1
            inside = text[opening:-1]
            if is_name(inside, message, start, found.end()) or (
                _KEY_OF.match(inside) and _KEY_ENDS.match(message, found.end()) and _KEY.search(message, before, start)
            ):
                return text
            if depth < 2 and (
                _BEFORE_TEXT.search(message, before, start)
                or _IS_STATUS.match(inside)
                or (inside.count(" ") > 1 and message[:start] == "[")
                or (_IS_SENTENCE.match(inside) and _BEFORE_SENTENCE.search(message, before, start))
                or inside.startswith(("{'", '{"', "[{"))
                or (start == 0 and found.end() == len(message) and _IS_SENTENCE.match(inside))
            ):
                return f"{text[:opening]}{_normalised(inside, keep_names, replaced, depth + 1)}{text[-1]}"
        if replaced is not None:
            replaced.append((name, text))
        return f"<{name}>"

    return _worth_trying(message).sub(placeholder, message)


# Additions to a message: an input line with a mark under it, values of a row, a suggestion.
_POINTED_AT = re.compile(r"(?m)^(?:LINE \d{1,9}: )?[^\n]{0,2000}\n[ \t]{0,2000}\^+[~^]*[ \t]*$\n?")
_VALUES = (
    ("[parameters: ", re.compile(r"(?s)(\[parameters: ).{0,4000}?\](?=\n|\Z)"), r"\1<values>]"),
    (")=(", re.compile(r"\)=\([^\n]{0,1000}?\)(?= |\.|$)"), ")=<values>"),
    ("Failing row contains", re.compile(r"(Failing row contains )\([^\n]{0,2000}\)"), r"\1<values>"),
    ("input_value=", re.compile(r"input_value=[^\n]{0,500}?(?:, input_type=\w{1,60}|(?=\]))"), "input_value=<values>"),
    ("id you mean", re.compile(r"\.? (?:Or )?[Dd]id you mean:? [^\n?]{0,200}\?"), ""),
    ("in position", re.compile(r"(codec can't \w{6} .{1,80} in position \d{1,9}(?:-\d{1,9})?): [^\n]{0,200}"), r"\1"),
    ("(reached max retries: ", re.compile(r" ?\(reached max retries: \d{1,4}\)"), ""),
    ("sub-exception", re.compile(r"\(\d{1,6} sub-exceptions?\)"), ""),
    ("iB", re.compile(r"(\d)\.? [KMGTPE]iB\b"), r"\1 bytes"),
    (
        "able ",
        re.compile(r"\b((?i:available|acceptable) \w{1,30}(?: are)?:? ?)[\[({][^\])}\n]{0,1000}[\])}]"),
        r"\1<values>",
    ),
    ("equest", re.compile(r"\b[Rr]equest(?:[ _-]?[Ii][Dd])?[:= ]{1,2}(?=\w{0,20}\d)[\w-]{8,64}[:,]? ?"), ""),
)


def _without_quotations(message: str) -> str:
    if "^" in message:
        message = _POINTED_AT.sub("", message)
    for sign, pattern, instead in _VALUES:
        if sign in message:
            message = pattern.sub(instead, message)
    return message
