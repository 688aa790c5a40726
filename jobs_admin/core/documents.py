"""A message without the documents that it carries: schemas, answers in JSON, what a debugger would like to know."""

from __future__ import annotations

import re

_PARAGRAPH = re.compile(r"\n[ \t]*\n")
_WORD = re.compile(r"[A-Za-z]{2}")
_DEBUG = re.compile(r"(?m)\b(debug\w{0,40} ?= ?)[^\n]{1,4096}$")
# More of a document than these keys is not read by people either.
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
_SAYS_KEY = re.compile(
    r"(?i)(?:\w{1,40}[_-])?(?:message|msg|detail|details|desc|description|reason|error|title|info|summary|errormessage|errmsg)\Z"
)
_CODE = re.compile(r"[A-Za-z][A-Za-z_.:/-]{0,60}\d{0,5}\Z")
_DEEPEST = 2  # `{"Error": {"Code": …}}`


def without_documents(message: str) -> str:
    """The head of the message, and of each printed document in it the codes that say which error it is."""
    message = _head(message)
    if "debug" in message:
        message = _DEBUG.sub(r"\1<values>", message)
    if "{" not in message:
        return message
    parts, at = [], 0
    while (found := _OPENS.search(message, at)) is not None:
        end, keys, told = _read(message, found.start())
        if keys > _FEW_KEYS:
            told = told or ("<values>" if len(_WORD.findall(message, 0, found.start())) > 2 else "")
        parts += [
            message[at : found.start()],
            f"{{{told}}}" if keys > _FEW_KEYS and told else message[found.start() : end],
        ]
        at = end
    return "".join([*parts, message[at:]])


def _head(message: str) -> str:
    """The first paragraph, the next too where it only announces it, and of later ones what stands over a block."""
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
    """Of the document that begins there: where it ends, how many keys it has, and its codes or else its words."""
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
            elif text and _SAYS_KEY.match(key):
                words[text] = None
    return len(message), keys, ", ".join(sorted(codes) or words)
