"""What `winnow doctor` finds out about this machine and the environment of a run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from winnow.commands.doctor.machine import (
    built_for,
    cards,
    commit,
    free_space,
    of_cuda,
    of_disks,
    of_processor,
    of_system,
)

SERVER = """processor	: 0
model name	: Intel(R) Xeon(R) Platinum 8480+
flags		: fpu avx2 avx512f avx512_bf16 amx_bf16 amx_tile ssse3
"""


def test_a_processor_is_named_with_the_instructions_that_matter(tmp_path):
    (tmp_path / "cpuinfo").write_text(SERVER)
    processor = of_processor(tmp_path / "cpuinfo", tmp_path)
    assert processor["model"] == "Intel(R) Xeon(R) Platinum 8480+"
    assert processor["instructions"] == ["avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16"]
    assert processor["bfloat16"] is True
    assert processor["usable"] <= processor["cores"] == os.cpu_count()
    (tmp_path / "cpuinfo").write_text(SERVER.replace("bf16", "int8"))
    assert of_processor(tmp_path / "cpuinfo", tmp_path)["bfloat16"] is False


def test_a_processor_is_named_also_without_proc(tmp_path):
    processor = of_processor(tmp_path / "absent", tmp_path)
    assert processor["model"]
    assert processor["instructions"] == []


def test_a_commit_is_marked_where_files_differ_from_it(tmp_path):
    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, "-C", str(tmp_path), *words], check=True, capture_output=True)

    assert commit(tmp_path) is None
    git("init")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-m", "one")
    assert len(clean := commit(tmp_path)) == 12
    (tmp_path / "file").write_text("two")
    assert commit(tmp_path) == f"{clean}, changed"
    (tmp_path / "file").write_text("one")
    os.utime(tmp_path / "file", (1, 1))  # the index has another time: `git status` would write it anew
    index = (tmp_path / ".git" / "index").read_bytes()
    assert commit(tmp_path) == clean
    assert (tmp_path / ".git" / "index").read_bytes() == index


def test_free_space_is_that_of_the_nearest_existing_folder(tmp_path):
    assert free_space(tmp_path / "not/yet/here")["path"] == str(tmp_path / "not/yet/here")
    assert free_space(tmp_path / "not/yet/here")["free_bytes"] > 0


def test_the_variables_of_the_hub_s_cache_are_followed(tmp_path, monkeypatch):
    for variable in ("HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert of_disks()["huggingface_cache"]["path"] == str(tmp_path / "huggingface")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "own"))
    assert of_disks()["huggingface_cache"]["path"] == str(tmp_path / "own")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert of_disks()["huggingface_cache"]["path"] == str(tmp_path / "hub")
    assert of_disks()["working_directory"]["path"] == str(Path.cwd())


def test_this_python_is_named():
    assert of_system()["python"].startswith("3.")


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
