"""`completion`: a script that completes commands, acts, options and their values in bash and zsh."""

from __future__ import annotations

from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Iterator
from shlex import quote
from typing import Any

from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand

from dashboard.setup.command_line import OURS

# Options of every Django command: still accepted, not offered.
_DJANGO = {
    "--version",
    "-v",
    "--verbosity",
    "--settings",
    "--pythonpath",
    "--traceback",
    "--no-color",
    "--force-color",
    "--skip-checks",
}
_HEAD = """\
[ -n "${ZSH_VERSION:-}" ] && autoload -U +X bashcompinit && bashcompinit
_redrive() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} path="" offered
  local at
  for ((at = 1; at < COMP_CWORD && at < 3; at++)); do
    case ${COMP_WORDS[at]} in -*) break ;; esac
    path="$path/${COMP_WORDS[at]}"
  done
  while :; do
    case "$path:$before" in
"""
_MIDDLE = """\
      *) case "$path" in
"""
_TAIL = """\
      *) path=${path%/*}; [ -n "$path" ] && continue; offered="" ;;
      esac ;;
    esac
    break
  done
  COMPREPLY=($(compgen -W "$offered" -- "$word"))
}
complete -o default -F _redrive redrive manage.py
"""


class Command(BaseCommand):
    help = "Print a script for bash or zsh that completes commands: source <(redrive completion)."
    requires_system_checks = ()

    def handle(self, **options: Any) -> None:
        values: list[str] = []
        words = [f'      "") offered={quote(" ".join(OURS))} ;;']
        known = get_commands()
        for name in OURS:
            app = known.get(name.replace("-", "_"))
            if app not in ("dashboard", "jobs_admin"):  # run before Django
                continue
            parser = load_command_class(app, name.replace("-", "_")).create_parser("redrive", name)
            for path, one in _parsers(f"/{name}", parser):
                offered = [*_acts(one), *sorted(_options(one))]
                words.append(f"      {path}) offered={quote(' '.join(offered))} ;;")
                for action in one._actions:
                    if action.option_strings and action.choices:
                        names = "|".join(f"{path}:{flag}" for flag in action.option_strings)
                        values.append(f"      {names}) offered={quote(' '.join(map(str, action.choices)))} ;;")
        self.stdout.write("\n".join([_HEAD.rstrip("\n"), *values, _MIDDLE.rstrip("\n"), *words, _TAIL.rstrip("\n")]))


def _parsers(path: str, parser: ArgumentParser) -> Iterator[tuple[str, ArgumentParser]]:
    yield path, parser
    for name, one in _acts(parser).items():
        yield from _parsers(f"{path}/{name}", one)


def _acts(parser: ArgumentParser) -> dict[str, ArgumentParser]:
    return {
        name: one
        for action in parser._actions
        if isinstance(action, _SubParsersAction)
        for name, one in action.choices.items()
    }


def _options(parser: ArgumentParser) -> set[str]:
    return {flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")} - _DJANGO
