"""Coming in and going out."""

from __future__ import annotations

from django.contrib.auth.views import LoginView, LogoutView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from dashboard.web.middleware.entrance import page_at


class Login(LoginView):
    """The login. `next` leads only to pages of this desk that can be read."""

    template_name = "redrive/registration/login.html"
    redirect_authenticated_user = True

    def get_redirect_url(self) -> str:
        return page_at(self.request, super().get_redirect_url())


class Logout(LogoutView):
    """Ends the session; a POST, so that no foreign page can do it."""


def locked(request: HttpRequest, response: HttpResponse | None = None, credentials=None) -> HttpResponse:
    """Return the answer of axes after too many wrong passwords."""
    return render(request, "redrive/registration/locked.html", status=429)
