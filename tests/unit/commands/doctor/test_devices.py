from __future__ import annotations

from winnow.commands.doctor.devices import built_for, cards, of_cuda
from winnow.commands.doctor.lines import SECTIONS

SAID = """0, NVIDIA H100 80GB HBM3, 81559, 80995, 9.0, 550.54.15
1, Tesla T4, 15360, [N/A], 7.5, 550.54.15
2, NVIDIA A100-SXM4-40GB MIG, [N/A], [N/A], [N/A], 550.54.15
"""


def test_cards_are_read_from_what_the_driver_s_tool_says():
    first, second, third = cards(SAID)
    assert first == {
        "index": 0,
        "name": "NVIDIA H100 80GB HBM3",
        "bytes": 81559 * 2**20,
        "free_bytes": 80995 * 2**20,
        "compute_capability": "9.0",
        "bfloat16": True,
        "driver": "550.54.15",
    }
    assert (second["free_bytes"], second["bfloat16"]) == (None, False)
    assert (third["bytes"], third["bfloat16"]) == (None, None)


def test_what_is_no_row_is_no_card():
    assert cards("") == []
    assert cards("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n") == []


def test_a_machine_without_cards_says_so():
    import torch

    found = of_cuda()
    assert found["available"] is torch.cuda.is_available()
    assert found["built_for"] == built_for(torch.version.cuda, torch.version.hip)


def told(said, **changes):
    """The lines of a section whose cards the driver's tool tells so."""
    section = {"built_for": "CUDA 12.8", "available": True, "visible": 1, "CUDA_VISIBLE_DEVICES": None, "nccl": None}
    return list(SECTIONS["cuda"]({**section, "cards": cards(said), **changes}))


def test_what_is_not_known_is_not_denied():
    assert told("") == ["nvidia-smi tells of no card; torch is built for CUDA 12.8, sees 1"]
    assert told("", visible=0, available=False) == ["no card; torch is built for CUDA 12.8, sees 0"]
    assert told("", built_for=built_for(None, "6.4"))[0].endswith("torch is built for ROCm 6.4, sees 1")
    assert told("", built_for=built_for(None, None), visible=0) == ["no card; torch is built for CPUs"]
    (card, _) = told("[N/A], NVIDIA A100 MIG, [N/A], [N/A], [N/A], 550\n")
    assert card == "?: NVIDIA A100 MIG, ?, ? free, compute capability [N/A], bfloat16 unknown, driver 550"
