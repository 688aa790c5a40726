"""Rules about errors that retries cannot fix, and about delays requested by servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jobs_admin.core.lint.case import Case
from jobs_admin.core.lint.configuration import Where
from jobs_admin.core.lint.curve import AUTORETRY, Curve
from jobs_admin.core.lint.finding import HIGH, MEDIUM, Found, count, rule
from jobs_admin.core.matching import class_of, matches
from jobs_admin.core.policy import PERMANENT, RATE_LIMITED, Policy

# Errors in the code or its input: the same call fails the same way again.
PROGRAMMING = (
    "TypeError", "AttributeError", "NameError", "UnboundLocalError", "NotImplementedError", "AssertionError",
    "ImportError", "ModuleNotFoundError", "SyntaxError", "IndexError", "KeyError", "ZeroDivisionError",
    "UnicodeDecodeError", "UnicodeEncodeError", "ValueError",
)  # fmt: skip
# Classes that include some or all of those.
_CATCH_ALL = ("Exception", "BaseException")
_CATCH_SOME = (*PROGRAMMING, "LookupError", "ArithmeticError", "UnicodeError")


@rule(
    "retries-permanent-errors",
    MEDIUM,
    title="Permanent errors are retried",
    why="A `TypeError` or a `KeyError` means that the code or its input is wrong: the job fails in the same way at "
    "every attempt, and is dead only after the last. Reported if `autoretry_for` names `Exception`, "
    "`BaseException` or a class of programming errors and `dont_autoretry_for` excludes none of them, or if a "
    "policy in force classes no error as permanent. Severity is high if the stored failures of the task have "
    "such errors.",
    fix="Name temporary errors (`ConnectionError`, `TimeoutError`, the client's own errors) in `autoretry_for`, "
    "the others in `dont_autoretry_for`. In a policy, class the others as permanent.",
    source="Celery, Automatic retry for known exceptions",
)
def retries_permanent_errors(case: Case) -> Iterator[Found]:
    for curve in case.of_tasks:
        task = curve.task
        if task is None or curve.by != AUTORETRY or curve.retries == 0 or task.dont_autoretry_for:
            continue
        caught = [short for name in task.autoretry_for if (short := name.removeprefix("builtins.")) in _CATCH_SOME]
        caught += [short for name in task.autoretry_for if (short := name.removeprefix("builtins.")) in _CATCH_ALL]
        if caught:
            seen = _find_programming_errors(case, (curve.where.source, curve.where.task), caught)
            evidence = f"Retries {', '.join(caught)}.{_quote_errors(seen)}"
            yield Found(curve.where, evidence, curve.quoted, HIGH if seen else None)
    for curve in case.of_policies:
        if curve.policy is not None and curve.policy.max_attempts > 1 and not _names_permanent(curve.policy):
            seen = _seen_by(case, curve.policy)
            evidence = f"No error is classed as permanent: all are retried.{_quote_errors(seen)}"
            yield Found(curve.where, evidence, "", HIGH if seen else None)


def _names_permanent(policy: Policy) -> bool:
    return any(one.as_ == PERMANENT for one in policy.classes)


def _find_programming_errors(case: Case, place: tuple[str, str], caught: list[str]) -> dict[str, int]:
    """Return a task's programming errors among the caught ones in its failures."""
    takes_all = any(name in _CATCH_ALL for name in caught)
    errors = case.facts.errors.get(place, {})
    return {name: errors[name] for name in PROGRAMMING if errors.get(name) and (takes_all or name in caught)}


def _seen_by(case: Case, policy: Policy) -> dict[str, int]:
    found: dict[str, int] = {}
    for (source, task), errors in case.facts.errors.items():
        if matches(policy.match.source, source) and matches(policy.match.task, task) and policy.match.queue == "*":
            for name in PROGRAMMING:
                if errors.get(name) and class_of(policy, (name,)) != PERMANENT:
                    found[name] = found.get(name, 0) + errors[name]
    return found


def _quote_errors(seen: Mapping[str, int]) -> str:
    if not seen:
        return ""
    worst = sorted(seen.items(), key=lambda pair: -pair[1])[:3]
    return " Stored failures: " + ", ".join(f"{n:,} {name}" for name, n in worst) + "."


@rule(
    "ignores-retry-after",
    MEDIUM,
    title="A server's Retry-After is ignored",
    why="A server that answers 429 can state when to retry. `autoretry_for` never reads that: the first waits are "
    "as short as `retry_backoff` makes them (1 s for `True`), and each early retry is refused and may extend "
    "the limit. Reported only if failures of the task were rate limited (by class or message), or if a policy "
    "classes errors as rate limited and does not respect Retry-After.",
    fix="Catch the error and `raise self.retry(countdown=error.retry_after)`, or publish a policy: it respects "
    "Retry-After.",
    source="RFC 9110, 10.2.3",
)
def ignores_retry_after(case: Case) -> Iterator[Found]:
    for curve in case.of_tasks:
        limited = case.facts.rate_limited.get((curve.where.source, curve.where.task), 0)
        if limited and curve.by == AUTORETRY and curve.retries != 0:
            evidence = f"Rate limited: {count(limited, 'stored failure')}; autoretry_for does not read Retry-After."
            yield Found(curve.where, evidence, curve.quoted)
    for curve in case.of_policies:
        if _is_deaf(curve):
            yield Found(curve.where, "Errors are classed as rate limited, and retry_after.respect is false.")


@rule(
    "permanent-by-word-only",
    MEDIUM,
    title="Errors named permanent are retried",
    why="Error messages do not affect retries: `throw new Error('Permanent failure: …')` is retried as often as any "
    "other error. Reported for failures with several attempts in a run whose message begins with “permanent” or "
    "contains “permanent failure” or “permanent error”.",
    fix="In BullMQ throw `UnrecoverableError`; in Celery raise an error that `autoretry_for` does not name; or publish a "
    "policy that classes the error as permanent.",
    source="https://docs.bullmq.io/patterns/stop-retrying-jobs",
)
def permanent_by_word_only(case: Case) -> Iterator[Found]:
    for (source, task), failures in sorted(case.facts.permanent_retried.items()):
        evidence = f"{count(failures, 'stored failure')} with such a message and several attempts."
        yield Found(Where(source, "", task), evidence)


def _is_deaf(curve: Curve) -> bool:
    policy = curve.policy
    return policy is not None and not policy.retry_after.respect and any(o.as_ == RATE_LIMITED for o in policy.classes)
