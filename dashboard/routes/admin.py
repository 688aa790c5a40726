"""`/admin/`: Django's admin, with its records registered."""

from __future__ import annotations

from django.contrib import admin

from jobs_admin.admin import logins

admin.autodiscover()
logins.register()
admin.site.site_header = admin.site.site_title = "Redrive"
admin.site.index_title = "Records"

urlpatterns = admin.site.get_urls()
