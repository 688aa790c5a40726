"""Commands and snippets of the documentation: the parsers that would run them read them. Nothing is run."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import shlex
import textwrap
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from django.core.management import load_command_class
from django.core.management.base import CommandError

from jobs_admin import config
from jobs_admin.core import query

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "clients/node/README.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
]
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
COMMANDS = ("", "sh", "console")
OURS = re.compile(r"`(?:python3 )?manage\.py ([a-z][^`]*)`")
SEARCH_TABLE = re.compile(r"^\| (`.*?)(?<!\\) \|", re.MULTILINE)


class Snippet(NamedTuple):
    page: str
    language: str
    text: str


@cache
def snippets() -> list[Snippet]:
    return [
        Snippet(page.relative_to(ROOT).as_posix(), language, textwrap.dedent(text))
        for page in PAGES
        for _, language, text in FENCED.findall(page.read_text())
    ]


def command_lines() -> list[tuple[str, str]]:
    """Return the page and text of each command: of a console the lines after `$`; lines of one command are joined."""
    found = []
    for page, language, text in snippets():
        if language not in COMMANDS:
            continue
        lines = text.replace("\\\n", " ").splitlines()
        if any(line.startswith("$ ") for line in lines):
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        waiting = ""
        for line in lines:
            waiting = f"{waiting}\n{line}" if waiting else line
            if _is_complete(waiting):
                found.append((page, waiting))
                waiting = ""
        assert not waiting, f"{page}: a quote stays open: {waiting}"
    return found


def _is_complete(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:  # a quote is open
        return False
    return True


def words_of(command: str) -> list[str]:
    return shlex.split(command, comments=True)


def words_after_manage(command: str) -> list[str]:
    """Return the command of `manage.py` or `redrive` and its arguments; empty for other commands and for a synopsis in brackets."""
    words = words_of(command)
    starts = [n for n, word in enumerate(words) if word.rpartition("/")[2] == "manage.py"]
    starts = [0] if words[:1] == ["redrive"] else starts
    found = words[starts[0] + 1 :] if starts else []
    found = found[: found.index(">")] if ">" in found else found
    return [] if any(word.startswith("[-") for word in found) else found


@cache
def parser_of(name: str) -> Any:
    apps = (
        "jobs_admin",
        "dashboard",
        "dashboard.mounted",
        "django.contrib.auth",
        "django.contrib.staticfiles",
        "django.core",
    )
    for app in apps:
        try:
            return load_command_class(app, name).create_parser("manage.py", name)
        except (ModuleNotFoundError, AttributeError):
            continue
    raise AssertionError(f"no command is named {name}")


OWN_PARSERS = {"worker-wheel", "node-package", "test"}  # `dashboard/setup/bootstrap.py` runs them before Django


def why_refused(words: list[str]) -> str:
    """Return why the command's parser refuses the words after `manage.py`, or an empty text."""
    name, *arguments = words
    if name in OWN_PARSERS:
        return ""
    try:
        parser = parser_of(name.replace("-", "_"))
        parser.called_from_command_line = False
        parser.parse_args(arguments)
    except (CommandError, AssertionError, SystemExit) as error:
        return str(error) or "refused"
    return ""


def test_each_command_of_a_block_is_read_by_its_parser():
    refused, count = [], 0
    for page, line in command_lines():
        if words := words_after_manage(line):
            count += 1
            if why := why_refused(words):
                refused.append(f"{page}: {line}: {why}")
    assert refused == []
    assert count >= 40


def test_each_command_within_a_sentence_exists():
    unknown = []
    for page in PAGES:
        for text in OURS.findall(page.read_text()):
            name = text.split()[0].rstrip(":,")
            if name not in OWN_PARSERS and not _is_command(name):
                unknown.append(f"{page.name}: {text}")
    assert unknown == []


def _is_command(name: str) -> bool:
    try:
        return bool(parser_of(name.replace("-", "_")))
    except AssertionError:
        return False


