from __future__ import annotations

from winnow.commands.doctor.machine import built_for, cards, of_cuda

OUTPUT = """0, NVIDIA H100 80GB HBM3, 81559, 80995, 9.0, 550.54.15
1, Tesla T4, 15360, [N/A], 7.5, 550.54.15
2, NVIDIA A100-SXM4-40GB MIG, [N/A], [N/A], [N/A], 550.54.15
"""


def test_cards_are_read_from_the_output_of_the_driver_s_tool():
    first, second, third = cards(OUTPUT)
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
    assert cards("[N/A], NVIDIA A100 MIG, [N/A], [N/A], [N/A], 550\n")[0]["index"] is None


def test_other_output_contains_no_card():
    assert cards("") == []
    assert cards("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n") == []


def test_cuda_is_reported_as_torch_reports_it():
    import torch

    cuda = of_cuda()
    assert cuda["available"] is torch.cuda.is_available()
    assert cuda["built_for"] == built_for(torch.version.cuda, torch.version.hip)
    assert (built_for("12.8", None), built_for(None, "6.4"), built_for(None, None)) == ("CUDA 12.8", "ROCm 6.4", None)
