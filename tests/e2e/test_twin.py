"""examples/one_file_grpo.py explains the algorithm without winnow, and agrees with it to rounding: two independent
ways from a run's rollouts to its parameters.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

import winnow
from logged_groups import read_rollouts
from winnow.algos.advantage import is_flat
from winnow.state.logbook import read_metrics

TWIN = Path(__file__).parents[2] / "examples" / "one_file_grpo.py"

# Few distinct rewards (ties), none for every other answer (flat groups), and now and then no verdict at all.
COARSE = """
def coarse(prompt, rollout):
    if rollout.index == 5 and int(prompt.answer) % 3 == 0:
        raise RuntimeError("no verdict")
    even = sum(ord(c) % 2 == 0 for c in rollout.text) / max(1, len(rollout.text))
    return round(3 * even) / 3 if int(prompt.answer) % 2 else 0.5
"""

ONE_UPDATE = {
    "optimizer": {"learning_rate": 1e-2, "weight_decay": 0.1},
}
SIX_UPDATES = {
    "update": {"epochs": 2, "updates_per_step": 3, "tokens_per_micro_batch": 64},
    "optimizer": {"learning_rate": 1e-2, "schedule": "cosine", "warmup_steps": 1, "max_grad_norm": 0.5},
    "rollout": {"temperature": 0.7},
    "loss": {"use": "clip", "clip_high": 0.1},
}


@pytest.fixture(scope="module")
def twin():
    spec = importlib.util.spec_from_file_location("one_file_grpo", TWIN)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def trained(smallest, tmp_path):
    """A run of three float64 steps, every one of them saved: trained("qwen2", **changes) -> (run, the model before)."""
    (tmp_path / "coarse.py").write_text(COARSE)

    def train(arch, **changes):
        rollout = {"rollouts_per_prompt": 7, "max_new_tokens": 9, "stop": list("aeiou"), **changes.get("rollout", {})}
        config = smallest(
            arch,
            steps=3,
            seed=4,
            checkpoint={"every": 1, "keep_last": 3},
            verify={"workers": 0, "max_failure_share": 1.0},
            reward={"use": f"{tmp_path}/coarse.py:coarse"},
            select={"keep_per_prompt": 3},
            model={"dtype": "float64"},
            **{**changes, "rollout": rollout},
        )
        result = winnow.train(**config, progress=False)
        return result.folder, Path(config["model"]["path"])

    return train


@pytest.mark.parametrize(
    ("arch", "changes"), [("llama", ONE_UPDATE), ("qwen2", SIX_UPDATES)], ids=["one update", "six updates"]
)
def test_the_twin_agrees_to_rounding(arch, changes, trained, twin, tmp_path):
    """Parameters, and both moments of the gradients, to 1e-10 after every step; the logged numbers as well."""
    run, model = trained(arch, **changes)
    check_that_the_run_is_hard(run, clips=changes is SIX_UPDATES)
    walked = list(twin.replay(run, model, 3, tmp_path / "out"))
    for (report, apart), row in zip(walked, read_metrics(run), strict=False):
        assert apart.keys() == {"parameters", "gradients", "squares"}
        assert max(apart.values()) < 1e-10, (report, apart)
        assert (report.kept, report.trained) == (row["select/kept"], row["select/trained"])
        assert report.loss == pytest.approx(row["policy/loss"], rel=1e-9)
        assert report.grad_norm == pytest.approx(row["policy/grad_norm"], rel=1e-9)
    assert len(walked) == 3
    before, after, ours = (
        load_file(f / "model.safetensors") for f in (model, run / "checkpoints/step-000003", tmp_path / "out")
    )
    for name in after:
        moved = (after[name] - before[name]).norm()
        assert (ours[name] - after[name]).norm() <= 1e-10 * after[name].norm() + 1e-8 * moved, name
        assert moved > 0, f"{name} never moved: the test says nothing about it"


def check_that_the_run_is_hard(run, *, clips):
    """A test of ties, flat groups, failed verdicts, lengths and clipping needs a run that has them."""
    groups = [entry.group for entry in read_rollouts(run)]
    judged = [group.rewards[group.valid] for group in groups]
    assert any(is_flat(rewards) for rewards in judged)
    assert any(not is_flat(rewards) and len(set(rewards)) < len(rewards) for rewards in judged)
    assert any(not group.valid.all() for group in groups)
    assert any(len(set(group.lengths[group.keep])) > 1 for group in groups)
    assert any(row.get("policy/clip_fraction", 0) > 0 for row in read_metrics(run)) == clips


NOT_IMPLEMENTED = [
    ("advantage", "use", "dr_grpo"),
    ("loss", "dual", 3.0),
    ("update", "max_trained_tokens", 4),
    ("log", "every", 2),
    ("cut", "use", "stragglers"),
    ("model", "dtype", "bfloat16"),
]


def test_the_command_line_prints_each_step_and_refuses_another_algorithm(trained, twin, monkeypatch, capsys):
    run, model = trained("qwen2")
    monkeypatch.setattr(sys, "argv", [str(TWIN), str(run), str(model), "--steps", "2"])
    twin.main()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("step 0  kept 12 ")
    assert second.startswith("step 1 ")

    file = run / "manifest.json"
    written = file.read_text()
    for table, key, value in NOT_IMPLEMENTED:
        manifest = json.loads(written)
        manifest["config"][table][key] = value
        file.write_text(json.dumps(manifest))
        with pytest.raises(SystemExit, match="max_variance"):  # one of the members of which it is an explanation
            next(twin.replay(run, model, 1))


def test_it_imports_nothing_of_winnow():
    tree = ast.parse(TWIN.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    packages = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    assert packages == {"numpy", "pyarrow", "torch", "transformers", "safetensors"}
