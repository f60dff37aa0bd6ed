"""One real error per code: its type, code, key and remedy, and that the remedy names only what exists.

The messages of each family are in tests/golden/errors_FAMILY.txt, with paths replaced by PATH. Codes that need
hardware, ranks, a model or a live engine are in `ELSEWHERE`, with the test that raises them.
"""

from __future__ import annotations

import functools
import os
import re
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from typer.main import get_command

import winnow
from golden_files import assert_golden
from winnow import ranks
from winnow.commands import app
from winnow.commands.list import catalog
from winnow.commands.train.on_ray import train_on_worker
from winnow.config import Config
from winnow.config_file import load, validate
from winnow.config_keys import keys
from winnow.core.loop import check_skipped
from winnow.engines.freshness import check_newer
from winnow.engines.sampling import choose, to_host
from winnow.engines.stopping import split_stops
from winnow.errors import CODES, WinnowError
from winnow.families import FAMILIES
from winnow.memory.plan import MemoryPart, MemoryPlan
from winnow.records import Outcome, Prompt, Rollout, Sampling
from winnow.registry import members, register, resolve
from winnow.rewards.compose import unsaved_tokens
from winnow.rewards.math_equivalence import algebra
from winnow.state import checkpoint, disk, resume
from winnow.state.cost_files import costs_of_profile, read_costs
from winnow.state.folder import RunFolder
from winnow.state.saved_runs import Manifest, check_same_problems, check_trusted, read_manifest
from winnow.tasks.chat import chat_texts
from winnow.tasks.problems import check_only_test, listed
from winnow.tasks.rows import read_rows
from winnow.tasks.source import read_hub
from winnow.training.resolve import resolve_members
from winnow.user_code import load_function
from winnow.verify.failures import RecentVerdicts, check_restart
from winnow.verify.sandbox import choice, interpreter
from winnow.verify.verifiers import Verifiers
from winnow_lab.compare.inputs import named_inputs
from winnow_lab.report.server import ReportServer
from winnow_lab.sweep.file import read_sweep_file

TESTS = Path(__file__).parents[1]
SOURCE = Path(winnow.__file__).parent
# The message of another rank is part of the problem, and contains the remedy.
WITHOUT_REMEDY = {"rank.failed"}
# A code that needs hardware, ranks, a model or a live engine -> the test that raises it.
ELSEWHERE = {
    "config.cluster": "with_ray/test_sweep_on_ray.py",
    "config.tracker": "with_trackers/test_real_trackers.py",
    "engine.failed": "unit/engines/test_process.py",
    "engine.memory": "unit/engines/test_native_memory.py",
    "run_folder.incomplete": "unit/models/test_adapter.py",
    "run_folder.other_model": "unit/models/test_adapter.py",
    "verifier.not_repeatable": "unit/environments/test_hostile_environments.py",
}


@dataclass(frozen=True)
class Place:
    """What a trigger may use: an empty folder, and patches that end with the test."""

    folder: Path
    patch: pytest.MonkeyPatch

    def file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def manifest(self, **fields: Any) -> Manifest:
        return Manifest(self.folder / "manifest.json", {}, self.folder, fields.get("inputs", {}))


def member_missing_coefficient(place: Place) -> None:
    load(place.file("run.toml", '[[terms]]\nuse = "kl"\n'))


def no_effect(place: Place) -> None:
    resolve_members(validate({"probe": {"decay": 0.5}, "allocate": "gvm"}), base=place.folder)


def not_installed(place: Place) -> None:
    place.patch.setattr("winnow.installed.is_installed", lambda package: False)
    algebra.require()


def untrusted_code(place: Place) -> None:
    check_trusted(validate({"reward": "mine.py:half"}), place.manifest(), {})


def memory(place: Place) -> None:
    part = MemoryPart("weights", 2 * 2**30, "always", "cpu", ("lower rollout.max_rollouts_at_once",))
    MemoryPlan("policy on cpu", (part,)).check(lambda device: 2**30)


def changed_files(place: Place) -> None:
    place.patch.chdir(place.folder)
    file = place.file("problems.jsonl", "{}\n")
    config = validate({"task": {"use": "jsonl", "path": str(file)}})
    check_same_problems(config, place.manifest(inputs={"task.path": {"problems.jsonl": "0" * 64}}), "task")


