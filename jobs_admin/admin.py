"""Django's admin: records to read, and a few acts, each through the same services as everywhere else.

What a person sees and may do here is decided by their roles per source, not by Django's model permissions.
"""

from __future__ import annotations

from functools import cached_property

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.admin import GroupAdmin as AccountGroupAdmin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import AbstractUser, Permission
from django.contrib.auth.models import Group as AccountGroup
from django.core.paginator import Page, Paginator
from django.db import transaction
from django.db.models import Exists, Manager, Model, OuterRef, QuerySet
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html

from jobs_admin import audit, failures, grouping, replays, triage
from jobs_admin import scope as scopes
from jobs_admin.accounts import ForSuperusers, KeepsRights
from jobs_admin.core import query as language
from jobs_admin.core.query import Query, parse
from jobs_admin.core.text import marked, representable
from jobs_admin.models import ApiToken, AuditEvent, Failure, FailureCount, Group, Replay, Role, Source, Unfiled
from jobs_admin.models.access import ADMIN, EVERY_SOURCE, OPERATOR, VIEWER, Viewer, viewer_of

PER_PAGE = 50


def _viewer(request: HttpRequest) -> Viewer:
    """Who asks; looked up once a request."""
    if not hasattr(request, "viewer"):
        request.viewer = viewer_of(request.user)
    return request.viewer


def _marked(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """The page with what strangers hid in their text made visible, wherever Django puts it."""

    def mark(rendered: TemplateResponse) -> None:
        rendered.content = marked(rendered.content.decode())

    if request.method == "GET" and isinstance(response, TemplateResponse):
        response.add_post_render_callback(mark)
    return response


class CappedPaginator(Paginator):
    """Counts no further than the list can be leafed through."""

    @cached_property
    def count(self) -> int:
        return self.object_list.order_by()[: failures.CAP].count()


class Records(admin.ModelAdmin):
    """To be read: nothing here is added, changed or deleted by hand."""

    needs = VIEWER
    list_per_page = PER_PAGE
    show_full_result_count = False
    paginator = CappedPaginator

    def changelist_view(self, request: HttpRequest, extra_context: dict | None = None) -> HttpResponse:
        return _marked(request, super().changelist_view(request, extra_context))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict | None = None
    ) -> HttpResponse:
        response = super().change_view(request, object_id, form_url, extra_context)
        # A form must send back what it was given.
        return response if self.has_change_permission(request) else _marked(request, response)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return _viewer(request).may_anywhere(self.needs)

    def has_view_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return _viewer(request).may_anywhere(self.needs)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return _viewer(request).may_anywhere(OPERATOR)

    def has_administer_permission(self, request: HttpRequest) -> bool:
        return _viewer(request).may(ADMIN, EVERY_SOURCE)


# --- failures ---------------------------------------------------------------------------------------------------


class QualifierFilter(admin.SimpleListFilter):
    """A filter whose choices come from counters. It narrows nothing itself: `query_of` writes it into the search."""

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin) -> list[tuple[str, str]]:
        counted = FailureCount.objects.filter(scopes.visible(_viewer(request)), count__gt=0)
        values = counted.order_by(self.parameter_name).values_list(self.parameter_name, flat=True).distinct()[:100]
        return [(value, value) for value in values]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        return queryset


def _filter(name: str) -> type[QualifierFilter]:
    return type(f"{name.title()}Filter", (QualifierFilter,), {"title": name, "parameter_name": name})


FILTERED = ("state", "source", "queue", "task")


def query_of(request: HttpRequest) -> Query:
    """The search field and the chosen filters as one query in our own language."""
    chosen = [language.qualifier(name, request.GET[name]) for name in FILTERED if request.GET.get(name)]
    return parse(" ".join([request.GET.get("q", ""), *chosen]).strip(), timezone.now())


