from __future__ import annotations

import os
import subprocess
from pathlib import Path

from winnow.commands.doctor.machine import commit, free_space, of_disks, of_processor, of_system

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