def port_in_use(place: Place) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ReportServer([], port=taken.getsockname()[1])


def without_datasets(place: Place) -> None:
    place.patch.setitem(sys.modules, "datasets", None)
    read_hub("openai/gsm8k", "test")


def diverged(place: Place) -> None:
    to_host(*choose(torch.full((1, 3), torch.nan), torch.zeros(1, dtype=torch.float64), Sampling(max_new_tokens=1)))


def foreign_folder(place: Place) -> None:
    place.file("notes.txt", "mine")
    RunFolder.open(place.folder, resume=False)


def locked_folder(place: Place) -> None:
    with RunFolder.open(place.folder / "run", resume=False):
        RunFolder.open(place.folder / "run", resume=False)


def taken_folder(place: Place) -> None:
    with RunFolder.open(place.folder / "run", resume=False) as folder:
        folder.record({"config": {}})
    (place.folder / "run" / "checkpoints" / "step-000001").mkdir(parents=True)
    RunFolder.open(place.folder / "run", resume=False)


def unsaved(place: Place) -> None:
    def full(path: Path) -> dict[str, str]:
        raise OSError(28, "No space left on device")

    checkpoint.save(place.folder, 1, write_model=full, tensors={}, state={}, keep_last=1)


def foreign_owner(place: Place) -> None:
    place.file("manifest.json", "{}")
    owner = os.geteuid()
    place.patch.setattr(os, "geteuid", lambda: owner + 1)
    read_manifest(place.folder)


def not_finite(place: Place) -> None:
    run: Any = SimpleNamespace(config=Config(), critic=None, learner=SimpleNamespace(not_finite=10))
    check_skipped(run, 12)


def closed(place: Place) -> None:
    limits: dict[str, Any] = {"timeout_seconds": 1.0, "memory_mb": 64, "max_failure_share": 0.05}
    verifiers = Verifiers({"use": "numeric", "options": {}}, workers=1, **limits)
    verifiers.close()
    empty = np.zeros(0)
    prompt = Prompt(id="p", tokens=empty.astype(np.int64), text="Q", answer="1", task="t")
    rollout = Rollout(index=0, tokens=prompt.tokens, logprobs=empty, text="1", finish="stop", version=0)
    verifiers.submit(prompt, rollout)


def failed_verdicts(place: Place) -> None:
    failed = Outcome(reward=float("nan"), correct=None, kind="failed", cause="raised", detail="KeyError: 'answer'")
    RecentVerdicts().observe([failed, failed], name="mine", max_failure_share=0.05)


def two_ranks(place: Place, *received: object) -> None:
    """Make this process rank 0 of 2, whose next exchange returns `received`."""
    place.patch.setattr(ranks, "count", lambda: 2)
    place.patch.setattr(ranks, "rank", lambda: 0)
    place.patch.setattr(ranks, "_groups", SimpleNamespace(control=object()))
    place.patch.setattr(ranks, "_exchanged", lambda pickled, what: list(received))


def other_inputs(place: Place) -> None:
    two_ranks(place, "a", "b")
    ranks.check_same("configuration", lambda: "a")


def other_rank_failed(place: Place) -> None:
    two_ranks(place, None, ranks._Failure("loading", "OSError: no such file"))
    with ranks.together("loading"):
        pass


def lost_rank(place: Place) -> None:
    two_ranks(place)
    with ranks.exchanging("decisions"):
        raise RuntimeError("Connection closed by peer")


def other_version(place: Place) -> None:
    train_on_worker({"request": SimpleNamespace(version="0.0"), "beside": str(place.folder)})


def no_sandbox(place: Place) -> None:
    place.patch.setattr(choice.landlock, "version", lambda: 0)
    place.patch.setattr(choice.interpreter, "copied", interpreter.own)
    place.patch.setattr(choice.seccomp, "machine", object)
    choice.choose.__wrapped__("landlock")


