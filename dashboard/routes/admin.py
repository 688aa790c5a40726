"""`/admin/`: Django's admin, with its records registered."""

from __future__ import annotations

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from jobs_admin.admin import logins


def _login(request: HttpRequest, extra_context: object = None) -> HttpResponse:
    """Replace Django's login, which has no second step; anonymous users are redirected to the desk's before."""
    if not admin.site.has_permission(request):
        raise PermissionDenied("Your account does not open Django's admin. Ask a superuser of this desk.")
    return HttpResponseRedirect(reverse("admin:index"))


admin.autodiscover()
admin.site.login = _login
logins.register()
admin.site.site_header = admin.site.site_title = "Redrive"
admin.site.index_title = "Records"

urlpatterns = admin.site.get_urls()
