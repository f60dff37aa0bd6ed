"""Paths that no command can use: a folder without access, and the home directory of a user who does not exist."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from refusals import check_printed_error, refusal_of, refused
from winnow.commands import app
from winnow.commands.command_line import CommandGroup
from winnow.config_file import validate
from winnow.errors import DataError, RunFolderError
from winnow.run_view.data import open_folder
from winnow.tasks.jsonl import jsonl
from winnow.training.resolve import resolve_members

NOBODY = "~no-such-user-of-winnow/run"


def group_that_raises(error: Exception) -> typer.Typer:
    group = typer.Typer(cls=CommandGroup)

    @group.command("fail")
    def fail() -> None:
        raise error

    @group.command("other")
    def other() -> None: ...

    return group


def test_a_path_without_access_is_an_error_and_no_traceback():
    error = PermissionError(errno.EACCES, "Permission denied", "locked/run")
    check_printed_error(CliRunner().invoke(group_that_raises(error), ["fail"]), "locked/run", code="data.unreadable")


def test_a_refusal_that_names_no_path_keeps_its_traceback():
    error = PermissionError(errno.EPERM, "Operation not permitted")
    assert CliRunner().invoke(group_that_raises(error), ["fail"]).exception is error


@pytest.mark.parametrize("command", ["plot", "show", "export", "compare", "plan", "replay", "report"])
def test_a_folder_that_may_not_be_asked_for_is_refused_by_every_command(command, tmp_path, monkeypatch):
    (tmp_path / "locked" / "run").mkdir(parents=True)
    ask = Path.stat

    def stat(path, **how):
        if "locked" in path.parts:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return ask(path, **how)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "stat", stat)
    error = refusal_of(CliRunner().invoke(app, [command, "locked/run"]))
    assert "locked" in str(error)
    assert error.code in ("data.unreadable", "run_folder.unreadable")


@pytest.mark.parametrize("command", ["plot", "show", "export", "compare", "plan", "replay", "report", "push", "chat"])
def test_the_home_of_nobody_is_refused_by_every_command(command):
    more = ["owner/name"] if command == "push" else []
    assert NOBODY in str(refusal_of(CliRunner().invoke(app, [command, NOBODY, *more])))


def test_the_home_of_nobody_is_a_path_in_python_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refused(DataError, NOBODY):
        jsonl("train", path=f"{NOBODY}.jsonl")
    with refused(RunFolderError, NOBODY):
        open_folder(Path(NOBODY))
    assert resolve_members(validate({"output": NOBODY}), tmp_path).output == Path(NOBODY)