# code -> what raises it, and the key that the error is about
TRIGGERS: dict[str, tuple[Callable[[Place], object], str | None]] = {
    "config.combination": (lambda place: validate({"rollout": {"top_p": 0.9}}), "rollout.top_p"),
    "config.duplicate": (
        lambda place: read_sweep_file(place.file("s.toml", 'config = "a"\noutput = "b"\nseeds = [1, 2, 1]\n')),
        "seeds",
    ),
    "config.member_result": (lambda place: unsaved_tokens().sum(), None),
    "config.memory": (memory, None),
    "config.missing_key": (member_missing_coefficient, "terms.0.coefficient"),
    "config.no_effect": (no_effect, "probe.decay"),
    "config.ranks_differ": (other_inputs, None),
    "config.not_installed": (not_installed, "grader"),
    "config.registration": (lambda place: register("advantage", basline="none"), None),
    "config.unknown_key": (lambda place: validate({"optimizer": {"lr": 1e-4}}), "optimizer.lr"),
    "config.unknown_member": (lambda place: resolve("loss", "clp"), None),
    "config.unknown_name": (lambda place: list(catalog("loses")), None),
    "config.unreadable": (lambda place: load(place.folder / "nowhere.toml"), None),
    "config.unsupported": (lambda place: check_only_test("math500", "train"), None),
    "config.untrusted": (untrusted_code, "reward"),
    "config.user_code": (lambda place: load_function("none.py:half", base=place.folder), None),
    "config.value": (lambda place: validate({"rollout": {"temperature": 0}}), "rollout.temperature"),
    "data.changed": (changed_files, "task.path"),
    "data.empty": (lambda place: listed([], split="test", source="mine.jsonl"), None),
    "data.exists": (lambda place: disk.check_new(place.file("report.html", "")), None),
    "data.incomplete": (lambda place: costs_of_profile({"points": []}, "profile.json"), None),
    "data.malformed": (lambda place: list(read_rows(place.file("mine.jsonl", "[1]\n"))), None),
    "data.mismatch": (lambda place: named_inputs([str(place.file("a.csv", "step\n"))] * 2), None),
    "data.missing": (lambda place: list(read_rows(place.folder / "mine.jsonl")), "task.path"),
    "data.not_installed": (without_datasets, "task.path"),
    "data.port": (port_in_use, None),
    "data.unfit_model": (
        lambda place: chat_texts([], SimpleNamespace(chat_template=None), None, {}),
        "prompt.template",
    ),
    "data.unreadable": (lambda place: read_costs(place.folder / "costs.json"), None),
    "data.unwritable": (lambda place: disk.check_new(place.folder / "nowhere" / "report.html"), None),
    "engine.contract": (lambda place: split_stops(SimpleNamespace(), [""]), "rollout.stop"),
    "engine.diverged": (diverged, "optimizer.learning_rate"),
    "engine.stale_weights": (lambda place: check_newer(3, than=3), None),
    "rank.failed": (other_rank_failed, None),
    "rank.lost": (lost_rank, None),
    "rank.machine": (other_version, None),
    "run_folder.changed": (
        lambda place: resume.compare({"config": {"seed": 0}}, {"config": {"seed": 1}}, run=place.folder, step=2),
        "seed",
    ),
    "run_folder.damaged": (lambda place: checkpoint.load(checkpoint.Checkpoint(place.folder, 1)), None),
    "run_folder.foreign": (foreign_folder, "output"),
    "run_folder.locked": (locked_folder, None),
    "run_folder.missing": (lambda place: RunFolder.open(place.folder / "run", resume=True), None),
    "run_folder.taken": (taken_folder, "output"),
    "run_folder.unreadable": (lambda place: read_manifest(place.folder), None),
    "run_folder.unsaved": (unsaved, None),
    "run_folder.untrusted": (foreign_owner, None),
    "run_folder.unwritable": (lambda place: RunFolder.open(place.file("f", "") / "run", resume=False), "output"),
    "update.not_finite": (not_finite, "optimizer.learning_rate"),
    "verifier.closed": (closed, None),
    "verifier.crashed": (lambda place: check_restart("mine", 3, -9), None),
    "verifier.failed": (failed_verdicts, "verify.max_failure_share"),
    "verifier.sandbox": (no_sandbox, None),
}


def raised(code: str, folder: Path) -> WinnowError:
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(WinnowError) as caught:
        TRIGGERS[code][0](Place(folder, patch))
    return caught.value


FAMILY_CODES = {code for code in CODES if "." not in code}  # "config" and the like


