"""Acts as text: the undo of one or why there is none, and the progress and result of a bulk act."""

from __future__ import annotations

from dataclasses import dataclass

from django.urls import reverse

from dashboard.web import figures, links
from jobs_admin.core.text import whole_number
from jobs_admin.failures.triage import Sweep
from jobs_admin.failures.undoing import Done, Undoable

_DID = {"failure.discard": "discarded", "failure.restore": "restored", "failure.readmit": "readmitted"}
_REPLAYS = {
    "start": "started", "pause": "paused", "resume": "resumed", "cancel": "cancelled", "pace": "changed the rate of",
    "resolve": "resolved a job of",
}  # fmt: skip
_POLICIES = {"publish": "published", "put_back": "restored a version of", "withdraw": "withdrew"}
_OTHERS = {
    "alert.acknowledge": "acknowledged alert", "alert.unacknowledge": "unacknowledged alert",
    "automation.create": "created automation", "automation.change": "changed automation",
    "automation.enable": "enabled automation", "automation.disable": "disabled automation",
    "automation.approve": "approved automation", "automation.reset": "reset automation",
    "automation.delete": "deleted automation", "automation.stop": "stopped automation",
    "pause.create": "started pause", "pause.resume": "ended pause", "breaker.force": "forced the state of breaker",
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
        """Return whether the undo needs no confirmation: it affects one job or one group. A rule moves thousands."""
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
    """The latest act, if it cannot be undone."""

    act: Done
    did: str  # "You started replay #5"
    url: str  # URL of its result; "" without a page


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
        jobs(act.count),
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
    """Return the URL of the page of an act's object; "" for none."""
    kind, _, key = name.partition(":")
    if kind in {"failure", "replay"} and (pk := whole_number(key.partition("@")[0])) is not None:
        return reverse(f"redrive:{kind}-detail", args=[pk])
    if kind in _WITH_NUMBERS and (pk := whole_number(key)) is not None:
        return reverse(f"redrive:{_WITH_NUMBERS[kind]}", args=[pk])
    if kind == "rule":
        return reverse("redrive:group-rules")
    if kind == "automation" and links.is_name(key):
        return reverse("redrive:automation-detail", args=[key])
    if kind == "pause":
        return reverse("redrive:pause-list")
    if kind == "breaker":
        source, _, breaker = key.partition("/")
        return reverse("redrive:breaker-detail", args=[source, breaker]) if source and breaker else ""
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


_DOING = {"discard": "Discarding", "restore": "Restoring", "readmit": "Readmitting", "undo": "Undoing"}
_SWEPT = {"discard": "Discarded", "restore": "Restored", "readmit": "Readmitted", "undo": "Undid"}
_NEEDS = {
    "discard": "They are no longer dead, are part of a running replay, or you need the role operator on their source.",
    "restore": "They are no longer discarded, or you need the role operator on their source.",
    "readmit": "They are not in quarantine, or you need the role operator on their source.",
    "undo": "They were changed afterwards, or you need the role operator on their source.",
}


@dataclass(frozen=True, slots=True)
class Words:
    doing: str
    sofar: str
    left: str  # time left at the current rate; "" if unknown


def progress(sweep: Sweep, per_s: float = 0.0) -> Words:
    """Return the progress, and the time left if `per_s` jobs are checked per second."""
    left = ""
    if per_s > 0:
        left = f"About {figures.duration(max(1, round((sweep.matched - sweep.looked) / per_s)))} left."
    return Words(_DOING[sweep.act], f"{_SWEPT[sweep.act]} {jobs(sweep.changed)} so far.", left)


def result(act: str, changed: int, checked: int, *, is_stopped: bool = False) -> tuple[str, str]:
    """Return the message and its level."""
    if not changed:
        return f"No job was {_word(act)}. {_NEEDS[act]} Nothing was changed.", "warning"
    words = f"{_SWEPT[act]} {jobs(changed)}."
    if is_stopped:
        return f"Stopped. {words} The others were not checked.", "success"
    if checked > changed:
        left = checked - changed
        words += f" {jobs(left)} could not be {_word(act)}. {_NEEDS[act]}"
    return words, "success"


def _word(act: str) -> str:
    return {"discard": "discarded", "restore": "restored", "readmit": "readmitted", "undo": "undone"}[act]


def jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"
