"""Visibility of shared views: the name and search of a view are text that its owner wrote about sources.

A viewer of every source shares with all; any other owner with viewers of a common source. A view of an owner without a
role, or of an unknown token, is readable only by viewers of every source.

In addition, a view is hidden if it names something that only other sources have: in its search a source, queue, task,
tenant, release, host, worker, group or dependency, and as a word anywhere a source, queue or task.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from jobs_admin.core import query as language
from jobs_admin.core import search_terms
from jobs_admin.core.text import fits
from jobs_admin.models import ApiToken, AuditEvent, Failure, FailureCount, Group, GroupAlias, Role, SavedView, Source
from jobs_admin.models.access import EVERY_SOURCE, Viewer
from jobs_admin.search import scope as scopes
from jobs_admin.search.term_index import InIndex, all_of, any_of

_COUNTED = ("source", "queue", "task")  # fields with counters
_WORD = re.compile(r"[^\s\"(),:=*]+")


def readable(viewer: Viewer) -> list[int]:
    """Return the ids of the shared views that the viewer may read."""
    shared = SavedView.objects.filter(is_shared=True)
    sources = viewer.sources()
    if sources is None:
        return list(shared.values_list("pk", flat=True))
    if not sources:
        return []
    if not (views := list(shared.select_related("owner"))):
        return []
    owners, names = _sources_of_owners(views), _Names(sources)
    mine = {*sources, EVERY_SOURCE}
    return [view.pk for view in views if not owners[view.pk].isdisjoint(mine) and names.has_all_of(view)]


def _sources_of_owners(views: Iterable[SavedView]) -> dict[int, set[str]]:
    """Return view -> the sources that its owner sees now; with `EVERY_SOURCE` for all; empty without a role."""
    views = list(views)
    roles: dict[int, set[str]] = defaultdict(set)
    for user, source in Role.objects.filter(user__in={view.owner_id for view in views}).values_list("user", "source"):
        roles[user].add(source)
    of_tokens = _sources_of_tokens([view.pk for view in views if view.owner is None])
    found: dict[int, set[str]] = {}
    for view in views:
        if view.owner is None:
            found[view.pk] = of_tokens.get(view.pk, set())
        else:
            found[view.pk] = {EVERY_SOURCE} if view.owner.is_superuser else roles[view.owner.pk]
    return found


def _sources_of_tokens(views: Sequence[int]) -> dict[int, set[str]]:
    """Return view -> the source of the token that saved it, from the audit."""
    if not views:
        return {}
    saved = AuditEvent.objects.filter(object__in=[f"view:{pk}" for pk in views], act="view.save", allowed=True)
    tokens = {int(name.partition(":")[2]): token for name, token in saved.values_list("object", "token_id") if token}
    sources = dict(ApiToken.objects.filter(pk__in=tokens.values()).values_list("pk", "source"))
    return {view: {sources[token]} for view, token in tokens.items() if token in sources}


class _Names:
    """Names of sources, queues and tasks: those of some sources, and those of all others."""

    def __init__(self, sources: Sequence[str]) -> None:
        self._sources = sources
        self._own: dict[str, set[str]] = {name: set() for name in _COUNTED}
        elsewhere: set[str] = set()
        counted = FailureCount.objects.order_by().values_list(*_COUNTED).distinct()
        for row in counted:
            if row[0] in sources:
                for field, name in zip(_COUNTED, row, strict=True):
                    self._own[field].add(name)
            else:
                elsewhere.update(row)
        self._own["source"].update(sources)
        elsewhere.update(Source.objects.exclude(name__in=sources).values_list("name", flat=True))
        self._elsewhere = elsewhere.difference(*self._own.values())

    def has_all_of(self, view: SavedView) -> bool:
        if not self._elsewhere.isdisjoint(_WORD.findall(f"{view.name} {view.query}")):
            return False
        return all(
            not self._is_elsewhere_alone(leaf.field, value)
            for leaf in language.leaves(language.parse(view.query).terms)
            if isinstance(leaf, language.Match)
            for value in leaf.values
        )

    def _is_elsewhere_alone(self, field: str, value: language.Value) -> bool:
        if value.glob and not value.text.strip("*"):
            return False
        if field in _COUNTED:

            def is_meant(name: str) -> bool:
                return fits(value.text, name) if value.glob else value.text == name

            return any(map(is_meant, self._elsewhere)) and not any(map(is_meant, self._own[field]))
        if field == "group":
            return not value.glob and self._is_group_elsewhere(value.text)
        if field == "dependency":
            named = scopes.parts_named(language.Match(field, (value,)))
            return named.exists() and not named.filter(source__in=self._sources).exists()
        if field not in search_terms.NAMED:
            return False
        if value.glob:
            searched = search_terms.name_begins(field, language.before_star(value.text)[0])
        else:
            searched = search_terms.Phrase((search_terms.name(field, value.text),))
        theirs = any_of(search_terms.Phrase((search_terms.name("source", source),)) for source in self._sources)
        if Failure.objects.filter(InIndex(all_of((searched, theirs))), source__in=self._sources).exists():
            return False
        return Failure.objects.filter(InIndex(searched)).exists()

    def _is_group_elsewhere(self, fingerprint: str) -> bool:
        named = set(Group.objects.filter(fingerprint=fingerprint).values_list("pk", flat=True))
        named |= set(GroupAlias.objects.filter(fingerprint=fingerprint).values_list("group", flat=True))
        sources = FailureCount.objects.filter(group_id__in=named, count__gt=0).values_list("source", flat=True)
        return bool(found := set(sources)) and found.isdisjoint(self._sources)


def sees(viewer: Viewer, view: SavedView) -> bool:
    """Return whether the viewer may read the view."""
    own = viewer.user_id is not None and view.owner_id == viewer.user_id
    return own or viewer.sources() is None or view.pk in readable(viewer)
