from __future__ import annotations

from winnow.commands.doctor.devices import cards, of_cuda

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
    assert found["built_for"] == torch.version.cuda
