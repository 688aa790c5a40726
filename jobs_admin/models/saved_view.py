from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q


class SavedView(models.Model):
    """A saved search, as written: private to its owner, or shared with everyone on the desk."""

    name = models.CharField(max_length=100)
    query = models.TextField()
    # None: created by a token, for everyone.
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+", null=True)
    columns = models.JSONField(default=list, db_default=[])  # names; empty: those that its reader chose
    is_shared = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["owner", "name"], name="one_view_per_name"),
            models.UniqueConstraint(fields=["name"], condition=Q(owner=None), name="one_view_per_name_of_tokens"),
            models.CheckConstraint(condition=Q(is_shared=True) | Q(owner__isnull=False), name="view_has_readers"),
        ]

    def __str__(self) -> str:
        return self.name


class ListColumns(models.Model):
    """The columns that a person chose for the failure list; without a row, the default."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+", primary_key=True)
    names = models.JSONField(default=list)
