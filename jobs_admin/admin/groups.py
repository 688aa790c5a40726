"""Groups and grouping rules. Counts are of jobs that the viewer may see, never of all attempts."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_user_model
from django.db.models import Exists, OuterRef, QuerySet, Subquery, Sum
from django.forms import ModelForm
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html

from jobs_admin import groups
from jobs_admin.admin.records import Records, viewer
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import marked
from jobs_admin.groups import group_changes
from jobs_admin.models import FailureCount, Group, GroupRule
from jobs_admin.models.access import ADMIN_OF_ALL, OPERATOR
from jobs_admin.models.group import IS_TAKEN_IN
from jobs_admin.rights import group_sight, people
from jobs_admin.search import scope as scopes

MUTED_FOR = timedelta(hours=24)


class GroupList(ChangeList):
    """List of groups, reduced to what the viewer may read."""

    def _get_default_ordering(self) -> tuple[str, ...]:
        return ("-seen_last",)

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        group_sight.restrict(viewer(request), self.result_list)


class GroupForm(ModelForm):
    class Meta:
        model = Group
        fields = ("assignee", "note", "runbook_url", "issue_url")


@admin.register(Group)
class GroupAdmin(Records):
    changes = OPERATOR  # on every source in which the group has failures

    form = GroupForm
    list_display = ("title", "state", "dead", "jobs", "first", "last", "assignee")
    list_filter = ("state",)
    list_select_related = ("assignee",)
    search_fields = ("error_type",)  # shows the field; get_search_results does the search
    search_help_text = "Search syntax as on the groups page: words, queue:emails, state:resolved …"
    sortable_by = ("state", "first", "last")
    autocomplete_fields = ()
    actions = ("resolve", "mute")
    fields = (
        "page", "error", "fingerprint", "place", "state", "jobs", "dead", "first", "last", "assignee", "note",
        "runbook_url", "issue_url",
    )  # fmt: skip
    readonly_fields = (
        "page", "error", "fingerprint", "place", "state", "jobs", "dead", "first", "last",
    )  # fmt: skip

    def get_changelist(self, request: HttpRequest, **more: object) -> type[ChangeList]:
        return GroupList

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Group | None:
        found = super().get_object(request, object_id, from_field)
        if found is not None:
            group_sight.restrict(viewer(request), [found])
        return found

    @admin.display(description="first seen", ordering="seen_first")
    def first(self, group: Group) -> datetime:
        return group.first_seen

    @admin.display(description="last seen", ordering="seen_last")
    def last(self, group: Group) -> datetime:
        return group.last_seen

    @admin.display(description="title")
    def error(self, group: Group) -> str:
        return marked(group.title)

    @admin.display(description="culprit")
    def place(self, group: Group) -> str:
        return marked(group.culprit)

    @admin.display(description="page")
    def page(self, group: Group) -> str:
        return format_html(
            '<a href="{}">View group</a>',
            reverse("redrive:group-detail", args=[group.fingerprint]),
        )

    @admin.display(description="dead")
    def dead(self, group: Group) -> int:
        return group.dead_jobs or 0

    @admin.display(description="jobs")
    def jobs(self, group: Group) -> int:
        return group.all_jobs or 0

    def get_queryset(self, request: HttpRequest) -> QuerySet[Group]:
        seen = FailureCount.objects.filter(scopes.visible(viewer(request)), group_id=OuterRef("pk"), count__gt=0)
        counted = seen.order_by().values("group_id").annotate(n=Sum("count")).values("n")
        dead = seen.filter(state="dead").order_by().values("group_id").annotate(n=Sum("count")).values("n")
        return Group.objects.filter(~IS_TAKEN_IN, Exists(seen)).annotate(
            all_jobs=Subquery(counted), dead_jobs=Subquery(dead),
            seen_first=group_sight.seen_at(viewer(request), "first_seen"),
            seen_last=group_sight.seen_at(viewer(request), "last_seen"),
        )  # fmt: skip

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet, search_term: str
    ) -> tuple[QuerySet[Group], bool]:
        if not search_term.strip():
            return queryset, False
        return queryset.filter(pk__in=groups.matching(viewer(request), search_term).values("pk")), False

    def has_change_permission(self, request: HttpRequest, obj: Group | None = None) -> bool:
        if obj is None or not super().has_change_permission(request):
            return super().has_change_permission(request)
        sources = FailureCount.objects.filter(group_id=obj.pk, count__gt=0).values_list("source", flat=True).distinct()
        return all(viewer(request).may(OPERATOR, source) for source in sources)

    def formfield_for_foreignkey(self, db_field, request: HttpRequest, **more):
        without_role = get_user_model()._default_manager.filter(is_active=True, redrive_roles=None)
        more["queryset"] = people.users(viewer(request)).distinct() | without_role.distinct()
        return super().formfield_for_foreignkey(db_field, request, **more)

    def save_model(self, request: HttpRequest, obj: Group, form: ModelForm, change: bool) -> None:
        given = form.cleaned_data
        changes = {name: given[name] for name in form.changed_data}
        if "assignee" in changes:
            changes["assignee"] = given["assignee"].get_username() if given["assignee"] else ""
        if changes:
            group_changes.change(viewer(request), obj, changes)

    def get_form(self, request: HttpRequest, obj: Group | None = None, change: bool = False, **more):
        form = super().get_form(request, obj, change, **more)
        if "assignee" in form.base_fields:  # the account is selected here, not edited
            widget = form.base_fields["assignee"].widget
            widget.can_add_related = widget.can_change_related = widget.can_view_related = False
        return form

    @admin.action(description="Resolve", permissions=["operate"])
    def resolve(self, request: HttpRequest, chosen: QuerySet[Group]) -> None:
        self._change(request, chosen, {"state": "resolved"}, "resolved")

    @admin.action(description="Mute for 24 h", permissions=["operate"])
    def mute(self, request: HttpRequest, chosen: QuerySet[Group]) -> None:
        until = timezone.now() + MUTED_FOR
        self._change(request, chosen, {"state": "muted", "muted_until": until}, "muted for 24 h")

    def _change(self, request: HttpRequest, chosen: QuerySet[Group], changes: dict[str, object], done: str) -> None:
        changed, refused = 0, []
        for group in chosen:
            try:
                group_changes.change(viewer(request), group, changes)
                changed += 1
            except Refused as error:
                refused.append(error.message)
        if changed:
            self.message_user(request, f"{changed:,} {'group' if changed == 1 else 'groups'} {done}.", messages.SUCCESS)
        if refused:
            self.message_user(request, f"{len(refused):,} not changed: {refused[0]}", messages.ERROR)


@admin.register(GroupRule)
class GroupRuleAdmin(Records):
    """Grouping rules, which apply to every source: only for admins of all. Created and deleted on their page."""

    needs = ADMIN_OF_ALL

    list_display = ("id", "kind", "group", "by", "frame", "note", "author", "created_at", "is_applied", "is_withdrawn")
    list_filter = ("kind", "is_withdrawn")
    list_select_related = ("group",)
    ordering = ("-id",)