class FailurePaginator(Paginator):
    """Pages by the same slices as our own list, so that they cost the same at any number of failures."""

    def __init__(self, rows: QuerySet, per_page: int, viewer: Viewer, query: Query) -> None:
        super().__init__(rows, per_page)
        self.viewer, self.query = viewer, query

    @cached_property
    def count(self) -> int:
        return failures.count(self.viewer, self.query)[0]

    @property
    def num_pages(self) -> int:
        return min(super().num_pages, failures.CAP // self.per_page)

    def page(self, number: int | str) -> Page:
        number = self.validate_number(number)
        ids = failures.newest_ids(self.viewer, self.query, None, number * self.per_page)
        rows = Failure.objects.filter(pk__in=ids[(number - 1) * self.per_page :]).order_by("-pk")
        return self._get_page(rows.defer("args", "kwargs", "headers"), number, self)


@admin.register(Failure)
class FailureAdmin(Records):
    list_display = ("id", "state", "queue", "task", "error", "tenant", "failed_at")
    list_filter = tuple(_filter(name) for name in FILTERED)
    search_fields = ("message",)  # makes the field appear; what it does is get_search_results
    search_help_text = "The search language of the failures page: words, queue:emails, -error:KeyError, age:<2d …"
    ordering = ("-id",)
    sortable_by = ()
    actions = ("replay", "discard")
    fields = (
        "page", "source", "queue", "task", "state", "reason", "kind", "group", "error_type", "message", "run", "attempts",
        "max_attempts", "first_job_id", "job_id", "first_failed_at", "failed_at", "received_at", "due_at", "worker", "host",
        "release", "tenant", "priority", "args", "kwargs", "headers",
    )  # fmt: skip
    readonly_fields = ("page",)

    @admin.display(description="error")
    def error(self, failure: Failure) -> str:
        return f"{failure.error_type}: {failure.message[:120]}"

    @admin.display(description="page")
    def page(self, failure: Failure) -> str:
        return format_html(
            '<a href="{}">Attempts, traceback, arguments</a>', reverse("failure-detail", args=[failure.pk])
        )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Failure]:
        return Failure.objects.filter(scopes.visible(_viewer(request)))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet, search_term: str
    ) -> tuple[QuerySet[Failure], bool]:
        found = failures.scope(_viewer(request), query_of(request)).order_by("-pk")
        return found.defer("args", "kwargs", "headers"), False

    def get_paginator(self, request: HttpRequest, queryset: QuerySet, per_page: int, *rest: object) -> Paginator:
        return FailurePaginator(queryset, per_page, _viewer(request), query_of(request))

    def response_action(self, request: HttpRequest, queryset: QuerySet) -> HttpResponse | None:
        # Django's own code would fall over ids that are no numbers.
        if not all(pk.isascii() and pk.isdigit() for pk in request.POST.getlist(ACTION_CHECKBOX_NAME)):
            return HttpResponseBadRequest("Nothing was changed: a chosen row is none of ours.")
        return super().response_action(request, queryset)

    @admin.action(description="Replay…", permissions=["operate"])
    def replay(self, request: HttpRequest, chosen: QuerySet) -> HttpResponse | None:
        viewer, scope = _viewer(request), _scope(request)
        try:
            if "confirmed" not in request.POST:
                return self._confirm(request, "Replay", scope, replays.preview(viewer, **scope))
            made = replays.draft(
                viewer, **scope, reason=request.POST.get("reason", ""), snapshot=request.POST.get("snapshot", "")
            )
            made = replays.start(viewer, made)
        except replays.ReplayRefused as refused:
            self.message_user(request, refused.message, messages.ERROR)
            return None
        link = format_html(
            'Replay <a href="{}">#{}</a> sends {} jobs.', reverse("replay-detail", args=[made.pk]), made.pk, made.total
        )
        self.message_user(request, link, messages.SUCCESS)
        return None

    @admin.action(description="Discard", permissions=["operate"])
    def discard(self, request: HttpRequest, chosen: QuerySet) -> HttpResponse | None:
        viewer, scope = _viewer(request), _scope(request)
        if "confirmed" not in request.POST:
            return self._confirm(request, "Discard", scope, None)
        try:
            done = triage.discard(viewer, **scope, reason=request.POST.get("reason", ""))
        except triage.TriageRefused as refused:
            self.message_user(request, refused.message, messages.ERROR)
            return None
        self.message_user(request, f"{done.count:,} failures discarded. They can be restored.", messages.SUCCESS)
        return None

    def _confirm(
        self, request: HttpRequest, act: str, scope: dict[str, object], seen: replays.Preview | None
    ) -> HttpResponse:
        viewer = _viewer(request)
        if seen is not None:
            count, is_capped = seen.replayable, False
        elif scope.get("query") is not None:
            asked = parse(f"{scope['query']}", timezone.now())
            count, is_capped = failures.count(viewer, asked)
        else:
            count, is_capped = len(scope["selection"]), False
        context = self.admin_site.each_context(request) | {
            "title": f"{act} {'more than ' if is_capped else ''}{count:,} {'job' if count == 1 else 'jobs'}",
            "opts": self.opts,
            "act": act,
            "action": request.POST["action"],
            "count": count,
            "seen": seen,
            "reading": parse(scope["query"]).reading if scope.get("query") is not None else "",
            "scope": scope,
            "checkbox": ACTION_CHECKBOX_NAME,
            # Of a whole search, one id stands for all: Django's admin wants some, the scope says which.
            "ids": scope.get("selection") or request.POST.getlist(ACTION_CHECKBOX_NAME)[:1],
            "across": scope.get("query") is not None,
        }
        return TemplateResponse(request, "admin/jobs_admin/failure/confirm.html", context)


