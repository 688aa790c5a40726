"""Sending to SQS, each message once: Redrive's store records a message before it is sent, and again when SQS confirms
it.

SQS cannot record a message in the step that sends it. A message that was started and not confirmed is in doubt, and is
never sent again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jobs_admin.sources import ledger
from jobs_admin.sources.base import SourceError, SourceRefused, SourceUnreachable
from jobs_admin.sources.ledger import Ledger
from jobs_admin.sources.sqs import messages
from jobs_admin.sources.sqs.queues import Queues
from jobs_admin.sources.sqs.wire import Wire, is_surely_unsent

_AT_ONCE = 10
_BYTES_AT_ONCE = 250_000  # of a batch: SQS allows 256 KiB in some places, 1 MiB in others
_UNKNOWN = {"InternalError", "InternalFailure", "ServiceUnavailable"}  # of an entry: its message may have arrived

Entry = tuple[str, dict[str, Any]]  # queue, and the entry of a batch


@dataclass(slots=True)
class _Ended:
    """Outcome of a batch. Tokens in none of these are in doubt."""

    sent: set[int] = field(default_factory=set)
    unsent: set[int] = field(default_factory=set)
    refused: dict[int, str] = field(default_factory=dict)  # tokens of `unsent` that SQS refused -> the reason
    error: SourceError | None = None


class Sender:
    """Sender of messages. Thread-safe."""

    def __init__(self, wire: Wire, queues: Queues, noted: Ledger) -> None:
        self._wire, self._queues, self._ledger = wire, queues, noted

    def send(self, replay: str, ready: Mapping[int, Entry]) -> dict[int, str]:
        """Send `ready`, token -> queue and entry, in order. Returns and raises like `base.Source.send`."""
        answers: dict[int, str] = {}
        for queue, part in _parts(ready):
            answers |= self._send_part(replay, queue, part)
        return answers

    def _send_part(self, replay: str, queue: str, part: Mapping[int, dict[str, Any]]) -> dict[int, str]:
        try:
            url = self._queues.prove(queue)  # before anything is recorded
        except SourceRefused as error:
            raise SourceRefused(f"{error} Nothing was sent.", tokens=part) from error
        begun = self._ledger.begin(replay, list(part))
        ours = {token: part[token] for token, answer in begun.items() if answer == ledger.OURS}
        ended = self._publish_in_order(url, ours) if queue.endswith(".fifo") else self._publish(url, ours)
        self._ledger.note(replay, ended.sent, ended.unsent)
        if ended.error is not None:
            raise ended.error
        if ended.refused:
            why = next(iter(ended.refused.values()))
            raise SourceRefused(f"{self._wire.where} refused the message for {queue}: {why}", tokens=ended.refused)
        if later := ended.unsent or ours.keys() - ended.sent:
            raise SourceUnreachable(f"{self._wire.where} did not accept {len(later)} jobs for {queue}.")
        if doubtful := [token for token, answer in begun.items() if answer == ledger.IN_DOUBT]:
            raise SourceUnreachable(f"Another sender started to send {len(doubtful)} jobs; their outcome is unknown.")
        never = {token for token, answer in begun.items() if answer == ledger.WITHHELD}
        return {token: "recalled" if token in never else "sent" if token in ended.sent else "already" for token in part}

    def _publish(self, url: str, ours: Mapping[int, dict[str, Any]]) -> _Ended:
        ended = _Ended()
        if not ours:
            return ended
        try:
            answer = self._wire.call("send_message_batch", QueueUrl=url, Entries=list(ours.values()))
        except SourceError as error:
            _note_error(ended, error, ours)
            return ended
        ended.sent = {int(one["Id"]) for one in answer.get("Successful", [])}
        for one in answer.get("Failed", []):
            token = int(one["Id"])
            if one.get("Code") in _UNKNOWN:
                continue
            ended.unsent.add(token)
            if one.get("SenderFault"):
                ended.refused[token] = f"{one.get('Code', '')} {str(one.get('Message', ''))[:200]}".strip()
        return ended

    def _publish_in_order(self, url: str, ours: Mapping[int, dict[str, Any]]) -> _Ended:
        """Send messages one after another, and stop at the first that SQS does not accept."""
        ended = _Ended()
        for n, (token, entry) in enumerate(ours.items()):
            try:
                self._wire.call("send_message", QueueUrl=url, **{k: v for k, v in entry.items() if k != "Id"})
            except SourceError as error:
                ended.unsent |= set(list(ours)[n + 1 :])
                _note_error(ended, error, [token])
                break
            ended.sent.add(token)
        return ended


def _note_error(ended: _Ended, error: SourceError, tokens: Any) -> None:
    if is_surely_unsent(error.__cause__):
        ended.unsent |= set(tokens)
    if isinstance(error, SourceRefused):
        sent = f"Sent before it: {len(ended.sent):,}" if ended.sent else "Nothing was sent"
        error = SourceRefused(f"{error} {sent}.", tokens=tokens)
    ended.error = error


def _parts(ready: Mapping[int, Entry]) -> Iterator[tuple[str, dict[int, dict[str, Any]]]]:
    """Yield batches of one queue each, in order."""
    part: dict[int, dict[str, Any]] = {}
    queue, size = "", 0
    for token, (target, entry) in ready.items():
        weight = messages.size_of(entry)
        if part and (target != queue or len(part) == _AT_ONCE or size + weight > _BYTES_AT_ONCE):
            yield queue, part
            part, size = {}, 0
        queue = target
        part[token] = entry
        size += weight
    if part:
        yield queue, part
