"""Two processes under accelerate keep what one process keeps, and make the same update of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def trained(folder: Path, processes: int):
    """What each process of a training reported."""
    folder.mkdir()
    launch = [sys.executable]
    if processes > 1:
        launch += [
            "-m",
            "torch.distributed.run",
            "--nproc_per_node",
            str(processes),
            "--standalone",
            "--local_addr",
            "127.0.0.1",
        ]
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false", "GLOO_SOCKET_IFNAME": "lo", "ACCELERATE_USE_CPU": "true",
    }  # fmt: skip
    command = [*launch, str(HERE / "two_processes.py"), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes)]


def test_two_processes_keep_what_one_keeps(tmp_path):
    (one,), two = trained(tmp_path / "one", 1), trained(tmp_path / "two", 2)
    assert [part["world"] for part in (one, *two)] == [1, 2, 2]
    assert [len(part["kept"]) for part in two] == [4, 4]
    assert two[0]["kept"] + two[1]["kept"] == one["kept"]
    assert two[0]["advantages"] + two[1]["advantages"] == pytest.approx(one["advantages"], abs=1e-6)
    assert max(map(abs, one["advantages"])) > 0
    assert two[0]["tokens"] == two[1]["tokens"] == one["tokens"]
    assert two[0]["log"] == pytest.approx(one["log"], rel=1e-5, abs=1e-7)
    assert set(one["log"]) > {"budget/trained_tokens", "kl"}
    assert two[0]["norms"] == two[1]["norms"] == pytest.approx(one["norms"], rel=1e-5)
