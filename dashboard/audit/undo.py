"""The undo of an act: its sentence and its form, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from django.urls import reverse

from dashboard.audit import sweeps
from dashboard.web import links
from jobs_admin.core.text import whole_number
from jobs_admin.failures.undoing import Done, Undoable

_DID = {"failure.discard": "discarded", "failure.restore": "restored", "failure.readmit": "readmitted"}
_REPLAYS = {
    "start": "started", "pause": "paused", "resume": "resumed", "cancel": "cancelled", "pace": "changed the rate of",
    "resolve": "resolved a job of",
}  # fmt: skip
_POLICIES = {"publish": "published", "put_back": "restored a version of", "withdraw": "withdrew"}
_OTHERS = {
    "alert.acknowledge": "acknowledged alert", "alert.unacknowledge": "unacknowledged alert",
    "pause.create": "started pause", "pause.resume": "ended pause",
    "silence.create": "created silence", "silence.end": "ended silence",
    "channel.save": "saved channel", "channel.enable": "enabled channel", "channel.disable": "disabled channel",
    "channel.test": "tested channel", "delivery.resend": "resent delivery", "runbook.save": "saved runbook",
    "runbook.delete": "deleted runbook", "view.save": "saved view", "view.change": "changed view",
    "view.delete": "deleted view", "columns.choose": "chose columns",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Offer:
    act: Undoable
    what: str  # "1,263 jobs"
    did: str
    url: str
    fields: tuple[tuple[str, str], ...]

    @property
    def is_small(self) -> bool:
        """Taken back without being asked about: one job, or one group. A rule moves thousands."""
        return self.act.count == 1 and not self.act.is_rule and not self.act.is_of_alerts

    @property
    def outcome(self) -> str:
        """Return what the undo restores, as a sentence."""
        if self.act.is_rule:
            return "Groups return to their state and note from before the rule. Their failures follow within minutes."
        if self.act.is_of_alerts:
            verb = "becomes" if self.act.count == 1 else "become"
            return f"{self.what[0].upper()}{self.what[1:]} {verb} unacknowledged again; the rule’s reminders and escalation resume."
        return "Anything changed since then stays as it is."

    @property
    def button(self) -> str:
        return "Undo the rule" if self.act.is_rule else f"Undo {self.what}"


@dataclass(frozen=True, slots=True)
class Final:
    """The latest act, which cannot be taken back."""

    act: Done
    did: str  # "You started replay #5"
    url: str  # where it is to be seen; empty where that has no page


def offer(act: Undoable, back: str) -> Offer:
    if act.is_rule:
        url = reverse("redrive:group-rule-withdraw", args=[act.handle])
        return Offer(act, f"“{act.summary}”", "created the rule", url, (("back", back),))
    if act.is_of_groups:
        fields = (("act", "undo"), ("receipt", act.handle), ("back", back))
        return Offer(act, groups(act.count), "changed", reverse("redrive:group-bulk"), fields)
    if act.is_of_alerts:
        url = reverse("redrive:alert-unacknowledge", args=[int(act.handle)])
        return Offer(act, alerts(act.count), "acknowledged", url, (("back", back),))
    return Offer(
        act,
        sweeps.jobs(act.count),
        _DID[act.act],
        reverse("redrive:failure-undo"),
        (("key", act.handle), ("back", back)),
    )


def final(act: Done) -> Final:
    kind, _, name = act.object.partition(":")
    verb = act.act.partition(".")[2]
    if act.act.startswith("replay."):
        return Final(act, f"You {_REPLAYS.get(verb, verb)} replay #{name}", page_of(act.object))
    if act.act in _DID:
        jobs = f"job {name}" if kind == "failure" else "jobs"
        return Final(act, f"You {_DID[act.act]} {jobs}", page_of(act.object))
    if kind == "rule":
        made = "withdrew a grouping rule" if verb == "withdraw" else "created a grouping rule"
        return Final(act, f"You {made}", page_of(act.object))
    if kind == "group":
        return Final(act, "You changed a group", page_of(act.object))
    if kind == "policy":
        return Final(act, f"You {_POLICIES.get(verb, verb)} the policy {name}", page_of(act.object))
    if act.act in _OTHERS:
        return Final(act, f"You {_OTHERS[act.act]} {name}", page_of(act.object))
    return Final(act, f"Your last action: {act.act}" + (f" on {act.object}" if act.object else ""), page_of(act.object))


_WITH_NUMBERS = {"alert-rule": "alert-rule-detail", "alert": "alert-detail", "channel": "channel-detail"}
_WITH_NUMBERS |= {"delivery": "delivery-detail"}


def page_of(name: str) -> str:
    """The page of what an act was done to; "" for what has none."""
    kind, _, key = name.partition(":")
    if kind in {"failure", "replay"} and (pk := whole_number(key.partition("@")[0])) is not None:
        return reverse(f"redrive:{kind}-detail", args=[pk])
    if kind in _WITH_NUMBERS and (pk := whole_number(key)) is not None:
        return reverse(f"redrive:{_WITH_NUMBERS[kind]}", args=[pk])
    if kind == "rule":
        return reverse("redrive:group-rules")
    if kind == "pause":
        return reverse("redrive:pause-list")
    if kind == "runbook":
        return reverse("redrive:runbook-list")
    if kind == "policy" and links.is_name(key):
        return reverse("redrive:policy-versions", args=[key])
    if kind == "view":
        return reverse("redrive:view-list")
    return links.group_page(key) if kind == "group" and key and "/" not in key else ""


def alerts(count: int) -> str:
    return "1 alert" if count == 1 else f"{count:,} alerts"


def groups(count: int) -> str:
    return "1 group" if count == 1 else f"{count:,} groups"