def test_every_code_is_in_the_catalogue_or_covered_by_a_named_test():
    assert set(CODES) - FAMILY_CODES == set(TRIGGERS) | set(ELSEWHERE)
    assert not set(TRIGGERS) & set(ELSEWHERE)
    missing = [
        code for code, test in ELSEWHERE.items() if f'"{code}"' not in (TESTS / test).read_text(encoding="utf-8")
    ]
    assert missing == []


def test_the_codes_are_those_of_the_source():
    sources = [path for path in SOURCE.parent.rglob("*.py") if path != SOURCE / "errors.py"]  # all packages
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    assert list(CODES) == sorted(CODES)
    assert set(CODES) - FAMILY_CODES <= set(re.findall(r'"([\w.]+)"', text)), "a code that is never raised"
    assert set(re.findall(r'\bcode="([\w.]+)"', text)) <= set(CODES)


def shown(error: WinnowError, folder: Path) -> str:
    """The error as lines, without what differs from machine to machine."""
    parts = [f"{error.code}{f' ({error.key})' if error.key else ''}", error.problem, error.remedy]
    text = "\n    ".join(part.replace("\n", "\n    ") for part in parts)
    for path in sorted({str(folder), str(folder.parent), os.getcwd()}, key=len, reverse=True):
        text = text.replace(path, "PATH")
    text = re.sub(r"process \d+ on \S+", "process N on HOST", text.replace(winnow.__version__, "VERSION"))
    text = re.sub(rf"(?<=on ){re.escape(socket.gethostname())}(?!\S\w)", "HOST", text)
    return re.sub(r"(?<=port )\d+|(?<=uid )\d+", "N", text)


@functools.cache
def known_keys() -> frozenset[str]:
    """Every key of a configuration, every option of a member, and every table above one of them."""
    names = {key.name.replace("[]", "") for key in keys()}
    for family in FAMILIES.values():
        names |= {f"{family.key}.{option}" for entry in members(family.name).values() for option in entry.options}
    return frozenset(".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 2))


@functools.cache
def known_options() -> frozenset[str]:
    commands = get_command(app).commands.values()  # type: ignore[attr-defined]
    return frozenset(
        option for command in commands for one in command.params for option in (*one.opts, *one.secondary_opts)
    )


def unknown_in(remedy: str) -> list[str]:
    """The keys, commands and options in a remedy that do not exist."""
    remedy = re.sub(r"len\([\w.]+\)", "", remedy)  # an attribute of a rollout
    sections = "|".join(Config.model_fields)
    named = {key for key in re.findall(rf"(?<![\w/.])((?:{sections})\.[\w.]*\w)", remedy)}
    fields = {part for section in known_keys() for part in section.split(".")}
    quoted = {text for text in re.findall(r"`([\w.]+)`", remedy) if not text.startswith("winnow")}
    commands = set(re.findall(r"\bwinnow (\w+)", remedy)) - {"and"}
    options = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", remedy))
    return [
        *sorted(named - known_keys()),
        *sorted(text for text in quoted if text not in known_keys() | fields),
        *sorted(commands - set(get_command(app).commands)),  # type: ignore[attr-defined]
        *sorted(options - known_options()),
    ]


def test_the_check_of_a_remedy_fails_for_what_does_not_exist():
    assert unknown_in("lower rollout.max_new_token, or use `winnow trian --stes 3`, or set `usee`") == [
        "rollout.max_new_token",
        "usee",
        "trian",
        "--stes",
    ]
    assert unknown_in("lower rollout.max_new_tokens, or use `winnow train --set steps=3`, or set `use`") == []


@pytest.mark.parametrize("family", sorted({code.partition(".")[0] for code in TRIGGERS}))
def test_every_error_names_its_key_and_an_existing_remedy(family, tmp_path, monkeypatch):
    monkeypatch.chdir(TESTS.parent)
    texts = []
    for code in sorted(code for code in TRIGGERS if code.startswith(f"{family}.")):
        error = raised(code, tmp_path / code.replace(".", "_"))
        assert (error.code, error.key) == (code, TRIGGERS[code][1]), error
        assert type(error).code == family, f"{code} is raised as {type(error).__name__}"
        assert error.remedy or code in WITHOUT_REMEDY, f"{code} has no remedy: {error}"
        assert unknown_in(error.remedy) == [], f"{code}: {error.remedy}"
        texts.append(shown(error, tmp_path / code.replace(".", "_")))
    assert_golden(f"errors_{family}", "\n\n".join(texts))
