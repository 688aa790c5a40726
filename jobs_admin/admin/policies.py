"""Policies: published, rolled back and withdrawn by the same services as on their pages. A version never changes."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.forms.fields import InvalidJSONInput
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from jobs_admin import policies
from jobs_admin.admin.records import Records, viewer
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.models import PolicyVersion
from jobs_admin.models.access import OPERATOR, Viewer

_REFUSED = (Refused, NotFound)


class Document(forms.JSONField):
    """Django's JSON field, but no input makes the page fail: deep nesting, an overlong number, a lone surrogate."""

    def to_python(self, value: Any) -> Any:
        try:
            return super().to_python(value)
        except (ValueError, RecursionError) as error:
            raise ValidationError(f"This is not JSON: {error}. Nothing was changed.") from error

    def bound_data(self, data: Any, initial: Any) -> Any:
        return None if data is None else InvalidJSONInput(data)  # as entered


class PolicyForm(forms.ModelForm):
    """Form that publishes a policy, as successor of the version that the form was opened on, or under a new name."""

    viewer: Viewer  # set by the admin for each request
    called = forms.CharField(label="Name", max_length=63)
    expected_version = forms.IntegerField(widget=forms.HiddenInput, required=False)

    class Meta:
        model = PolicyVersion
        fields = ("document", "reason")
        field_classes = {"document": Document}
        widgets = {"document": forms.Textarea(attrs={"rows": 30, "cols": 100})}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["reason"] = ""  # would be that of the previous version
        if self.instance.pk:
            self.fields.pop("called", None)
            self.initial["expected_version"] = self.instance.version

    @property
    def name(self) -> str:
        return self.instance.name if self.instance.pk else self.cleaned_data.get("called", "")

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if "document" in cleaned and not self.errors:
            try:
                policies.check(self.viewer, self.name, cleaned["document"])
            except Refused as refused:
                for message in [one.message for one in refused.details.get("problems", ())] or [refused.message]:
                    self.add_error("document", ValidationError(message))
        return cleaned


@admin.register(PolicyVersion)
class PolicyAdmin(Records):
    adds = changes = OPERATOR
    form = PolicyForm
    list_display = (
        "name", "version", "is_published", "mode", "match", "published_by", "published_at", "expires_at", "reason",
    )  # fmt: skip
    list_filter = ("is_published", "mode")
    search_fields = ("document",)
    search_help_text = "Searches the text of the document: name, task, queue, note."
    ordering = ("document__name", "-version")
    sortable_by = ()
    actions = ("put_back", "withdraw")

    @admin.display(description="source · queue · task")
    def match(self, version: PolicyVersion) -> str:
        return f"{version.match_source} · {version.match_queue} · {version.match_task}"

    def get_queryset(self, request: HttpRequest) -> QuerySet[PolicyVersion]:
        sources = PolicyVersion.objects.order_by().values_list("match_source", flat=True).distinct()
        seen = [source for source in sources if viewer(request).sees_any_of(source)]
        return PolicyVersion.objects.filter(match_source__in=seen)

    def get_fields(self, request: HttpRequest, obj: PolicyVersion | None = None) -> tuple[str, ...]:
        if obj is None:
            return ("called", "document", "reason")
        if self.has_change_permission(request, obj):
            return ("name", "version", "document", "reason", "expected_version")
        times = ("published_at", "published_by", "ended_at", "expires_at", "reverts_to")
        return ("name", "version", "is_published", "document", "reason", *times)

    def get_readonly_fields(self, request: HttpRequest, obj: PolicyVersion | None = None) -> tuple[str, ...]:
        return () if obj is None else ("name", "version")

    def has_change_permission(self, request: HttpRequest, obj: PolicyVersion | None = None) -> bool:
        """Allow changes only of the version in force, which is replaced; former versions are history."""
        if obj is None or not super().has_change_permission(request):
            return super().has_change_permission(request)
        return obj.is_published and policies.may_publish(viewer(request), obj.match_source)

    def get_form(self, request: HttpRequest, *args: Any, **kwargs: Any) -> type[forms.ModelForm]:
        return type("PolicyForm", (super().get_form(request, *args, **kwargs),), {"viewer": viewer(request)})

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        version = self.get_object(request, object_id)
        if request.method == "POST" and "_put_back" in request.POST and version is not None:
            self._put_back(request, version)
            return HttpResponseRedirect(reverse("admin:jobs_admin_policyversion_changelist"))
        may = version is not None and not version.is_published
        extra = {"may_put_back": may and policies.may_publish(viewer(request), version.match_source)}
        return super().change_view(request, object_id, extra_context=extra)

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return super().changeform_view(request, *args, **kwargs)
        except _REFUSED as refused:  # changed since the form was checked, or a right that only the act requires
            self.message_user(request, _refusal_text(refused), messages.ERROR)
            return HttpResponseRedirect(request.path)

    def save_model(self, request: HttpRequest, obj: PolicyVersion, form: PolicyForm, change: bool) -> None:
        cleaned = form.cleaned_data
        made = policies.publish(
            viewer(request),
            form.name,
            cleaned["document"],
            expected_version=cleaned.get("expected_version") if change else None,
            reason=cleaned["reason"],
        )
        obj.__dict__.update(made.__dict__)

    @admin.action(description="Restore as the next version", permissions=["operate"])
    def put_back(self, request: HttpRequest, chosen: QuerySet[PolicyVersion]) -> None:
        if (version := self._only(request, chosen)) is not None:
            self._put_back(request, version)

    @admin.action(description="Withdraw policy", permissions=["operate"])
    def withdraw(self, request: HttpRequest, chosen: QuerySet[PolicyVersion]) -> None:
        if (version := self._only(request, chosen)) is None:
            return
        try:
            policies.withdraw(viewer(request), version.name, expected_version=version.version)
        except _REFUSED as refused:
            self.message_user(request, _refusal_text(refused), messages.ERROR)
        else:
            self.message_user(request, f"{version.name} is withdrawn. Every version can be restored.", messages.SUCCESS)

    def _only(self, request: HttpRequest, chosen: QuerySet[PolicyVersion]) -> PolicyVersion | None:
        found = list(chosen[:2])
        if len(found) == 1:
            return found[0]
        self.message_user(request, "Select one version. Nothing was changed.", messages.ERROR)
        return None

    def _put_back(self, request: HttpRequest, version: PolicyVersion) -> None:
        current = PolicyVersion.objects.filter(name=version.name, is_published=True).first()
        present = current.version if current else None
        try:
            made = policies.put_back(viewer(request), version.name, version.version, expected_version=present)
        except _REFUSED as refused:
            self.message_user(request, _refusal_text(refused), messages.ERROR)
        else:
            self.message_user(request, f"{version} restored as {made}.", messages.SUCCESS)


def _refusal_text(refused: Exception) -> str:
    return str(refused) if isinstance(refused, Refused) else "Policy not found. Nothing was changed."
