"""A refusal, asserted by its data: the kind of the error, its key, its code, and the names that its message contains.

    with refused(ConfigError, "gsm9k", key="task", code="config.unknown_member"):
        resolve_at("task", "task", "gsm9k")

Sentences are free to change. A guard still fails where nothing is refused, or something else is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from click.testing import Result

from winnow.errors import WinnowError

E = TypeVar("E", bound=WinnowError)


@contextmanager
def refused(
    kind: type[E], *named: object, key: str | None = None, code: str | None = None
) -> Iterator[pytest.ExceptionInfo[E]]:
    """The block raises `kind`, about this key and with this code, where they are given.

    `named` are names, numbers or paths; each is in the message as a whole word.
    """
    with pytest.raises(kind) as caught:
        yield caught
    check_refusal(caught.value, *named, key=key, code=code)


def refusal_of(result: Result) -> WinnowError:
    """The error behind the exit code of a command that typer's CliRunner invoked."""
    error: BaseException | None = result.exception
    while error is not None and not isinstance(error, WinnowError):
        error = error.__context__
    assert error is not None, f"exit code {result.exit_code}, and no refusal: {result.output}"
    return error


def check_refusal(error: WinnowError, *named: object, key: str | None = None, code: str | None = None) -> None:
    """The same of an error that was caught already."""
    if key is not None:
        assert error.key == key, f"an error about {error.key!r}: {error}"
    if code is not None:
        assert error.code == code, f"an error of the kind {error.code!r}: {error}"
    for name in named:
        assert re.search(rf"(?<!\w){re.escape(str(name))}(?!\w)", str(error)), f"{name!r} is not in: {error}"


def check_printed_error(result: Any, *named: object, code: str, exit_code: int = 2) -> None:
    """A command, as typer's CliRunner invoked it, printed an error with this code on standard error and exited.

    Each of `named` is in the message as a whole word.
    """
    assert result.exit_code == exit_code, result.output
    printed = re.search(r"^error \(([\w.]+)\): (.*)", result.stderr, flags=re.MULTILINE | re.DOTALL)
    assert printed, f"no error is printed: {result.output}"
    assert printed[1] == code, printed[0]
    for name in named:
        assert re.search(rf"(?<!\w){re.escape(str(name))}(?!\w)", printed[2]), f"{name!r} is not in: {printed[0]}"
