"""Names and docstrings use the words of the field. A name bears none of the banned words; a docstring begins with a noun or a verb."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Words of stories, and what to write for them: told → reported, asked → requested, kept → stored, newest → latest …
BANNED = {
    *("tell", "tells", "telling", "told", "say", "says", "saying", "said"),
    *("ask", "asks", "asking", "asked", "look", "looks", "looking", "looked"),
    *("stands", "stood", "lies", "lay", "laying", "laid", "bears", "kept", "held"),
    *("anew", "nought", "mend", "mends", "mended", "kin", "letter", "letters", "newest", "whole", "somebody", "nobody"),
}
# Terms of the field, of the wire and of libraries that hold a banned word.
TERMS = {
    "whole_number",
    # The state `held`, fields of the API, and keys that Redis knows by these names.
    *("HELD", "held_because", "held_after_s", "newest_at", "whole_since", "kept_boots", "bullmq_kept"),
}
# Participles, pronouns and prepositions that say nothing alone as the name of a function.
BARE = {
    *("again", "alike", "allowed", "also", "asked", "begun", "both", "counted", "done", "drawn", "felt", "found"),
    *("given", "gone", "had", "heard", "held", "here", "kept", "known", "left", "likely", "looked", "made", "many"),
    *("meant", "much", "named", "needed", "none", "noted", "of", "ours", "own", "put", "risen", "said", "seen", "sent"),
    *("shown", "stated", "stood", "taken", "theirs", "there", "told", "understood", "wanted", "wished", "written"),
}
OPENINGS = re.compile(
    r"(What|Who|Whom|Whose|Where|Of|Those|Whether|When|Why|How|Which|That|If|It|Its|They|Is|Are|Has)\b"
)
PHRASES = re.compile(
    r"\b(ran well|runs? well|c[ao]me home|is home|anew|once more|nought|so many|by itself|somebody|nobody"
    r"|who is on call|waits? since|since when|the piece|tells?|told|mend(?:ed|s)?|newest|la(?:ys?|id) out)\b",
    re.IGNORECASE,
)
# Programs of an invented shop, whose names the recorded fingerprints hold.
EVIDENCE = "tests/fingerprints/make"
# Names of other programs' side, by module: fields of the API and its document, columns, keys of Redis, stored JSON.
WIRE = {
    "dashboard/alerts/api.py": {"SaidRunbook"},
    "dashboard/alerts/api_shapes.py": {"told_with"},
    "dashboard/failures/api_shapes.py": {"said"},
    "dashboard/groups/api.py": {"AskedRule", "says", "looked_at"},
    "dashboard/holds/api.py": {"held"},
    "dashboard/policies/api.py": {"says", "held_back", "looked_at"},
    "dashboard/policies/lint/api.py": {"looked_at"},
    "dashboard/queues/api.py": {"Told", "held"},
    "dashboard/retries/api.py": {"Asked", "looked"},
    "demo/mailer.py": {"letter"},  # an argument of the demo's jobs
    "demo/story.py": {"said"},
    "jobs_admin/core/keys.py": {"sent", "kept"},
    "jobs_admin/failures/triage.py": {"looked"},  # a field of the form that goes on with a large act
    "jobs_admin/groups/rule_previews.py": {"looked_at"},
    "jobs_admin/incidents/reading.py": {"looked_at"},
    "jobs_admin/lint/linting.py": {"looked_at"},
    "jobs_admin/models/alert.py": {"told_with", "told_at", "is_held"},
    "jobs_admin/models/failure.py": {"is_whole"},
    "jobs_admin/models/source.py": {"looks", "told_by"},
    "jobs_admin/policies/previewing.py": {"looked_at"},
    "jobs_admin/policies/running.py": {"held_back"},
    "jobs_admin/queues/depths/rolling.py": {"looks"},
    "jobs_admin/worker/at_start.py": {"said"},
}


def offences(path: Path) -> Iterator[str]:
    """Yield each offence of the module at `path` as `line: text`."""
    exempt = TERMS | WIRE.get(str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else "", set())
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            line, text = getattr(node, "lineno", 1), ast.get_docstring(node) or ""
            if OPENINGS.match(text):
                yield f"{line}: docstring begins with {text.split()[0]}"
            yield from (f"{line}: docstring says {found[0]}" for found in PHRASES.finditer(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.lstrip("_") in BARE - exempt:
            yield f"{node.lineno}: {node.name}"
        elif (name := given_name(node)) and name not in exempt and words(name) & BANNED:
            yield f"{node.lineno}: {name} ({', '.join(sorted(words(name) & BANNED))})"
    if words(path.stem) & BANNED or path.stem in BARE:
        yield f"1: module {path.stem}"


def given_name(node: ast.AST) -> str | None:
    """The name that `node` gives to something, or None."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.alias(asname=name):
            return name
    return None


@cache
def words(name: str) -> frozenset[str]:
    """The words of an identifier in snake or camel case, in lower case, without the terms that hold a banned word.

    A dead letter and the verb "look up" are terms everywhere; the name of a test is a sentence, and `held` a state in it.
    """
    found = " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)).lower()
    found = re.sub(r"\bdead letters?\b|\blook(?:s|ed|ing)? up\b", "", found)
    return frozenset(found.split()) - ({"held"} if name.startswith("test_") else set())


def packages() -> list[str]:
    """Packages of the product two levels deep, and its other folders of Python, as paths from the root."""
    found = [f"{root}/{path.name}" for root in ("jobs_admin", "dashboard") for path in (ROOT / root).iterdir()]
    found = [
        name for name in found if any((ROOT / name).rglob("*.py")) and not name.endswith(("migrations", "__pycache__"))
    ]
    return sorted([*found, "demo", "bench", "tests"])


@pytest.mark.parametrize("package", packages())
def test_names_and_docstrings_use_the_words_of_the_field(package):
    found = [
        f"{path.relative_to(ROOT)}:{text}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if "migrations" not in path.parts and not str(path.relative_to(ROOT)).startswith(EVIDENCE)
        for text in sorted(set(offences(path)))
    ]
    assert not found, "\n".join(["", *found])


def test_names_of_the_wire_are_in_use():
    for module, names in WIRE.items():
        given = {given_name(node) for node in ast.walk(ast.parse((ROOT / module).read_text()))}
        assert names <= given, (module, names - given)


def test_the_adapter_of_the_how_to_uses_the_words_of_the_field(tmp_path):
    page = (ROOT / "docs/how-to/add-a-source.md").read_text()
    modules = [
        textwrap.dedent(code)
        for code in re.findall(r"^ *```python\n( *\"{3}.*?)^ *```", page, re.DOTALL | re.MULTILINE)
    ]
    assert len(modules) == 2
    for number, code in enumerate(modules):
        path = tmp_path / f"module{number}.py"
        path.write_text(code)
        assert list(offences(path)) == []


def test_an_offence_is_noticed(tmp_path):
    module = tmp_path / "telling.py"
    module.write_text(
        'def told(newest):\n    """What a source last told."""\n\n\nclass DeadLetter:\n    """A message."""\n\n\n'
        "def test_a_held_replay_is_looked_up(looked, held):\n    pass\n"
    )
    assert sorted(offences(module)) == [
        "1: docstring begins with What",
        "1: docstring says told",
        "1: module telling",
        "1: newest (newest)",
        "1: told",
        "9: held (held)",
        "9: looked (looked)",
    ]
