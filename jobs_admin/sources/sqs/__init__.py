"""Dead-letter queues of Amazon SQS."""

from __future__ import annotations

from jobs_admin.sources.base import Source, SourceSettings, System


def _open(given: SourceSettings) -> Source:
    from jobs_admin.sources.sqs.source import SQS

    return SQS(given)


SYSTEM = System("Amazon SQS", _open)