def _scope(request: HttpRequest) -> dict[str, object]:
    """What an action is for: the search itself when all across the pages were chosen, else the rows ticked.

    The confirmed search comes back with the absolute times that were shown, never as thousands of ids.
    """
    if request.POST.get("select_across") == "1":
        shown = request.POST.get("query") if "confirmed" in request.POST else None
        now = timezone.now()
        return {"query": shown if shown is not None else _named(query_of(request), now)}
    ticked = request.POST.getlist(ACTION_CHECKBOX_NAME)
    # Never empty: to the services an empty selection means the search instead, and an empty search means everything.
    return {"selection": [int(pk) for pk in ticked if pk.isascii() and pk.isdigit() and len(pk) < 19] or [0]}


def _named(query: Query, now: timezone.datetime) -> str:
    """The text of the search with absolute times; the default scope named too, so that it is never empty by chance."""
    if query.is_cut:
        return language.format(query) + " " + "x" * language.MAX_CHARS  # stays too long, and so is refused as a scope
    text = language.format(language.pin(query, now))
    return text if query.names_state else f"{text} state:{','.join(language.DEFAULT_STATES)}".strip()


# --- groups -----------------------------------------------------------------------------------------------------


class GroupForm(ModelForm):
    class Meta:
        model = Group
        fields = ("assignee", "note", "runbook_url")


@admin.register(Group)
class GroupAdmin(Records):
    form = GroupForm
    list_display = ("title", "state", "count", "first_seen", "last_seen", "assignee")
    list_filter = ("state",)
    list_select_related = ("assignee",)
    search_fields = ("error_type", "message", "fingerprint")
    ordering = ("-last_seen",)
    fields = (
        "error", "fingerprint", "place", "state", "count", "first_seen", "last_seen", "assignee", "note", "runbook_url",
    )  # fmt: skip
    readonly_fields = ("error", "fingerprint", "place", "state", "count", "first_seen", "last_seen")

    @admin.display(description="title")
    def error(self, group: Group) -> str:
        return marked(group.title)

    @admin.display(description="culprit")
    def place(self, group: Group) -> str:
        return marked(group.culprit)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Group]:
        seen = FailureCount.objects.filter(scopes.visible(_viewer(request)), group_id=OuterRef("pk"), count__gt=0)
        return Group.objects.filter(Exists(seen))

    def has_change_permission(self, request: HttpRequest, obj: Group | None = None) -> bool:
        viewer = _viewer(request)
        if obj is None or not viewer.may_anywhere(OPERATOR):
            return viewer.may_anywhere(OPERATOR)
        sources = FailureCount.objects.filter(group_id=obj.pk, count__gt=0).values_list("source", flat=True).distinct()
        return all(viewer.may(OPERATOR, source) for source in sources)

    def formfield_for_foreignkey(self, db_field, request: HttpRequest, **more):
        more["queryset"] = get_user_model().objects.filter(is_active=True)
        return super().formfield_for_foreignkey(db_field, request, **more)

    def save_model(self, request: HttpRequest, obj: Group, form: ModelForm, change: bool) -> None:
        given = form.cleaned_data
        changes = {name: given[name] for name in form.changed_data}
        if "assignee" in changes:
            changes["assignee"] = given["assignee"].get_username() if given["assignee"] else ""
        if changes:
            grouping.change(_viewer(request), obj, changes)

    def get_form(self, request: HttpRequest, obj: Group | None = None, change: bool = False, **more):
        form = super().get_form(request, obj, change, **more)
        if "assignee" in form.base_fields:  # the account is chosen here, not changed
            widget = form.base_fields["assignee"].widget
            widget.can_add_related = widget.can_change_related = widget.can_view_related = False
        return form


# --- replays, sources, audit ------------------------------------------------------------------------------------


@admin.register(Replay)
class ReplayAdmin(Records):
    list_display = ("id", "state", "query", "total", "succeeded", "failed_again", "actor", "created_at")
    list_filter = ("state",)
    ordering = ("-id",)
    exclude = ("sender", "sender_until", "snapshot", "edit")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Replay]:
        return replays.visible(_viewer(request))


@admin.register(Source)
class SourceAdmin(Records):
    list_display = ("name", "backend", "is_configured", "is_reachable", "sampled_at", "first_seen")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Source]:
        allowed = _viewer(request).sources()
        return Source.objects.all() if allowed is None else Source.objects.filter(name__in=allowed)


@admin.register(AuditEvent)
class AuditAdmin(Records):
    needs = ADMIN
    list_display = ("at", "actor", "act", "object", "source", "reason", "allowed")
    ordering = ("-id",)
    sortable_by = ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[AuditEvent]:
        allowed = _viewer(request).sources(ADMIN)
        return AuditEvent.objects.all() if allowed is None else AuditEvent.objects.filter(source__in=allowed)


