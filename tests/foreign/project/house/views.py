from datetime import UTC, datetime

from django.contrib.auth.decorators import login_required
from django.http import HttpResponse, HttpResponseNotFound, HttpResponseServerError
from django.shortcuts import render


def index(request):
    return HttpResponse("The house")


@login_required
def notes(request):
    return render(request, "house/notes.html", {"count": 1234567.5, "at": datetime(2026, 3, 2, 12, tzinfo=UTC)})


def broken(request):
    raise ValueError("of the house")


def not_found(request, exception=None):
    return HttpResponseNotFound("nothing in the house")


def failed(request):
    return HttpResponseServerError("the house is broken")
