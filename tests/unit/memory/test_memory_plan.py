"""The display of a plan, runs that cannot fit, and sizes as text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from golden_files import assert_golden
from memory_plans import part, planned
from refusals import refused
from winnow.commands import app
from winnow.errors import ConfigError
from winnow.memory.plan import MemoryPart, MemoryPlan, assume_free, format_bytes

GIB = 2**30


EXAMPLE = MemoryPlan(
    "policy on cpu",
    (
        MemoryPart("weights", 2 * GIB, "always", "cpu", ("use D",)),
        MemoryPart("activations", 5 * GIB, "update", "cpu", ("lower A", "set B")),
        MemoryPart("gradients", GIB // 8, "update", "cpu", ("train C",)),
        MemoryPart("keys and values", 3 * GIB, "generate", "cpu"),
    ),
)


def test_phases_do_not_coincide():
    assert EXAMPLE.need("cpu") == 2 * GIB + (5 * GIB + GIB // 8)


def test_the_worst_phase_is_the_one_that_is_refused():
    parts = [MemoryPart(name, size, name, "cpu") for name, size in
             (("always", 1), ("update", 2), ("logprobs", 4), ("norms", 5), ("generate", 3))]  # fmt: skip
    assert MemoryPlan("", tuple(parts)).need("cpu") == 6


ON_TWO = MemoryPlan(
    "policy on cpu",
    (
        MemoryPart("weights", 3 * GIB, "always", "cpu", ("set B",)),
        MemoryPart("activations", GIB, "update", "cpu"),
        MemoryPart("copy", GIB, "always", "cpu", writer=True),
    ),
    ranks=2,
    ranks_here=2,
)


def test_the_ranks_of_a_machine_share_its_memory():
    assert ON_TWO.need_here("cpu") == 9 * GIB
    ON_TWO.check(lambda device: 9 * GIB)
    with refused(ConfigError, "cpu", "9.0 GiB", "4.0 GiB", "8.0 GiB", code="config.memory") as caught:
        ON_TWO.check(lambda device: 8 * GIB)
    fewer_ranks, part_advice = caught.value.remedy.split("; ")
    assert "2" in fewer_ranks
    assert part_advice == "set B"


def test_a_gpu_is_one_rank_s_own_and_the_writer_s_copy_on_the_cpu():
    parts = (MemoryPart("weights", 3 * GIB, "always", "cuda:0"), MemoryPart("copy", GIB, "always", "cpu", writer=True))
    plan = MemoryPlan("", parts, ranks=2, ranks_here=2)
    assert (plan.need_here("cuda:0"), plan.need_here("cpu")) == (3 * GIB, GIB)
    plan.check(lambda device: 3 * GIB)
    with refused(ConfigError, "cpu", "1.0 GiB", "512 MiB", "copy", code="config.memory"):
        plan.check(lambda device: GIB // 2 if device == "cpu" else 3 * GIB)


BESIDE = (MemoryPart("weights", 3 * GIB, "always", "cuda:0"), MemoryPart("copy", GIB, "always", "cpu", writer=True))


CACHE = MemoryPart("keys and values", 7 * GIB, "always", "cpu", least=3 * GIB, wanted=20 * GIB)


def test_the_display_of_plans():
    """One process, its free memory unknown, a limited cache, two ranks on one CPU, two GPUs; then lines of devices."""
    displays = [
        EXAMPLE.lines(lambda device: 8 * GIB),
        list(EXAMPLE.lines(lambda device: None))[:2],
        MemoryPlan("policy on cpu", (CACHE,)).lines(lambda device: 8 * GIB),
        replace(EXAMPLE, parts=(*EXAMPLE.parts, BESIDE[1]), ranks=2, ranks_here=2).lines(lambda device: 16 * GIB),
        MemoryPlan("policy on cuda:0", BESIDE, ranks=2, ranks_here=2).lines(lambda device: 4 * GIB),
    ]
    engine = {"use": "vllm", "process": "own", "device": "cuda:1", "key_value_gib": 2.0}
    critic = {"select": "all", "advantage": "gae", "critic": {"form": "model"}}
    devices = [
        planned(),
        planned(rollout={"engine": {"use": "native", "dtype": "bfloat16"}}),
        planned(rollout={"engine": engine}, device="cuda"),
        planned(ranks_of=2),
        planned(ranks_of=2, ranks={"learner": "sharded"}),
        planned(ranks_of=2, **critic),
    ]
    text = "\n\n".join("\n".join(lines) for lines in (*displays, [plan.jobs for plan in devices]))
    assert_golden("plan", text)


def test_a_run_that_does_not_fit_is_refused_with_its_largest_parts():
    EXAMPLE.check(lambda device: EXAMPLE.need(device))
    EXAMPLE.check(lambda device: None)
    with refused(
        ConfigError, "cpu", "7.1 GiB", "activations 5.0 GiB", "weights 2.0 GiB", code="config.memory"
    ) as caught:
        EXAMPLE.check(lambda device: EXAMPLE.need(device) - 1)
    assert caught.value.remedy == "lower A; set B; use D"


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (2047, "2.0 KiB"), (150 * 2**20, "150 MiB"), (int(12.34 * GIB), "12.3 GiB")]
)
def test_sizes_for_a_person(size, text):
    assert format_bytes(size) == text


def test_only_the_policy_s_kind_of_device_is_assumed():
    free_on = assume_free(7, "cuda")
    assert (free_on("cuda:0"), free_on("cuda:1")) == (7, 7)
    assert free_on("cpu") != 7


FEW_ON_CPU = 'task = { use = "arithmetic", size = 64 }\ndevice = "cpu"\n'  # no more problems than a test reads
IN_PROCESS = "--set=verify.workers=0"  # `check` tries golds, for which a process would start


HUGE = ["update.tokens_per_micro_batch=2000000000", "rollout.prompts_per_step=64", "rollout.rollouts_per_prompt=500000"]


@pytest.mark.parametrize("command", ["check", "train"])
def test_a_run_that_cannot_fit_is_refused_before_it_starts(tmp_path, command):
    """Also there `check` shows where the memory goes; `train` prints no more than that it loads."""
    (tmp_path / "run.toml").write_text(f'{FEW_ON_CPU}output = "{tmp_path}/run"\n')
    sets = [*(f"--set={text}" for text in HUGE), *([IN_PROCESS] if command == "check" else [])]
    result = CliRunner().invoke(app, [command, str(tmp_path / "run.toml"), *sets])
    assert result.exit_code == 2
    assert "update.tokens_per_micro_batch" in result.stderr
    assert "model.gradient_checkpointing" in result.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    assert ("update.tokens_per_micro_batch = 2000000000" in result.stdout) == (command == "check")
    assert ("activations" in result.stdout) == (command == "check")
    assert command == "check" or len(result.stdout.splitlines()) <= 1


def test_check_prints_the_memory_plan(tmp_path):
    (tmp_path / "run.toml").write_text(FEW_ON_CPU)
    result = CliRunner().invoke(app, ["check", str(tmp_path / "run.toml"), IN_PROCESS])
    plan = planned(verify={"workers": 0})
    assert 'rollout.engine.use = "native"' in result.stdout
    assert plan.jobs in result.stdout
    for name in ("weights", "optimizer", "gradients"):
        assert f"{name} {format_bytes(part(plan, name).bytes)}" in result.stdout


def test_adapters_that_do_not_fit_the_model_are_refused_by_check(tmp_path):
    (tmp_path / "run.toml").write_text(FEW_ON_CPU + '[model.lora]\ntargets = ["nope"]\n')
    result = CliRunner().invoke(app, ["check", str(tmp_path / "run.toml"), IN_PROCESS])
    assert result.exit_code == 2
    assert "model.lora.targets" in result.stderr
    assert "nope" in result.stderr
