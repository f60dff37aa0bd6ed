"""Shows 3 of many ranks: what some ranks have saved, any number of them goes on from, to where none had stopped."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ranked
import runs
import torch
from distances import relative
from measured import say
from ranked import Group
from runs import Found
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

CASE = "run_cases:ran"
LIMIT = 1e-10  # in float64
STEPS = {"full": 3}  # its reference moves once before the save, at the second step; other kinds have two steps
SLOW = pytest.mark.slow  # covered by those that are not: by other pairs of ranks, or by the other learner

PROBE = {"every": 1, "rollouts_per_prompt": 2, "outer_reset": "reference"}  # the reference moves before the save
LITTLE: dict[str, Any] = {
    "rollout": {"prompts_per_step": 4, "rollouts_per_prompt": 4},
    "evaluate": {"problems": 1, "rollouts_per_prompt": 1, "greedy": False},
}
FULL = {**LITTLE, "terms": [{"use": "kl", "coefficient": 0.05}], "allocate": {"use": "gvm"}, "probe": PROBE}
VALUES = {**LITTLE, "advantage": "gae"}
KINDS: dict[str, dict[str, Any]] = {
    "full": FULL,
    "lora": {**FULL, "model": {"lora": {"rank": 4}}},
    "bfloat16": {**LITTLE, "model": {"dtype": "bfloat16"}},
    "value model": {**VALUES, "critic": {"form": "model", "optimizer": {"learning_rate": 1e-2}}},
    "value adapter": {**VALUES, "critic": {"form": "adapter"}, "model": {"lora": {"rank": 4}}},
    "value head": {**VALUES, "critic": {"form": "shared"}},
}
By = tuple[int, str]  # how many ranks, and how they hold the policy
ONE, REPLICATED, SHARDED = (1, "replicated"), (2, "replicated"), (2, "sharded")
FOUR_REPLICATED, FOUR_SHARDED = (4, "replicated"), (4, "sharded")


def last(kind: str) -> Path:
    """The checkpoint at the end, in a run's folder."""
    return Path("checkpoints") / f"step-{STEPS.get(kind, 2):06}"


class Runs:
    """A few steps of each kind by some ranks, saved before the last and after it: made once, copied to go on."""

    def __init__(self, folder: Path, policy: Path, group_of: Callable[[int], Group]) -> None:
        self._folder, self._policy, self._group_of = folder, policy, group_of

    def whole(self, kind: str, by: By) -> Path:
        """The folder of the run that nothing stopped."""
        folder = self._folder / f"{kind}-{by[0]}-{by[1]}"
        if not folder.exists():
            self._run(kind, by, folder)
        return folder

    def resumed(self, kind: str, saved_by: By, resumed_by: By, folder: Path) -> Path:
        """The folder of a run that went on to its last step."""
        shutil.copytree(self.whole(kind, saved_by), folder)
        shutil.rmtree(folder / last(kind))
        self._run(kind, resumed_by, folder, resume=True)
        return folder

    def _run(self, kind: str, by: By, folder: Path, *, resume: bool = False) -> None:
        (count, learner), steps = by, STEPS.get(kind, 2)
        config = runs.small(self._folder, self._policy, steps=steps, **KINDS[kind])
        config |= {
            "output": str(folder),
            "ranks": {"learner": learner},
            "checkpoint": {"every": steps - 1, "keep_last": 9},
        }
        if count == 1:
            answers = [ranked.alone(CASE, config, resume=resume)]
        else:
            answers = self._group_of(count).run(CASE, config, resume=resume)
        assert {answer.steps for answer in answers} == {steps}
        models = 2 if config.get("critic", {}).get("form", "shared") != "shared" else 1  # that learn in a step
        assert len(answers[0].gradients) == (1 if resume else steps) * models


