"""The declarations of an engine's registration apply to the device plan and to resumes, also from a user's file."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

import winnow
from refusals import refused
from winnow.config_file import validate
from winnow.core.events import Event, Notice, Started
from winnow.errors import ConfigError, RunFolderError
from winnow.memory.plan import MemoryPart, MemoryPlan
from winnow.registry import members
from winnow.training import resolve
from winnow.training.budget import plan_devices
from winnow.training.resolve import resolve_members

FILE = """
from winnow.engines.scripted import Scripted
from winnow.memory.plan import MemoryPart
from winnow.registry import register


def memory(demand):
    rows = max(at_once for _, at_once in demand.requests)
    cache = demand.options["bytes_per_row"] * rows
    yield MemoryPart("my cache", cache, "generate", demand.device, ("lower rollout.engine.bytes_per_row",))


def job(demand):
    return f"mine samples on {demand.device} prompts of {demand.prompt_tokens} tokens"


@register("engine", NAME, memory=memory, job=job, may_change=("bytes_per_row",))
def mine(context, *, bytes_per_row: int = 10, answer: str = "7"):
    'For a test.'
    return Scripted(context, lambda prompt, index: answer * (1 + index))
"""


@pytest.fixture(params=["file", "module"])
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The configuration's name for the engine above, which is in one file outside the package."""
    name = f"mine_{tmp_path.name}"  # the registry keeps it when the test is over
    file = tmp_path / f"engine_{tmp_path.name}.py"
    file.write_text(FILE.replace("NAME", repr(name)))
    if request.param == "file":
        return f"{file}:mine"
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module(file.stem)
    monkeypatch.delitem(sys.modules, file.stem)
    return name


def planned(engine: object) -> MemoryPlan:
    evaluate = {"problems": 1, "rollouts_per_prompt": 1}
    rollout = {"engine": engine, "prompts_per_step": 3, "rollouts_per_prompt": 5}
    config = validate({"rollout": rollout, "evaluate": evaluate, "verify": {"workers": 0}})
    return plan_devices(resolve_members(config, base=Path()), torch.device("cpu"), longest_prompt=20)


def jobs(plan: MemoryPlan) -> list[str]:
    return plan.jobs.split("; ")


def test_a_user_s_engine_declares_its_job_its_memory_and_remedies(engine: str) -> None:
    plan = planned({"use": engine, "bytes_per_row": 2**50})
    assert jobs(plan)[1] == "mine samples on cpu prompts of 20 tokens"
    remedy = "lower rollout.engine.bytes_per_row"
    assert plan.parts[-1] == MemoryPart("my cache", 15 * 2**50, "generate", "cpu", (remedy,))
    with refused(ConfigError, "my cache", code="config.memory") as error:
        plan.check(lambda device: 2**40)
    assert error.value.remedy == remedy


def test_an_option_that_is_not_given_has_its_default_in_the_demand(engine: str) -> None:
    assert planned(engine).parts[-1].bytes == 15 * 10


def test_an_engine_without_declarations_adds_no_memory_to_the_plan() -> None:
    def silent(context: object) -> object:
        raise AssertionError("a plan makes no engine")

    plan = planned(silent)
    assert jobs(plan)[1].split()[0] == "silent"
    own = {"weights", "optimizer", "gradients", "activations", "output layer"}
    assert {part.name for part in plan.parts} == own


def test_an_error_in_an_engine_s_memory_function_names_engine_and_line(tmp_path: Path) -> None:
    text = FILE.replace("NAME", "'wrong_plan'").replace("at_once for _", "at_once / 0 for _")
    (tmp_path / "wrong.py").write_text(text)
    with refused(ConfigError, "memory", "wrong_plan", "ZeroDivisionError", "line 8", code="config.user_code"):
        planned(f"{tmp_path}/wrong.py:mine")


def test_a_resume_may_change_only_the_options_that_an_engine_declares(engine: str, smallest) -> None:
    def train(**options: object) -> list[Event]:
        rollout = {"engine": {"use": engine, **options}, "max_new_tokens": 4}
        winnow.train(**smallest(steps=1, rollout=rollout), resume=bool(options), watch=events.append)
        return events

    events: list[Event] = []
    train()
    notices = [event.text for event in train(bytes_per_row=20) if isinstance(event, Notice)]
    assert any("rollout.engine.bytes_per_row" in text and "20" in text for text in notices)
    assert any("my cache" in line for event in events if isinstance(event, Started) for line in event.devices)
    with refused(RunFolderError, "rollout.engine.answer", "'8'", code="run_folder.changed"):
        train(bytes_per_row=20, answer="8")


@pytest.mark.parametrize("name", ["native", "hf", "vllm"])
def test_a_built_in_engine_declares_its_job_and_only_its_options(name: str) -> None:
    entry = members("engine")[name]
    assert set(entry.traits.may_change) <= set(entry.options)
    words = jobs(planned(name))[1].split()
    assert (words[0], "cpu" in words) == (name, True)


@pytest.mark.parametrize(
    ("use", "named"),
    [("vllm", ("vllm", "winnow-rl[vllm]", "docs/engines.md")), ("mine.py:mine", ("no_such_package", "native"))],
)
def test_a_missing_package_is_reported_before_anything_is_loaded(
    use: str, named: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = FILE.replace("NAME", f"'requiring_{tmp_path.name}', requires='no_such_package'")
    (tmp_path / "mine.py").write_text(text)
    config = validate({"rollout": {"engine": use}, "verify": {"workers": 0}})
    monkeypatch.setattr(resolve, "is_installed", lambda package: False)
    with refused(ConfigError, *named, key="rollout.engine", code="config.not_installed"):
        resolve.check_installed(resolve_members(config, base=tmp_path))


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"optimizer": {"moments": "8bit"}}, "optimizer.moments"),
        ({"model": {"lora": {"rank": 2}, "quantization": "nf4"}}, "model.quantization"),
    ],
)
def test_missing_bitsandbytes_is_reported_before_anything_is_loaded(
    keys: dict, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = resolve_members(validate({"device": "cpu", **keys}), base=tmp_path)
    monkeypatch.setattr(resolve, "is_installed", lambda package: True)
    resolve.check_installed(members)
    monkeypatch.setattr(resolve, "is_installed", lambda package: package != "bitsandbytes")
    with refused(ConfigError, "bitsandbytes", "winnow-rl[bnb]", key=key, code="config.not_installed"):
        resolve.check_installed(members)


class Closeless:
    version = 0

    def generate(self) -> None: ...

    def load(self) -> None: ...


def test_an_engine_without_all_methods_and_attributes_is_refused(smallest) -> None:
    def closeless(context: object) -> Closeless:
        return Closeless()

    with refused(ConfigError, "closeless", "Closeless", key="rollout.engine", code="config.member_result") as error:
        winnow.train(**smallest(rollout={"engine": closeless}))
    every = ("generate()", "load()", "close()", "version", "logprob_tolerance")
    assert [name for name in every if name in error.value.problem] == ["close()", "logprob_tolerance"]
    assert all(name in error.value.remedy for name in every)


def test_an_engine_that_is_refused_is_closed(smallest) -> None:
    closed: list[Closeless] = []

    def unfinished(context: object) -> Closeless:
        engine = Closeless()
        engine.close = lambda: closed.append(engine)
        return engine

    with refused(ConfigError, "logprob_tolerance", key="rollout.engine", code="config.member_result"):
        winnow.train(**smallest(rollout={"engine": unfinished}))
    assert len(closed) == 1
