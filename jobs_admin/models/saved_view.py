from __future__ import annotations

from django.conf import settings
from django.db import models


class SavedView(models.Model):
    """A query worth keeping, its owner's alone or shared with everyone who may see what it finds."""

    name = models.CharField(max_length=100)
    query = models.TextField()
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    is_shared = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["owner", "name"], name="one_view_per_name")]

    def __str__(self) -> str:
        return self.name
