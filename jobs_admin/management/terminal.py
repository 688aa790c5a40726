"""Parts that commands share: the viewer of a terminal, tables, and a search among the arguments."""

from __future__ import annotations

import getpass
import re
from argparse import Action
from collections.abc import Sequence
from datetime import datetime
from itertools import islice

from django.core.management.base import BaseCommand, CommandParser

from jobs_admin.models.access import ADMIN, EVERY_SOURCE, Viewer

_VERBOSITY = re.compile(r"-v\d\Z")


def viewer() -> Viewer:
    """Return the viewer: every user of a shell on this machine may do everything, under the name of the login."""
    return Viewer(f"{_user()} (terminal)", {EVERY_SOURCE: ADMIN})


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "somebody"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row. All rows have the same number of cells."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def moment(at: datetime | None) -> str:
    """Return a time as a cell shows it, to the minute; "-" for None."""
    return f"{at:%Y-%m-%d %H:%M}" if at else "-"


class SearchCommand(BaseCommand):
    """Command with a search: whatever is no option of the command is text of the search.

    `failures -queue:webhooks error:X -error:Y --limit 5` needs no `--` before what begins with a minus.
    """

    def run_from_argv(self, argv: list[str]) -> None:
        parser = self.create_parser(argv[0], argv[1])
        super().run_from_argv([*argv[:2], *options_first(parser, argv[2:])])


def options_first(parser: CommandParser, words: Sequence[str]) -> list[str]:
    """The options, then `--` and the text. What begins with two minuses and is unknown stays an option: it is a slip."""
    options: list[str] = []
    text: list[str] = []
    rest = iter(words)
    for word in rest:
        action = _option(parser, word)
        if word == "--":
            text += rest
        elif action is not None:
            takes = [] if action.nargs == 0 or "=" in word else list(islice(rest, 1))
            # Joined, because a value may begin with a minus too.
            options.append(word + ("=" if takes and word.startswith("--") else "") + "".join(takes))
        else:
            (options if word.startswith("--") or _VERBOSITY.match(word) else text).append(word)
    return [*options, "--", *text] if text else options


def _option(parser: CommandParser, word: str) -> Action | None:
    """Return the option that a word names, in full or, of a long one, by a unique beginning."""
    name, known = word.partition("=")[0], parser._option_string_actions
    if name in known or not name.startswith("--") or name == "--":
        return known.get(name)
    begun = [action for option, action in known.items() if option.startswith(name)]
    return begun[0] if len(begun) == 1 else None
