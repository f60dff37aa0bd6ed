"""What an engine declares at its registration reaches the device plan and the resume, from one file of a user."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

import winnow
from winnow.config_file import validate
from winnow.errors import ConfigError, RunFolderError
from winnow.memory.plan import MemoryPart, MemoryPlan
from winnow.registry import members
from winnow.training import resolve
from winnow.training.device_plan import plan_devices
from winnow.training.events import Event, Notice, Started
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
    """How a configuration calls the engine above, which stands in one file outside the package."""
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


def test_a_user_s_engine_says_what_it_takes_and_what_makes_that_smaller(engine: str) -> None:
    plan = planned({"use": engine, "bytes_per_row": 2**50})
    assert (
        plan.jobs == "policy on cpu in float32; mine samples on cpu prompts of 20 tokens; rewards by the trainer itself"
    )
    remedy = "lower rollout.engine.bytes_per_row"
    assert plan.parts[-1] == MemoryPart("my cache", 15 * 2**50, "generate", "cpu", (remedy,))
    with pytest.raises(ConfigError, match=rf"my cache .*What helps: {remedy}"):
        plan.check(lambda device: 2**40)


def test_an_option_that_is_not_given_has_its_default_in_the_demand(engine: str) -> None:
    assert planned(engine).parts[-1].bytes == 15 * 10


def test_an_engine_that_declares_nothing_is_named_and_no_more() -> None:
    def silent(context: object) -> object:
        raise AssertionError("a plan makes no engine")

    plan = planned(silent)
    assert "; silent samples; " in plan.jobs
    own = {"weights", "optimizer", "gradients", "activations", "a layer's backward"}
    assert {part.name for part in plan.parts} == own


def test_what_an_engine_s_own_plan_raises_is_told_by_its_name(tmp_path: Path) -> None:
    text = FILE.replace("NAME", "'wrong_plan'").replace("at_once for _", "at_once / 0 for _")
    (tmp_path / "wrong.py").write_text(text)
    with pytest.raises(ConfigError, match=r"'memory' of the engine 'wrong_plan' raised ZeroDivisionError.*line 8"):
        planned(f"{tmp_path}/wrong.py:mine")


def test_a_resume_may_change_the_options_that_an_engine_declares_and_no_others(engine: str, smallest) -> None:
    def train(**options: object) -> list[Event]:
        rollout = {"engine": {"use": engine, **options}, "max_new_tokens": 4}
        winnow.train(**smallest(steps=1, rollout=rollout), resume=bool(options), watch=events.append)
        return events

    events: list[Event] = []
    train()
    said = [event.text for event in train(bytes_per_row=20) if isinstance(event, Notice)]
    assert "rollout.engine.bytes_per_row was None and is now 20" in said
    assert any("my cache" in line for event in events if isinstance(event, Started) for line in event.devices)
    with pytest.raises(RunFolderError, match=r"rollout\.engine\.answer was None and is now '8'; put back"):
        train(bytes_per_row=20, answer="8")


@pytest.mark.parametrize("name", ["native", "hf", "vllm"])
def test_what_a_built_in_engine_declares_is_about_its_own_options(name: str) -> None:
    entry = members("engine")[name]
    assert set(entry.traits.may_change) <= set(entry.options)
    assert f"; {name} samples on cpu" in planned(name).jobs


@pytest.mark.parametrize(
    ("use", "how"),
    [
        ("vllm", r"install winnow-rl\[vllm\] \(docs/engines\.md"),
        ("mine.py:mine", "install it, or choose the engine 'native'"),
    ],
)
def test_a_package_that_an_engine_requires_is_asked_for_before_anything_is_loaded(
    use: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = FILE.replace("NAME", f"'requiring_{tmp_path.name}', requires='no_such_package'")
    (tmp_path / "mine.py").write_text(text)
    config = validate({"rollout": {"engine": use}, "verify": {"workers": 0}})
    monkeypatch.setattr(resolve, "is_installed", lambda package: False)
    with pytest.raises(ConfigError, match=rf"the package '\w+' is not installed here; {how}"):
        resolve.check_installed(resolve_members(config, base=tmp_path))


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"optimizer": {"moments": "8bit"}}, "optimizer.moments"),
        ({"model": {"lora": {"rank": 2}, "quantization": "nf4"}}, "model.quantization"),
    ],
)
def test_few_bits_need_their_package_before_anything_is_loaded(
    keys: dict, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = resolve_members(validate({"device": "cpu", **keys}), base=tmp_path)
    monkeypatch.setattr(resolve, "is_installed", lambda package: True)
    resolve.check_installed(members)
    monkeypatch.setattr(resolve, "is_installed", lambda package: package != "bitsandbytes")
    with pytest.raises(ConfigError, match=rf"{key}: the package 'bitsandbytes' is not installed.*winnow-rl\[bnb\]"):
        resolve.check_installed(members)


class Closeless:
    version = 0

    def generate(self) -> None: ...

    def load(self) -> None: ...


def test_an_engine_that_lacks_something_is_refused_where_it_is_made(smallest) -> None:
    def closeless(context: object) -> Closeless:
        return Closeless()

    with pytest.raises(ConfigError) as refused:
        winnow.train(**smallest(rollout={"engine": closeless}))
    assert str(refused.value) == (
        "rollout.engine = 'closeless' returned a Closeless without close(), logprob_tolerance: an engine has "
        "generate(), load(), close(), version and logprob_tolerance (winnow.engines.base.Engine); one with nothing to "
        "end has a close() that does nothing"
    )


def test_an_engine_that_is_refused_is_closed(smallest) -> None:
    closed: list[Closeless] = []

    def unfinished(context: object) -> Closeless:
        engine = Closeless()
        engine.close = lambda: closed.append(engine)
        return engine

    with pytest.raises(ConfigError, match=r"returned a Closeless without logprob_tolerance: "):
        winnow.train(**smallest(rollout={"engine": unfinished}))
    assert len(closed) == 1
