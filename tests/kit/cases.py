"""Many cases of one pure function as one test: a test of its own for each would cost more than the case.

    @with_cases("text", CLEAN)
    def test_ordinary_text_stays_as_it_is(text): ...

Every case is run, and the test fails with all that failed. For what needs no fixture: else `pytest.mark.parametrize`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

_SHOWN = 500  # characters of a failed case


def with_cases(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Return a decorator. `names` as for parametrize: of several, each case is a tuple of their values."""
    every = list(cases)
    arguments = [name.strip() for name in names.split(",")]

    def decorate(check: Callable[..., None]) -> Callable[[], None]:
        def run() -> None:
            assert every, "no case"
            failed = []
            for case in every:
                try:
                    check(**dict(zip(arguments, case if len(arguments) > 1 else [case], strict=True)))
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"Case: {case!r}"[:_SHOWN])
                    failed.append(error)
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(every)} cases failed", failed)

        run.__name__, run.__qualname__, run.__doc__ = check.__name__, check.__qualname__, check.__doc__
        run.__module__ = check.__module__
        return run

    return decorate
