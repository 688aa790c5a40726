"""A channel in the editor: a text for each input, and the errors of each input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.http import QueryDict

from jobs_admin.core.refused import Refused
from jobs_admin.models.notice import EVENTS, KINDS
from jobs_admin.notices import ChannelRow

# The inputs that mean something for a kind. The routing key of PagerDuty is its `secret`.
OF_KIND = {
    "webhook": ("url", "secret"),
    "slack": ("url",),
    "pagerduty": ("routing_key", "url"),
    "email": ("to",),
}
PLACES = ("name", "kind", "url", "to", "secret", "routing_key", "events")
_LONGEST = 4_000


@dataclass(slots=True)
class Draft:
    """The texts of the inputs. `document` is the channel that they describe; `errors` the refusals by input."""

    texts: dict[str, str] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    errors: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def from_channel(cls, row: ChannelRow) -> Draft:
        """Return a channel as inputs. Secrets are never filled in: an empty input leaves the stored one."""
        url = "" if row.kind == "slack" else row.url
        return cls({"name": row.name, "kind": row.kind, "url": url, "to": "\n".join(row.to)}, list(row.events))

    @classmethod
    def from_form(cls, given: QueryDict, kind: str = "") -> Draft:
        """Return the inputs of a submitted form; `kind` of an existing channel."""
        texts = {name: given.get(name, "")[:_LONGEST].strip() for name in PLACES if name != "events"}
        texts["kind"] = kind or texts["kind"]
        return cls(texts, [one[:100] for one in given.getlist("events")][: len(EVENTS) * 2])

    @property
    def kind(self) -> str:
        return self.texts.get("kind") or KINDS[0]

    def document(self) -> dict[str, Any]:
        """Return the channel as the API takes it: the fields of its kind that are not empty."""
        found: dict[str, Any] = {"name": self.texts.get("name", ""), "kind": self.kind, "events": list(self.events)}
        for name in OF_KIND.get(self.kind, ()):
            text = self.texts.get(name, "")
            if name == "to":
                found["to"] = [one.strip() for one in text.replace(",", "\n").splitlines() if one.strip()]
            elif text:
                found["secret" if name == "routing_key" else name] = text
        return found

    def refuse_all(self, problems: list[Refused], refused: Refused) -> None:
        """Put each problem beside its input; where the fields are valid, the refusal of the act."""
        for one in problems or [refused]:
            self.refuse(one)

    def refuse(self, refused: Refused) -> None:
        """Put it beside its input; what has none stands under `""`."""
        place = refused.field or ""
        if place == "secret" and self.kind == "pagerduty":
            place = "routing_key"
        self.errors.setdefault(place if place in PLACES else "", []).append(refused.message)
