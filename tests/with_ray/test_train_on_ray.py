"""`winnow train --ray` on the real Ray Train, as a user starts it: clusters on this machine, a worker that is killed.

pip install -e '.[test,ray]' && pytest tests/with_ray
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from winnow.config import Config
from winnow.config_keys import format_toml
from winnow.recipes import recipe_paths

pytestmark = pytest.mark.timeout(1200)
pytest.importorskip("ray.train", reason="needs Ray Train: pip install 'winnow-rl[ray]'")

DEMO = recipe_paths()["arithmetic"]
LEARNT = 0.2  # increase of the accuracy on 64 problems with 8 samples each; its standard error is 0.03
SHORTER = ("steps=20", "evaluate.every=20", "evaluate.problems=64")


def start(config, output, *more, address="local"):
    command = [sys.executable, "-m", "winnow", "train", str(config), "--output", str(output)]
    options = ["--ray", address, "--ranks", "2", *more]
    return subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=config.parent
    )


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def workers(folder):
    """Pids of Ray Train's workers in this working directory. Ray overwrites their environment with their titles."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if b"RayTrainWorker" in (entry / "cmdline").read_bytes() and (entry / "cwd").readlink() == folder:
                pids.append(int(entry.name))
        except OSError:
            continue
    return sorted(pids)


def test_the_demo_learns_on_two_workers(tmp_path):
    config, run = tmp_path / "run.toml", tmp_path / "run"
    config.write_text(DEMO.read_text())
    training = start(config, run, *(word for key in SHORTER for word in ("--set", key)))
    output, _ = training.communicate()

    assert training.returncode == 0, output
    assert output.count("model: ") == 1, "only one rank prints the display"
    accuracy = [row["eval/accuracy_sampled"] for row in metrics(run) if "eval/accuracy_sampled" in row]
    assert accuracy[-1] > accuracy[0] + LEARNT
    assert json.loads((run / "manifest.json").read_text())["ranks"] == 2
    assert not (tmp_path / "run.ray").exists()


def test_a_worker_that_is_killed_starts_again_from_the_run_folder(tmp_path, smallest):
    settings = smallest(steps=30, rollout={"max_new_tokens": 64}, checkpoint={"every": 2})
    config, run = tmp_path / "run.toml", tmp_path / "run"
    config.write_text(format_toml(Config.model_validate(settings)))
    training = start(config, run, "--restarts", "1")
    while not (run / "checkpoints" / "step-000004").exists():  # at most until the suite's time limit
        assert training.poll() is None, training.communicate()
        time.sleep(0.05)
    os.kill(workers(tmp_path)[-1], signal.SIGKILL)
    output, _ = training.communicate()

    assert training.returncode == 0, output
    assert re.search(r"\b[1-9]\d* to 29\b", output), "the replacement ranks resumed after step 0"
    assert [row["step"] for row in metrics(run) if "reward/mean" in row] == list(range(30))


def test_two_nodes_of_a_cluster_hold_a_rank_each(tmp_path, smallest):
    from ray.cluster_utils import Cluster

    config, run = tmp_path / "run.toml", tmp_path / "run"
    config.write_text(format_toml(Config.model_validate(smallest(steps=3))))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        training = start(config, run, address=cluster.address)
        output, _ = training.communicate()
    finally:
        cluster.shutdown()

    assert training.returncode == 0, output
    assert (run / "checkpoints" / "step-000003").is_dir()
