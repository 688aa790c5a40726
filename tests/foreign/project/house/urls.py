from django.conf import settings
from django.contrib import admin
from django.contrib.auth.views import LoginView
from django.urls import include, path

from house import views

urlpatterns = [
    path("", views.index, name="overview"),
    path("notes/", views.notes, name="notes"),
    path("broken/", views.broken),
    path("enter/", LoginView.as_view(template_name="house/enter.html"), name="enter"),
    path("admin/", admin.site.urls),
]
if settings.IS_MOUNTED:
    ours = path(settings.WHERE, include("dashboard.routes"))
    urlpatterns = [*urlpatterns, ours] if settings.WHERE else [*urlpatterns[1:], ours]

handler403 = handler404 = views.not_found
handler500 = views.failed
