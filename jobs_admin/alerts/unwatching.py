"""A view is deleted, with its owner's account or by itself: a rule on it is switched off, and stays with what it told."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from jobs_admin.alerts import closing
from jobs_admin.db import audit
from jobs_admin.db.authorizing import audited
from jobs_admin.models import Rule, SavedView
from jobs_admin.models.access import Viewer

DESK = Viewer("redrive")  # as the audit names who does what follows from another act
WHY = "The view that it watches was deleted, and with it what there is to watch: the rule is switched off."


def switch_off_rules_on(view: SavedView) -> None:
    """Before it is deleted, in the same transaction: its alerts are closed, and that is told."""
    with transaction.atomic():
        for rule in Rule.objects.select_for_update().filter(view=view.pk, deleted_at=None).order_by("pk"):
            now = timezone.now()
            closing.close_rule(rule, WHY, now)
            Rule.objects.filter(pk=rule.pk).update(view=None, enabled=False, changed_at=now, changed_by=DESK.name)
            for source in audited([rule.source]):
                audit.record(
                    DESK, "rule.change", f"alert-rule:{rule.pk}", source=source, reason=WHY,
                    before={"name": rule.name, "view": view.pk, "enabled": rule.enabled},
                    after={"name": rule.name, "view": None, "enabled": False},
                )  # fmt: skip
