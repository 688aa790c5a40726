"""Second factor pages shared by sign-in and account: set-up, recovery codes, and refusals of codes."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from dashboard.web.htmx import render
from jobs_admin.rights import second_factor
from jobs_admin.rights.second_factor import Result

REFUSALS = {
    Result.WRONG: "This code is wrong, expired or already used. Enter the current code from your app.",
    Result.LOCKED: "Too many wrong codes: codes from your app are refused for 15 minutes. Wait, or use a recovery code.",
    Result.BLOCKED: "Too many wrong codes: codes from your app are refused. Use a recovery code, or ask an admin for a reset.",
    Result.UNREADABLE: "The desk lacks the key that decrypts your second factor. Use a recovery code, or ask an admin for a reset.",
}


def set_up(
    request: HttpRequest, user: Any, sealed: str, action: str, *, is_wrong: bool = False, back: str = ""
) -> HttpResponse:
    """Show the key as QR code, link and text, with the field for the first code. Raises InvalidToken."""
    import segno  # needed by few requests

    key = second_factor.open_key(sealed)
    uri = second_factor.build_uri(user, key)
    picture = segno.make(uri, error="m", micro=False).svg_inline(scale=4, dark="#000", light="#fff")
    context = {
        "uri": uri, "key": " ".join(key[at : at + 4] for at in range(0, len(key), 4)), "action": action,
        "picture": SafeString(picture), "is_wrong": is_wrong, "back": back, "name": user.get_username(),
    }  # fmt: skip
    return render(request, "redrive/account/set_up.html", context, 422 if is_wrong else 200)


def recovery_codes(request: HttpRequest, codes: list[str], after: str) -> HttpResponse:
    """Show the recovery codes, only in the response to the act that created them."""
    return render(request, "redrive/account/recovery_codes.html", {"codes": codes, "after": after})
