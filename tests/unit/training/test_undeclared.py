"""What a user's loss, term or advantage reads without declaring it is refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import winnow
from winnow.algos.advantage import per_group
from winnow.algos.loss import probability_ratio
from winnow.config_file import validate
from winnow.errors import ConfigError
from winnow.training.resolve import resolve_members


def resolved(**config):
    return resolve_members(validate(config), Path())


def ratio(out, mb):
    return -torch.exp(out.logprobs - mb.old_logprobs) * mb.advantages, {}


def asking(out, mb):
    return -probability_ratio(out, mb) * mb.advantages, {}


def aware(out, mb):
    return ratio(out, mb) if mb.old_logprobs is not None else (-mb.advantages * out.logprobs, {})


def both(out, mb):
    return ratio(out, mb)[0] + (mb.ref_logprobs - out.logprobs), {"entropy": out.entropy.detach()}


def distance(out, mb):
    return (mb.ref_logprobs - out.logprobs).square()


def surprised(out, mb):
    return -out.entropy


def of_a_run(out, mb):
    return out.logprobs * mb.sequences[0].prompt.meta["weight"] * mb.old_logprobs, {}


def above_values(groups):
    return [group.rewards - [values.mean() for values in group.values] for group in groups]


@pytest.mark.parametrize(
    ("config", "needs"),
    [
        ({"loss": ratio}, {"old_logprobs"}),
        ({"loss": both}, {"old_logprobs", "ref_logprobs", "entropy"}),
        ({"terms": [{"use": distance, "coefficient": 0.1}]}, {"ref_logprobs"}),
        ({"terms": [{"use": surprised, "coefficient": 0.1}]}, {"entropy"}),
        ({"advantage": above_values}, {"values"}),
    ],
)
def test_what_is_read_and_not_declared_is_named(config, needs):
    with pytest.raises(ConfigError) as raised:
        resolved(**config)
    text = str(raised.value)
    named = text[text.index("needs=(") :]
    assert {need for need in ("old_logprobs", "ref_logprobs", "entropy", "values") if f'"{need}"' in named} == needs


@pytest.mark.parametrize(
    "config",
    [
        {"loss": ratio, "update": {"epochs": 2}},  # old log-probs are computed for the second update
        {"loss": ratio, "update": {"max_importance": 2.0}},
        {"loss": asking},
        {"loss": aware},
        {"loss": of_a_run},  # invented numbers say nothing of it
        {"advantage": lambda groups: per_group(lambda r, over: r - over.mean(), groups, "kept")},
    ],
)
def test_what_is_there_or_not_known_is_not_refused(config):
    assert resolved(**config).loss.name


def test_a_declared_need_is_computed_and_a_declaration_of_one_leaves_the_other_to_be_named(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import winnow, torch\n"
        '@winnow.register("loss", "whole", needs=("old_logprobs",))\n'
        "def whole(out, mb):\n"
        "    'Declares what it reads.'\n"
        "    return -torch.exp(out.logprobs - mb.old_logprobs) * mb.advantages, {}\n"
        '@winnow.register("loss", "half", needs=("old_logprobs",))\n'
        "def half(out, mb):\n"
        "    'Reads the entropy, too.'\n"
        "    return whole(out, mb)[0] * out.entropy, {}\n"
    )
    assert "old_logprobs" in resolved(loss=f"{mine}:whole").needs
    with pytest.raises(ConfigError) as raised:
        resolved(loss=f"{mine}:half")
    assert '"entropy"' in str(raised.value)
    assert "old_logprobs" not in str(raised.value)


def test_a_loss_with_a_ratio_is_refused_before_a_model_is_looked_for(tmp_path):
    with pytest.raises(ConfigError, match="old_logprobs"):
        winnow.train(loss=ratio, model=str(tmp_path / "nowhere"), output=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