@pytest.fixture(scope="session")
def made(model_folder, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Runs:
    names = {2: "two_ranks", 4: "four_ranks"}
    folder = tmp_path_factory.mktemp("saved")
    return Runs(folder, model_folder("qwen2"), lambda count: request.getfixturevalue(names[count]))


def state(checkpoint: Path) -> dict[str, np.ndarray]:
    """Weights, moments, masters and reference."""
    return {
        f"{path.relative_to(checkpoint)}: {name}": tensor.to(torch.float64).numpy()
        for path in sorted(checkpoint.rglob("*tensors"))
        for name, tensor in load_file(path).items()
    }


@pytest.mark.parametrize(
    ("kind", "saved_by", "resumed_by"),
    [
        # Each direction once; `test_as_many_ranks_go_on_to_the_same_bits` saves by shares and reads into them
        pytest.param("full", SHARDED, ONE),
        pytest.param("value model", ONE, SHARDED),
        *(
            pytest.param(kind, saved_by, resumed_by, marks=SLOW)
            for kind, saved_by, resumed_by in [
                ("full", ONE, SHARDED),
                ("value model", SHARDED, ONE),
                ("full", REPLICATED, ONE),
                ("full", ONE, REPLICATED),
                ("full", SHARDED, REPLICATED),
                ("full", REPLICATED, SHARDED),
                ("full", SHARDED, FOUR_SHARDED),
                ("full", SHARDED, FOUR_REPLICATED),
                ("full", FOUR_SHARDED, SHARDED),
                ("full", FOUR_REPLICATED, ONE),
                ("lora", SHARDED, ONE),  # the same two models as "full"; test_rank_runs.py shares adapters by default
                ("lora", REPLICATED, ONE),
                ("value model", REPLICATED, ONE),
                ("value adapter", SHARDED, ONE),
                ("value head", SHARDED, ONE),
                ("lora", ONE, SHARDED),
                ("lora", ONE, REPLICATED),
                ("lora", SHARDED, FOUR_SHARDED),
                ("lora", FOUR_SHARDED, REPLICATED),
            ]
        ),
    ],
)
def test_any_number_of_ranks_goes_on(kind: str, saved_by: By, resumed_by: By, made: Runs, tmp_path: Path) -> None:
    expected, found = made.whole(kind, ONE), made.resumed(kind, saved_by, resumed_by, tmp_path / "resumed")
    end = last(kind)
    apart = runs.distances(Found.of(found, found / end), Found.of(expected, expected / end))
    apart["state"] = relative(state(found / end), state(expected / end))
    say(max(saved_by[0], resumed_by[0]), f"{saved_by} to {resumed_by}", kind, apart)
    beside = ": critic/" if "critic" in KINDS[kind] else ": reference/"
    assert any(beside in name for name in state(expected / end))
    assert all(distance <= LIMIT for distance in (apart["weights"], apart["state"])), apart
    assert apart["metrics"] <= 1e-9


@pytest.mark.parametrize(
    ("kind", "by"),
    [
        ("bfloat16", SHARDED),
        pytest.param("full", SHARDED, marks=SLOW),  # goes on above, to what rounding leaves
        pytest.param("bfloat16", REPLICATED, marks=SLOW),
        pytest.param("full", REPLICATED, marks=SLOW),
        pytest.param("lora", REPLICATED, marks=SLOW),
        pytest.param("lora", SHARDED, marks=SLOW),
        pytest.param("full", FOUR_SHARDED, marks=SLOW),
        pytest.param("bfloat16", FOUR_SHARDED, marks=SLOW),
    ],
)
def test_as_many_ranks_go_on_to_the_same_bits(kind: str, by: By, made: Runs, tmp_path: Path) -> None:
    expected, found = made.whole(kind, by), made.resumed(kind, by, by, tmp_path / "resumed")
    end = last(kind)
    names = sorted(path.relative_to(expected) for path in (expected / end).rglob("*tensors"))
    assert len(names) == (3 if kind == "lora" else 2)
    for name in names:
        assert (found / name).read_bytes() == (expected / name).read_bytes(), name
    ours, theirs = (Found.of(folder, folder / end) for folder in (found, expected))
    assert ours.tokens == theirs.tokens
    np.testing.assert_equal(ours.metrics, theirs.metrics)
    if kind == "bfloat16":
        kept = load_file(expected / end / "trainer.tensors")
        masters = {tensor.dtype for name, tensor in kept.items() if name.endswith("/master")}
        assert masters == {torch.float32}


@pytest.mark.parametrize("kind", ["full", pytest.param("lora", marks=SLOW)])
def test_what_shares_were_saved_into_is_a_model_for_transformers(kind: str, made: Runs) -> None:
    """Weights that are tied are one matrix; and it computes what the model of one process computes."""
    ours, theirs = (
        AutoModelForCausalLM.from_pretrained(made.whole(kind, by) / last(kind), dtype=torch.float64)
        for by in (SHARDED, ONE)
    )
    assert ours.get_output_embeddings().weight is ours.get_input_embeddings().weight
    tokens = torch.arange(3, 40)[None]
    with torch.no_grad():
        logits = [model(input_ids=tokens).logits.numpy() for model in (ours, theirs)]
    assert np.abs(logits[0] - logits[1]).max() <= LIMIT
    start = AutoModelForCausalLM.from_pretrained(made._policy, dtype=torch.float64)
    with torch.no_grad():
        assert np.abs(start(input_ids=tokens).logits.numpy() - logits[0]).max() > 1e-4
