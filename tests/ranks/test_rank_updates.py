"""Shows 1 of many ranks: what a learner computes is what one process computes, replicated and sharded.

The distance of gradients is a relative L2 norm, at most 1e-12 in float64 and 1e-5 in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import ranked
from distances import relative
from measured import say
from ranked import Group
from update_cases import GVM, Computed

CASE = "update_cases:updates"
LIMIT = {"float64": 1e-12, "float32": 1e-5}
KL: dict[str, Any] = {"terms": [{"use": "kl", "coefficient": 0.05}, {"use": "entropy", "coefficient": -0.01}]}
LORA: dict[str, Any] = {"lora": {"rank": 4, "alpha": 8.0}}


LEARNERS = ("replicated", "sharded")
SLOW = pytest.mark.slow  # covered by the other learner, and by the same of another model or precision


def case(
    name: str,
    model: dict[str, Any],
    *learners: str,
    counts: tuple[int, ...] = GVM,
    longest: int = 9,
    arch: str = "qwen2",
    **more: Any,
) -> list[Any]:
    """One for each learner; those that are not named are slow: beside them, what covers them in the suite."""
    settings = {"name": name, "arch": arch, "model": model, "counts": counts, "longest": longest, "more": more}
    return [
        pytest.param(settings, learner, id=f"{name}-{learner}", marks=() if learner in learners else SLOW)
        for learner in LEARNERS
    ]


def checkpointed(how: str) -> dict[str, Any]:
    return {"dtype": "float64", "gradient_checkpointing": how}


PACKED = {"layout": "packed"}
F64, F32 = {"dtype": "float64"}, {"dtype": "float32"}
CASES = [
    *case("tied, kl", F64, *LEARNERS, **KL),
    *case("untied, kl", F64, arch="untied", **KL),  # by "full" of the same policy, and by "tied, kl"
    *case("llama", F64, arch="llama"),  # by test_rank_runs.py: pods_c
    *case("lora, kl", {**F64, **LORA}, **KL),  # by "packed, full, lora", and by "float32, lora, kl"
    *case("selective", checkpointed("selective")),  # by "full", and by test_policy.py for one process
    *case("full", checkpointed("full"), "sharded", arch="untied"),
    *case("packed", F64, update=PACKED),  # by "packed, full, lora"
    *case("packed, full, lora", {**checkpointed("full"), **LORA}, "sharded", update=PACKED, **KL),
    *case("7 against 1", F64, "replicated", counts=(7, 1)),
    *case("one has nothing", F64, *LEARNERS, counts=(1,), **KL),
    *case("one that is long", F64, "sharded", counts=(1, 1), longest=40),
    *case("gspo", F64, loss={"use": "gspo"}),  # by the other losses of test_rank_runs.py
    *case("float32, shared, kl", F32, "sharded", **KL),
    *case("float32, shared, one has nothing", F32, counts=(0, 1)),  # by "one has nothing"
    *case("float32, packed, untied", F32, arch="untied", update=PACKED),  # by "packed, full, lora" and "full"
    *case("float32, lora, kl", {**F32, **LORA}, "replicated", **KL),
]


@pytest.fixture(scope="session")
def computed_alone(model_folder) -> Any:
    """What one process computes, once for all who compare to it."""
    known: dict[str, Computed] = {}

    def compute(settings: dict[str, Any]) -> Computed:
        if repr(settings) not in known:
            known[repr(settings)] = ranked.alone(CASE, *arguments(settings, model_folder, "replicated"))
        return known[repr(settings)]

    return compute


def arguments(settings: dict[str, Any], model_folder: Any, learner: str) -> tuple[Any, ...]:
    update = {"tokens_per_micro_batch": 256, **settings["more"].get("update", {})}
    config = {
        "loss": {"use": "clip"},
        **settings["more"],
        "model": {"path": str(model_folder(settings["arch"])), **settings["model"]},
        "update": update,
        # Moments of the first update make every gradient 1, the smallest ones too: eps keeps what is rounding small
        "optimizer": {"learning_rate": 1e-2, "eps": 1e-3, "max_grad_norm": 1e-3, "weight_decay": 0.1},
        "ranks": {"learner": learner},
    }
    return config, settings["counts"], settings["longest"]


@pytest.mark.parametrize(("settings", "learner"), CASES)
def test_ranks_compute_what_one_computes(settings, learner, several: Group, model_folder, computed_alone) -> None:
    one = computed_alone(settings)
    each: list[Computed] = several.run(CASE, *arguments(settings, model_folder, learner))
    limit = LIMIT[settings["model"]["dtype"]]
    found = {what: max(distance) for what, distance in zip(
        ("logprobs", "norms", "first gradient", "second gradient", "norm", "loss", "weights"),
        zip(*(distances(of, one) for of in each), strict=True), strict=True,
    )}  # fmt: skip
    say(several.count, learner, settings["name"], found)
    assert all(distance <= limit for distance in found.values()), found
    for of in each:  # and the ranks agree to the bit
        for name, weights in of.weights.items():
            np.testing.assert_array_equal(weights, each[0].weights[name])
        assert of.losses == each[0].losses
    check_passes(each, learner)


def distances(of: Computed, one: Computed) -> list[float]:
    return [
        relative(of.logprobs, one.logprobs),
        relative(of.norms, one.norms),
        *(relative(a, b) for a, b in zip(of.gradients, one.gradients, strict=True)),
        max(abs(a - b) / max(b, 1e-300) for a, b in zip(of.grad_norms, one.grad_norms, strict=True)),
        max(abs(a - b) / max(abs(b), 1e-2) for a, b in zip(of.losses, one.losses, strict=True)),
        relative(of.weights, one.weights),
    ]


def check_passes(each: list[Computed], learner: str) -> None:
    """A sharded policy is passed equally often by all ranks; one that each has whole, only for what a rank has."""
    passes, idle = [of.passes for of in each], [of.idle for of in each]
    assert {of.sharded for of in each} == {learner == "sharded"}
    if learner == "sharded":
        assert len(set(passes)) == 1
        assert min(idle) == 0
    else:
        assert not any(idle)
