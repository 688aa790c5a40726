"""`/admin/`: Django's admin, with its records registered."""

from __future__ import annotations

from django.contrib import admin

admin.autodiscover()

urlpatterns = admin.site.get_urls()