def test_what_is_no_command_is_noticed():
    assert why_refused(["failures", "--no-such-option"]).endswith("--no-such-option")
    assert why_refused(["no-such-command"]) == "no command is named no_such_command"
    assert why_refused(["token", "create", "ci"])


# The API.


class Call(NamedTuple):
    page: str
    method: str
    path: str  # after the prefix of the API, without a query
    body: str | None


def calls() -> list[Call]:
    found = []
    for page, line in command_lines():
        if line.startswith(("ask ", "curl ")) and ("$REDRIVE" in line or "/api/" in line):
            words = words_of(line)
            method, path, body = "", "", None
            for word, after in zip(words, [*words[1:], ""], strict=True):
                if word == "-X":
                    method = after
                elif word == "-G":
                    method = "GET"
                elif word == "-d":
                    body = body or after
                elif "$REDRIVE/" in word or "/api/" in word:
                    path = re.split(r"\$REDRIVE/|/api/(?:v\d+/)?", word)[-1]
            is_get = method == "GET" or body is None
            found.append(
                Call(page, method or ("GET" if is_get else "POST"), urlsplit(path).path, None if is_get else body)
            )
    return found


@cache
def described() -> dict[str, Any]:
    return json.loads((ROOT / "tests/pinned/openapi.json").read_text())


def operation(method: str, path: str) -> dict[str, Any] | None:
    for pattern, operations in described()["paths"].items():
        rest = re.sub(r"^/api/(?:v\d+/)?", "", pattern).rstrip("/")
        is_it = re.fullmatch(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(rest)), path.rstrip("/"))
        if is_it and method.lower() in operations:
            return operations[method.lower()]
    return None