# --- who may do what --------------------------------------------------------------------------------------------


class ForAdmins(Records):
    """Only for an admin of every source: whoever gives roles could give themselves any."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_administer_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return self.has_administer_permission(request)


@admin.register(Unfiled)
class UnfiledAdmin(ForAdmins):
    """Reports that could not be filed. Nobody knows of which source they are, so only for admins of every source."""

    list_display = ("received_at", "short_why", "size")
    ordering = ("-id",)
    sortable_by = ()
    fields = ("received_at", "entry_id", "size", "why")  # what it holds stays encrypted

    @admin.display(description="why")
    def short_why(self, report: Unfiled) -> str:
        return report.why[:200]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Unfiled]:
        return Unfiled.objects.defer("body")


@admin.register(ApiToken)
class ApiTokenAdmin(ForAdmins):
    """Made by `manage.py token create`, which shows a token once. Here only its hash is known."""

    list_display = ("name", "role", "source", "created_at", "revoked_at")
    readonly_fields = ("sha256",)
    actions = ("revoke",)

    @admin.action(description="Revoke", permissions=["administer"])
    def revoke(self, request: HttpRequest, chosen: QuerySet[ApiToken]) -> None:
        revoked = 0
        for token in chosen:
            with transaction.atomic():
                if ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=timezone.now()):
                    audit.record(_viewer(request), "token.revoke", f"token:{token.name}")
                    revoked += 1
        self.message_user(request, f"{revoked} tokens revoked.", messages.SUCCESS)


@admin.register(Role)
class RoleAdmin(ForAdmins):
    list_display = ("user", "source", "role")
    list_select_related = ("user",)
    list_filter = ("role", "source")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.has_administer_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return self.has_administer_permission(request)

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return self.has_administer_permission(request)

    def save_model(self, request: HttpRequest, obj: Role, form: ModelForm, change: bool) -> None:
        before = {"role": form.initial.get("role"), "source": form.initial.get("source")} if change else None
        super().save_model(request, obj, form, change)
        self._record(request, "role.grant", obj, before=before, after={"role": obj.role, "source": obj.source})

    def delete_model(self, request: HttpRequest, obj: Role) -> None:
        with transaction.atomic():
            self._record(request, "role.withdraw", obj, before={"role": obj.role, "source": obj.source})
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Role]) -> None:
        with transaction.atomic():
            for role in queryset.select_related("user"):
                self.delete_model(request, role)

    def _record(self, request: HttpRequest, act: str, role: Role, **more: object) -> None:
        name = representable(role.user.get_username())
        source = "" if role.source == EVERY_SOURCE else role.source
        audit.record(_viewer(request), act, f"user:{name}", source=source, **more)


class Audited(admin.ModelAdmin):
    """Whoever may log in, and with which of Django's permissions: each change stands in the audit."""

    act: str

    def log_addition(self, request: HttpRequest, obj: Model, message: object) -> LogEntry:
        self._record(request, "add", obj, after=self._said(obj))
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Model, message: object) -> LogEntry:
        self._record(request, "change", obj, after=self._said(obj) | {"changed": message})
        return super().log_change(request, obj, message)

    def log_deletions(self, request: HttpRequest, queryset: QuerySet) -> object:
        for obj in queryset:
            self._record(request, "delete", obj, before=self._said(obj))
        return super().log_deletions(request, queryset)

    def _record(self, request: HttpRequest, verb: str, obj: Model, **more: object) -> None:
        with transaction.atomic():
            audit.record(_viewer(request), f"{self.act}.{verb}", f"{self.act}:{representable(str(obj))}", **more)


class AuditedUserAdmin(Audited, KeepsRights, UserAdmin):
    act = "user"

    def _said(self, user: AbstractUser) -> dict[str, object]:
        return {
            "is_active": user.is_active,
            "is_staff": user.is_staff,
            "is_superuser": user.is_superuser,
            "groups": sorted(user.groups.values_list("name", flat=True)),
            "permissions": _permissions(user.user_permissions),
        }


class AuditedAccountGroupAdmin(Audited, ForSuperusers, AccountGroupAdmin):
    act = "account-group"

    def _said(self, group: AccountGroup) -> dict[str, object]:
        return {"permissions": _permissions(group.permissions)}


def _permissions(held: Manager[Permission]) -> list[str]:
    return sorted(".".join(pair) for pair in held.values_list("content_type__app_label", "codename"))


admin.site.unregister(get_user_model())
admin.site.unregister(AccountGroup)
admin.site.register(get_user_model(), AuditedUserAdmin)
admin.site.register(AccountGroup, AuditedAccountGroupAdmin)

admin.site.site_header = "Redrive"
admin.site.site_title = "Redrive"
admin.site.index_title = "Records"
