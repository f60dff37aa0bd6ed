"""Shows 1 and 2 of many ranks: runs in float64 whose rollouts, metrics and weights are those of one process."""

from __future__ import annotations

import tomllib
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
from run_cases import Ran
from runs import Found
from transformers import AutoModelForCausalLM

from logged_groups import read_rollouts
from winnow.algos.step_plan import Setting
from winnow.core.sizes import logged_setting
from winnow.recipes import recipe_paths
from winnow.seeds import uniforms
from winnow.state.decisions import read_decisions
from winnow.state.logbook import read_metrics

CASE = "run_cases:ran"
LIMITS = {"gradients": 1e-12, "logprobs": 1e-10, "metrics": 1e-9, "weights": 1e-10}
CONFIGS = Path(__file__).parents[2] / "configs" / "published"
LEARNERS = ("replicated", "sharded")
SLOW = pytest.mark.slow  # covered by the other learner, and by tests of the learner alone
VARIED = tomllib.loads((Path(__file__).parents[1] / "published" / "variants.toml").read_text(encoding="utf-8"))
VARIANTS = {variant["run"] for variant in VARIED["variant"]}  # of a published run; other files have the same laws
PUBLISHED = [path for path in (*recipe_paths().values(), *sorted(CONFIGS.glob("*.toml"))) if path.stem not in VARIANTS]


def compare(group: Group, learner: str, config: dict[str, Any], tmp_path: Path) -> dict[str, float]:
    """The largest distances of the ranks' run from that of one process."""
    one: Ran = ranked.alone(CASE, {**config, "output": str(tmp_path / "one")})
    many = {**config, "output": str(tmp_path / "many"), "ranks": {"learner": learner}}
    each: list[Ran] = group.run(CASE, many)
    assert one.model is not None
    assert one.gradients, "nothing was learned"
    assert {(ran.model, ran.steps) for ran in each} == {(each[0].model, one.steps)}
    first = max(relative(ran.gradients[0], one.gradients[0]) for ran in each)  # later ones are of weights that differ
    later = max(relative(a, b) for ran in each for a, b in zip(ran.gradients, one.gradients, strict=True))
    assert all(ran.rollouts == one.rollouts for ran in each)
    gaps = [np.abs(a - b).max() for ran in each for a, b in zip(ran.logprobs, one.logprobs, strict=True)]
    assert each[0].model is not None
    found = runs.distances(Found.of(tmp_path / "many", each[0].model), Found.of(tmp_path / "one", one.model))
    return {"gradients": first, "later gradients": later, "logprobs": float(max(gaps)), **found}


def check(found: dict[str, float]) -> None:
    assert all(found[what] <= limit for what, limit in LIMITS.items()), found


def parts_of(laws: Any, name: str = "") -> set[str]:
    """Everything that laws are made of and ranks could compute otherwise: switches, members, and what is in use."""
    if isinstance(laws, dict):
        return {part for key, law in laws.items() for part in parts_of(law, f"{name}.{key}")}
    if isinstance(laws, list) and any(isinstance(law, dict) for law in laws):
        return {part for law in laws for part in parts_of(law, name)}
    return {f"{name} = {laws}" if isinstance(laws, str | bool) or name.endswith("updates_per_step") else name}


def policy_of(path: Path) -> str:
    return "llama" if path.stem == "pods_c" else "qwen2"


def few() -> set[Path]:
    """Configurations that have together every part of all: always the one that adds most, the first of equals."""
    parts = {path: parts_of(runs.laws_of(path)) | {policy_of(path)} for path in PUBLISHED}
    missing, chosen = set[str]().union(*parts.values()), set[Path]()
    while missing:
        best = max(PUBLISHED, key=lambda path: len(parts[path] & missing))
        chosen.add(best)
        missing -= parts[best]
    return chosen