def problems(value: object, schema: dict[str, Any], at: str = "body") -> list[str]:
    """Return where a value differs from a JSON schema of the API; a field that the schema does not name, too."""
    if "$ref" in schema:
        return problems(value, described()["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]], at)
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        found = [problems(value, choice, at) for choice in choices]
        return [] if [] in found else found[0]
    if value == "…":
        return []
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "integer": int}
    kind = schema.get("type")
    if kind == "number" and not isinstance(value, int | float):
        return [f"{at} is no number"]
    if kind in kinds and not isinstance(value, kinds[kind]):
        return [f"{at} is no {kind}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{at} is none of {schema['enum']}"]
    if isinstance(value, list):
        return [one for n, item in enumerate(value) for one in problems(item, schema.get("items", {}), f"{at}.{n}")]
    if isinstance(value, dict) and "properties" in schema:
        known = schema["properties"]
        lacks = [f"{at} lacks {name}" for name in schema.get("required", []) if name not in value and "…" not in value]
        extra = (
            []
            if schema.get("additionalProperties")
            else [f"{at} has no field {k}" for k in value if k not in known and k != "…"]
        )
        inner = [one for k, v in value.items() if k in known for one in problems(v, known[k], f"{at}.{k}")]
        return lacks + extra + inner
    return []


def test_each_call_of_the_api_exists_and_its_body_is_valid():
    wrong = []
    for page, method, path, body in calls():
        found = operation(method, path)
        if found is None:
            wrong.append(f"{page}: {method} {path} is no call")
        elif body is not None:
            document = json.loads(body.replace("{…, ", '{"…": "…", '))
            content = found.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema", {})
            wrong += [f"{page}: {method} {path}: {one}" for one in problems(document, schema)]
    assert wrong == []
    assert len(calls()) >= 80


def test_a_call_that_does_not_exist_is_noticed():
    assert operation("GET", "failures/4711") and operation("POST", "failures/4711/replay")
    assert operation("PUT", "failures/4711") is None and operation("GET", "no-such") is None
    schema = operation("POST", "replays")["requestBody"]["content"]["application/json"]["schema"]
    assert problems({"q": 5, "colour": "red"}, schema)


# Configuration, Python, searches.

MADE_BY_A_PAGE = ("redis_lists",)  # docs/how-to/add-a-source.md, which tests/sources/test_how_to.py runs
OF_STRICT = ("dramatiq",)  # installed by `--strict` alone; tests/foreign/dramatiq_shop.py runs its block


def test_each_source_of_a_block_passes_the_check_of_the_configuration():
    blocks = [one for one in snippets() if one.language == "toml" and "[sources." in one.text]
    assert len(blocks) >= 6
    wrong = []
    for page, _, text in blocks:
        for name, table in tomllib.loads(text)["sources"].items():
            if table["backend"] not in MADE_BY_A_PAGE:
                wrong += [f"{page}: {one}" for one in config._what_is_wrong(name, table)]
    assert wrong == []


def test_each_block_of_toml_is_toml():
    for one in snippets():
        if one.language == "toml":
            tomllib.loads(one.text)


def test_each_block_of_python_compiles_and_what_it_imports_exists(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "clients/python")
    missing, count = [], 0
    for page, language, text in snippets():
        if language != "python":
            continue
        count += 1
        try:
            tree = ast.parse(text)
        except SyntaxError:
            tree = ast.parse(
                f"{{\n{text}\n}}" if text.startswith('"') else f"(\n{text}\n)"
            )  # one line of a dict or list
        for node in ast.walk(tree):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [f"{node.module}:{one.name}" for one in node.names]
            missing += [f"{page}: {name}" for name in names if not _is_importable(*name.split(":"))]
    assert missing == []
    assert count >= 12


def test_the_middleware_for_dramatiq_is_the_one_that_workers_of_the_tests_run():
    (page,) = [one.text for one in snippets() if "StoreLastError" in one.text]
    shop = ast.parse((ROOT / "tests/foreign/dramatiq_shop.py").read_text())
    run = {ast.dump(one) for one in shop.body if isinstance(one, ast.Import | ast.Assign | ast.ClassDef)}
    assert [ast.unparse(one) for one in ast.parse(page).body[:-1] if ast.dump(one) not in run] == []


def _is_importable(module: str, name: str = "") -> bool:
    if {*module.split("."), name} & {*MADE_BY_A_PAGE, *OF_STRICT}:
        return True
    try:
        if importlib.util.find_spec(module) is None:
            return False
    except ModuleNotFoundError:
        return False
    if not name or not module.startswith(("jobs_admin", "dashboard", "tests")):
        return True
    return hasattr(importlib.import_module(module), name) or _is_importable(f"{module}.{name}")


def searches() -> list[tuple[str, str]]:
    """Return the page and text of each search in the tables of the search language, in commands and in calls."""
    page = ROOT / "docs/search.md"
    found = []
    for section in re.split(r"^## ", page.read_text(), flags=re.MULTILINE):
        if section.startswith(("Words", "Arguments")):
            for cell in SEARCH_TABLE.findall(section):
                found += [("docs/search.md", one) for one in re.findall(r"`([^`]+)`", cell)]
    for name, line in command_lines():
        words = words_after_manage(line)
        if words[:1] in (["failures"], ["replay"]):
            found.append((name, " ".join(parser_of(words[0]).parse_args(words[1:]).query)))
        for text in re.findall(r"\bq=([^'\"&]+)", line) + re.findall(r'"q": "([^"]+)"', line):
            if "…" not in text and "$REDRIVE/groups" not in line:
                found.append((name, text))
    return found


def test_each_search_is_read_without_a_hint():
    """A text that is not clearly an operator is searched for: a misspelt qualifier shows by its hint."""
    found = searches()
    assert len(found) >= 30
    hinted = [f"{page}: {text}: {read.hints}" for page, text in found if (read := query.parse(text)).hints]
    assert hinted == []
    assert query.parse("quue:emails").hints
