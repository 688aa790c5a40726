"""Sign-in of accounts: the second factor, its recovery codes, the sessions that were opened, and links to Slack."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class SecondFactor(models.Model):
    """Key of a person's authenticator app (TOTP), and the bound of attempts at its codes."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, models.CASCADE, related_name="redrive_second_factor")
    sealed = models.TextField(editable=False, help_text="Fernet token of the key.")
    last_step = models.BigIntegerField(help_text="30-second step of the last accepted code; only later ones count.")
    attempts = models.PositiveSmallIntegerField(default=0, help_text="Since the last accepted code.")
    retry_at = models.DateTimeField(null=True, help_text="Until then no code is checked.")
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"second factor of {self.user}"


class RecoveryCode(models.Model):
    """Code that stands in for the authenticator app once. Only its SHA-256 is stored; the code itself is shown once."""

    factor = models.ForeignKey(SecondFactor, models.CASCADE, related_name="recovery_codes")
    sha256 = models.CharField(max_length=64)
    used_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["factor", "sha256"], name="recovery_code_is_unique")]

    def __str__(self) -> str:
        return f"recovery code {self.pk}"


class SignIn(models.Model):
    """Session of a person, as their account page lists it. Django's table has the session itself."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="redrive_sign_ins")
    session_key = models.CharField(max_length=40, unique=True)
    address = models.CharField(max_length=45, help_text="Of the client; of IPv6 its /64 network's.")
    browser = models.CharField(max_length=40)
    at = models.DateTimeField(auto_now_add=True)
    seen_at = models.DateTimeField(help_text="Latest request, to five minutes.")

    def __str__(self) -> str:
        return f"{self.user}: {self.browser}"


class SlackLink(models.Model):
    """Slack user who approves replays as this account: linked, or being linked by a code."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, models.CASCADE, related_name="redrive_slack_link")
    # Of the code that the person sends in Slack; empty once it is used.
    code_sha256 = models.CharField(max_length=64, blank=True)
    expires_at = models.DateTimeField(help_text="Of the code, and of its confirmation on the account page.")
    team = models.CharField(
        max_length=20, blank=True, help_text="Slack's id of the workspace; empty: no code was sent."
    )
    member = models.CharField(max_length=20, blank=True, help_text="Slack's id of the user.")
    member_name = models.CharField(max_length=80, blank=True, help_text="Display only; not an identifier.")
    linked_at = models.DateTimeField(null=True, help_text="Empty: not confirmed.")
    session_hash = models.CharField(max_length=128, blank=True, help_text="As of the link: a new password ends it.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["team", "member"],
                condition=models.Q(linked_at__isnull=False),
                name="one_account_per_slack_user",
            )
        ]

    def __str__(self) -> str:
        return f"{self.user}: {self.member} of {self.team}"


class SlackRequest(models.Model):
    """Signature of a request from Slack that was accepted: it is not accepted again. Deleted once it is too old."""

    signature = models.CharField(max_length=80, unique=True)
    received_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return self.signature