def once() -> list[Any]:
    """Every configuration with each learner. What is slow is the other learner, or has only parts of those that are
    not. Of those, one in four is sharded, which takes twice as long: laws know nothing of the learner, and
    `test_steps_after_steps` and test_rank_updates.py divide policies under GVM and under losses.
    """
    chosen, made = few(), list[Any]()
    for path in PUBLISHED:
        mine = LEARNERS[sum(other in chosen for other in PUBLISHED[: PUBLISHED.index(path)]) % 4 == 3]
        for learner in LEARNERS:
            slow = path not in chosen or learner != mine
            made.append(pytest.param(path, learner, id=f"{path.stem}-{learner}", marks=SLOW if slow else []))
    return made


@pytest.mark.parametrize(("path", "learner"), once())
def test_every_published_configuration(path, learner, several: Group, model_folder, tmp_path: Path) -> None:
    config = runs.small(tmp_path, model_folder(policy_of(path)), **runs.laws_of(path))
    found = compare(several, learner, config, tmp_path)
    say(several.count, learner, path.stem, found)
    check(found)


KL = [{"use": "kl", "coefficient": 0.05}]


def uneven(folder: Path) -> dict[str, Any]:
    """GVM's counts, of which one is 0, and a prompt with more than all others have at 4 ranks; two updates a step."""
    return {
        "steps": 2,
        "allocate": {"use": f"{folder}/laws.py:uneven"},
        "terms": KL,
        "update": {"updates_per_step": 2},
        "weighting": {"use": "token"},
        "evaluate": {"every": 2, "greedy": True},
    }


def refill(folder: Path) -> dict[str, Any]:
    """Rewards that are rare: a step asks for more prompts, and some ranks keep nothing of theirs."""
    return {
        "steps": 2,
        "reward": {"use": f"{folder}/laws.py:rarely"},
        "rollout": {"dynamic_sampling_rounds": 2, "rollouts_per_prompt": 4},
        "model": {"lora": {"rank": 4}},
        "task": {"size": 60},
    }


def windows(folder: Path) -> dict[str, Any]:
    """Two probes, each of which resets moments and reference."""
    probe = {"every": 2, "rollouts_per_prompt": 4, "outer_reset": "both", "gradient_norm": "output_head"}
    return {"steps": 3, "allocate": {"use": "gvm"}, "probe": probe, "terms": KL}


def sampled_prompts(folder: Path) -> dict[str, Any]:
    """Prompts that depend on the results of an earlier step: 12 problems, of which each step compares all."""
    return {"steps": 2, "sample": {"use": "mopps", "candidates": 2}, "task": {"size": 12}}


def adapted_windows(folder: Path) -> dict[str, Any]:
    """An adapter, whose reference becomes a second adapter."""
    return {**windows(folder), "model": {"lora": {"rank": 4}}}


def chosen_sizes(folder: Path) -> dict[str, Any]:
    """Sizes that the run chooses before the third step, at given costs."""
    costs = str(Path(__file__).parents[2] / "configs" / "costs" / "two_cpu_cores.json")
    return {"steps": 3, "plan": {"use": "auto", "every": 2, "costs": costs}, "prompt": {"template": "chat"}}


