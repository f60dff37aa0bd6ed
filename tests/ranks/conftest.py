"""One group of processes per number of ranks, for all tests of the session.

Four ranks, and what two compute with the other learner, are slow: pytest -m slow tests/ranks
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ranked


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[ranked.Group]:
    with ranked.group(2) as made:
        yield made


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[ranked.Group]:
    with ranked.group(4) as made:
        yield made


@pytest.fixture(params=[2, pytest.param(4, marks=pytest.mark.slow)], ids=["2 ranks", "4 ranks"])
def several(request: pytest.FixtureRequest) -> ranked.Group:
    """Two ranks; and four, which are slow: they go where two go, and take a process more per rank."""
    return request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[request.param])


@pytest.fixture(scope="session")
def model_folder(tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """As `tiny_folder`, and "untied": a policy whose head is a matrix of its own."""
    made: dict[str, Path] = {}

    def folder(arch: str) -> Path:
        if arch != "untied":
            return tiny_folder(arch)
        if arch not in made:
            made[arch] = tmp_path_factory.mktemp(arch)
            untied(made[arch])
        return made[arch]

    return folder


def untied(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from winnow.testing import tiny

    loaded = tiny("qwen2")
    settings = copy.deepcopy(loaded.model.config)
    settings.tie_word_embeddings = False
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(settings)
    assert model.get_output_embeddings().weight is not model.get_input_embeddings().weight
    model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
