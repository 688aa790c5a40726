"""Parts that commands share: the viewer of a terminal, acts, tables, times, and a search among the arguments."""

from __future__ import annotations

import getpass
import re
from argparse import Action, ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import whole_number
from jobs_admin.models.access import ADMIN, EVERY_SOURCE, Viewer

_VERBOSITY = re.compile(r"-v\d\Z")


def viewer() -> Viewer:
    """Return the viewer: whoever can run commands with the settings may do everything, under the name of the login."""
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


class ActCommand(BaseCommand):
    """Command with acts: each has a parser, whose default `run` carries it out. A refusal is printed as its sentence."""

    requires_system_checks = ()
    search_acts: frozenset[str] = frozenset()  # whose arguments that are no options are a search

    def add_arguments(self, parser: CommandParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True)
        self.add_acts(acts)
        acts.metavar = "{" + ",".join(acts.choices) + "}"
        self._parsers: dict[str, ArgumentParser] = acts.choices

    def add_acts(self, acts: Any) -> None:
        """Add a parser for each act."""
        raise NotImplementedError

    def run_from_argv(self, argv: list[str]) -> None:
        if argv[2:] and argv[2] in self.search_acts:
            self.create_parser(argv[0], argv[1])
            argv = [*argv[:3], *options_first(self._parsers[argv[2]], argv[3:])]
        super().run_from_argv(argv)

    def handle(self, *args: object, run: Any, **options: Any) -> None:
        try:
            run(**options)
        except Refused as refused:
            raise CommandError(refused.message) from refused
        except NotFound as missing:
            raise CommandError(str(missing)) from missing


def parse_number(text: str) -> int:
    """Parse the number of an object, from 1."""
    if not (number := whole_number(text)):
        raise ArgumentTypeError(f"{text!r} is not a number from 1")
    return number


_LENGTH = re.compile(r"(\d{1,6})(s|m|h|d)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_LONGEST = timedelta(days=3_660)


def parse_length(text: str) -> timedelta:
    """Parse a length of time of an argument: 90s, 30m, 8h, 7d."""
    found = _LENGTH.fullmatch(text)
    if found is None or not int(found[1]):
        raise ArgumentTypeError(f"{text!r} is not a duration such as 90s, 30m, 8h or 7d")
    length = timedelta(**{_UNITS[found[2]]: int(found[1])})
    if length > _LONGEST:
        raise ArgumentTypeError(f"{text!r} is longer than {_LONGEST.days}d")
    return length


def parse_time(text: str) -> datetime:
    """Parse a time of an argument, in UTC unless it names a zone: 2026-11-20T10:00, 2026-11-20."""
    try:
        at = datetime.fromisoformat(text)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ArgumentTypeError(f"{text!r} is not a time such as 2026-11-20T10:00") from None
    if not 2000 <= at.year <= 2999:
        raise ArgumentTypeError(f"{text!r} is outside the years 2000 to 2999")
    return at


class SearchCommand(BaseCommand):
    """Command with a search: whatever is no option of the command is text of the search.

    `failures -queue:webhooks error:X -error:Y --limit 5` needs no `--` before what begins with a minus.
    """

    def run_from_argv(self, argv: list[str]) -> None:
        parser = self.create_parser(argv[0], argv[1])
        super().run_from_argv([*argv[:2], *options_first(parser, argv[2:])])


def options_first(parser: ArgumentParser, words: Sequence[str]) -> list[str]:
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


def _option(parser: ArgumentParser, word: str) -> Action | None:
    """Return the option that a word names, in full or, of a long one, by a unique beginning."""
    name, known = word.partition("=")[0], parser._option_string_actions
    if name in known or not name.startswith("--") or name == "--":
        return known.get(name)
    begun = [action for option, action in known.items() if option.startswith(name)]
    return begun[0] if len(begun) == 1 else None