@pytest.mark.parametrize(
    ("changes", "learner"),
    [
        # A sharded learner measures no noise, so its sizes may differ from those of one process
        pytest.param(chosen_sizes, "replicated", id="chosen sizes-replicated"),
        pytest.param(uneven, "replicated", id="uneven-replicated", marks=SLOW),
        pytest.param(uneven, "sharded", id="uneven-sharded"),
        pytest.param(refill, "replicated", id="refill-replicated"),
        pytest.param(refill, "sharded", id="refill-sharded", marks=SLOW),
        pytest.param(windows, "replicated", id="windows-replicated", marks=SLOW),
        pytest.param(windows, "sharded", id="windows-sharded"),
        pytest.param(sampled_prompts, "replicated", id="sampled prompts-replicated"),
        pytest.param(adapted_windows, "replicated", id="adapted windows-replicated", marks=SLOW),
        pytest.param(adapted_windows, "sharded", id="adapted windows-sharded", marks=SLOW),
    ],
)
def test_steps_after_steps(changes, learner, several: Group, model_folder, tmp_path: Path) -> None:
    config = runs.small(tmp_path, model_folder("qwen2"), **changes(tmp_path))
    found = compare(several, learner, config, tmp_path)
    say(several.count, learner, changes.__name__, found)
    check(found)
    rows = [row for row in read_metrics(tmp_path / "many") if "budget/rollouts" in row]
    assert len(rows) == config["steps"]
    assert all(row["budget/updates"] > 0 for row in rows)
    assert {row["ranks/count"] for row in rows} == {several.count}
    if changes is refill:
        assert sum(row["dynamic_sampling/groups"] for row in rows) > 0
        assert any(row["group/flat"] > 0 for row in rows)
    if changes is uneven:
        assert {row["budget/prompts_skipped"] for row in rows} == {1}
    if changes is chosen_sizes:
        (decision,) = read_decisions(tmp_path / "many").values()
        assert decision["chosen"] == read_decisions(tmp_path / "one")[2]["chosen"] != decision["before"]
        assert [logged_setting(row) for row in rows[1:3]] == [Setting(8, 3, 6), Setting(**decision["chosen"])]
    if changes in (windows, adapted_windows):
        assert sum("budget/probe_rollouts" in row for row in rows) == 2


BOUNDARY = 1e-5  # of probability: the rounding of a cumulative sum in float32 may move a boundary by as much


@pytest.mark.parametrize("learner", ["replicated", pytest.param("sharded", marks=SLOW)])
def test_in_float32_rollouts_differ_only_at_boundaries_of_tokens(
    learner: str, several: Group, model_folder, tmp_path: Path
) -> None:
    """In both runs a token's interval contains its random number, so tokens that differ have a boundary near it."""
    policy = model_folder("qwen2")
    config = runs.small(tmp_path, policy, **{**uneven(tmp_path), "steps": 1, "model": {"dtype": "float32"}})
    ranked.alone(CASE, {**config, "output": str(tmp_path / "one")})
    several.run(CASE, {**config, "output": str(tmp_path / "many"), "ranks": {"learner": learner}})
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float64)
    first = {name: sampled(tmp_path / name) for name in ("one", "many")}
    assert first["one"].keys() == first["many"].keys()
    assert len(first["one"]) == 48
    for rollouts in first.values():
        for (prompt, index), (before, tokens) in rollouts.items():
            assert off(model, before, tokens, uniforms([(0, "rollout", 0, prompt, index)], len(tokens))[0]) <= BOUNDARY
    differ = sum(first["one"][key][1] != first["many"][key][1] for key in first["one"])
    say(several.count, learner, "float32, step 0", {"rollouts that differ": differ})
    assert differ <= 2  # of some 300 tokens


def sampled(folder: Path) -> dict[tuple[str, int], tuple[list[int], list[int]]]:
    """Tokens of prompt and completion of every rollout of step 0."""
    return {
        (logged.group.prompt.id, rollout.index): (logged.group.prompt.tokens.tolist(), rollout.tokens.tolist())
        for logged in read_rollouts(folder, 0)
        for rollout in logged.group.rollouts
    }


@torch.no_grad()
def off(model: Any, before: list[int], tokens: list[int], numbers: Any) -> float:
    """How far the numbers [L] are from the intervals of the cumulative probability that belong to the tokens [L]."""
    logits = model(input_ids=torch.tensor([before + tokens])).logits[0, len(before) - 1 : -1]
    ends = logits.softmax(-1).cumsum(-1).numpy()
    place = np.arange(len(tokens))
    upper = ends[place, tokens]
    lower = np.where(np.array(tokens) > 0, ends[place, np.array(tokens) - 1], 0.0)
    return float(np.maximum(lower - numbers, numbers - upper).max())
