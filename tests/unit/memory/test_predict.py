"""Plans of whole runs: the engine that `auto` becomes, engines' parts, and the part that takes the remaining memory."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel
from typer.testing import CliRunner

from memory_plans import STEP, part, planned, planned_with, sizes
from published_models import NAMES, make
from refusals import refused
from winnow.commands import app
from winnow.config_file import load as load_config
from winnow.config_file import validate
from winnow.engines.base import EngineContext
from winnow.engines.native.engine import native
from winnow.errors import ConfigError
from winnow.memory.demand import of_one_rank
from winnow.memory.plan import format_bytes
from winnow.models.load import load
from winnow.models.meta import Skeleton, meta_model
from winnow.ranks import in_runs
from winnow.recipes import recipe_paths
from winnow.records import Prompt, Sampling
from winnow.training.budget import plan_devices
from winnow.training.resolve import resolve_members, with_engine
from winnow.view.text import parse_bytes

GIB = 2**30


CPU = torch.device("cpu")


GSM8K = recipe_paths()["gsm8k"]


@pytest.mark.parametrize(
    ("cuda_devices", "vllm", "device", "engine"),
    [
        (0, False, "auto", "native"),
        (0, True, "cpu", "native"),
        (1, True, "auto", "native"),
        (2, False, "auto", "native"),
        (2, True, "cpu", "native"),
        (2, True, "auto", "vllm"),
        (8, True, "cuda", "vllm"),
    ],
)
def test_auto_takes_vllm_on_a_second_device_and_native_without_one(cuda_devices, vllm, device, engine):
    chosen = with_engine(validate({"device": device}), cuda_devices=cuda_devices, vllm=vllm).rollout.engine
    assert chosen.label == engine
    assert chosen.options.get("device") == ("cuda:1" if engine == "vllm" else None)


def test_auto_takes_no_vllm_of_a_version_that_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("winnow.training.resolve.is_installed", lambda package: True)
    for versions, engine in ((None, "vllm"), (("0.19.0", ">=0.32"), "native")):
        monkeypatch.setattr("winnow.training.resolve.unsuitable_version", lambda package, found=versions: found)
        assert with_engine(validate({}), cuda_devices=2).rollout.engine.label == engine


def test_an_engine_that_is_named_stays():
    config = validate({"rollout": {"engine": "hf"}})
    assert with_engine(config, cuda_devices=8, vllm=True) is config
    repeatable = validate({"device": "cuda", "deterministic": True})
    assert with_engine(repeatable, cuda_devices=2, vllm=True).rollout.engine.use == "native"


def test_auto_has_no_options_of_its_own():
    config = validate({"rollout": {"engine": {"use": "auto", "dtype": "bfloat16"}}})
    with refused(ConfigError, "'auto'", key="rollout.engine.dtype"):
        with_engine(config, cuda_devices=0, vllm=False)


def test_auto_sets_only_options_that_vllm_has():
    vllm = importlib.import_module("winnow.engines.vllm.engine")
    config = with_engine(validate({}), cuda_devices=2, vllm=True)
    assert set(config.rollout.engine.options) <= set(vllm.vllm.__kwdefaults__)


ENGINES = [
    {"use": "native"},
    {"use": "native", "dtype": "bfloat16", "key_value_mb": 1},
    {"use": "hf"},
    {"use": "vllm", "process": "own", "key_value_gib": 0.5},
]


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        ("bundled", "float32"),
        *((model, "bfloat16") for model in ("bundled", *NAMES)),
        # slow: an arrangement knows nothing of the format, and each is planned in bfloat16
        *(pytest.param(model, "float32", marks=pytest.mark.slow) for model in NAMES),
    ],
)
def test_a_plan_from_settings_alone_is_the_plan_from_transformers_model(model, dtype, tmp_path, monkeypatch):
    path = model if model == "bundled" else str(make(model, tmp_path))
    # How a policy's activations and an engine's tables are counted has nothing in common: each way with one engine
    ways = ("none", "selective", "full", "none")
    runs = [
        {
            "model": {"path": path, "dtype": dtype, "gradient_checkpointing": checkpointing},
            "rollout": {"engine": engine, "max_new_tokens": 16},
            "prompt": {"max_prompt_tokens": 64},
            "terms": [{"use": "kl", "coefficient": 0.1}, {"use": "entropy", "coefficient": 0.1}],
        }
        for engine, checkpointing in zip(ENGINES, ways, strict=True)
    ]

    def plans():
        return [planned(device=kind, memory=GIB, **run) for run in runs for kind in ("cpu", "cuda")]

    assert isinstance(meta_model(path, dtype=dtype), Skeleton)
    found = plans()
    monkeypatch.setattr("winnow.models.meta.skeleton", lambda config, dtype: None)
    assert isinstance(meta_model(path, dtype=dtype), PreTrainedModel)
    assert found == plans()


def test_an_engine_is_resolved_before_the_run_is_written_down():
    assert resolve_members(validate({"device": "cpu"}), base=Path()).config.rollout.engine.label == "native"


def test_keys_and_values_are_native_s_own_tables_to_the_byte():
    """After the requests of a step and of an evaluation, sampled and greedy."""
    keys = {
        "rollout": {"prompts_per_step": 3, "rollouts_per_prompt": 4, "max_new_tokens": 5, "max_rollouts_at_once": 10},
        "evaluate": {"problems": 6, "rollouts_per_prompt": 2},
    }
    loaded = load("bundled")
    engine = native(
        EngineContext(
            model=loaded.model, tokenizer=loaded.tokenizer, stop_tokens=loaded.stop_tokens, max_rollouts_at_once=10
        )
    )
    prompts = [Prompt(id=f"p{i}", tokens=np.arange(3, 10 + i), text="", answer=None, task="") for i in range(6)]
    for some, each, temperature in ((3, 4, 1.0), (6, 2, 1.0), (6, 1, 0.0)):
        sampling = Sampling(max_new_tokens=5, temperature=temperature)
        engine.generate(prompts[:some], [each] * some, sampling, seed=(0,))
    assert part(planned(longest_prompt=12, **keys), "keys and values").bytes == engine.key_value_bytes


def test_a_prompt_is_held_once_by_native_and_by_every_rollout_in_hf():
    """Per token 3 layers x 2 heads x 32 x 2 x 4 bytes; 4 rollouts of 8 tokens on each of 2 prompts of 20."""
    rollout = {"prompts_per_step": 2, "rollouts_per_prompt": 4, "max_new_tokens": 8}
    evaluate = {"problems": 1, "rollouts_per_prompt": 1}
    token = 3 * 2 * 32 * 2 * 4
    shared = planned(rollout={**rollout, "engine": "native"}, evaluate=evaluate)
    assert part(shared, "keys and values").bytes == token * (2 * 20 + 8 * 8)
    copied = planned(rollout={**rollout, "engine": "hf"}, evaluate=evaluate)
    assert part(copied, "keys and values").bytes == token * 8 * (20 + 8)
    assert part(copied, "engine's copy").bytes == part(copied, "weights").bytes


def test_a_copy_in_less_precision_is_counted_in_that_precision():
    plan = planned(rollout={"engine": {"use": "native", "dtype": "bfloat16"}})
    assert part(plan, "engine's copy").bytes * 2 == part(plan, "weights").bytes


ROUNDED = {
    "rollout": {
        "engine": {"use": "native", "dtype": "bfloat16"},
        **{"prompts_per_step": 4, "rollouts_per_prompt": 8, "max_new_tokens": 64},
    },
    "evaluate": {"problems": 32, "rollouts_per_prompt": 8},
}


def test_an_exact_evaluation_has_exact_keys_and_values():
    """The largest request is the evaluation's, of 256 rollouts at once, in twice the bytes of bfloat16."""
    exact = planned(longest_prompt=40, **ROUNDED)
    own = planned(longest_prompt=40, **{**ROUNDED, "rollout": {**ROUNDED["rollout"], "engine": "native"}})
    assert exact.exact_evaluation
    assert part(exact, "keys and values").bytes == part(own, "keys and values").bytes
    small = planned(longest_prompt=40, **{**ROUNDED, "evaluate": {"problems": 1, "rollouts_per_prompt": 1}})
    token = 3 * 2 * 32 * 2 * 2
    assert part(small, "keys and values").bytes == token * (4 * 40 + 32 * 64)


def test_an_evaluation_is_exact_where_the_run_then_fits():
    """Or needs no more than otherwise: an update needs more than the rest here."""
    plan = planned(memory=GIB, **ROUNDED)
    assert plan.exact_evaluation
    worst = plan.need("cpu")
    wide = {**ROUNDED, "rollout": {**ROUNDED["rollout"], "max_new_tokens": 4096}, "update": {"max_trained_tokens": 8}}
    plans = [planned(memory=memory, **wide) for memory in (64 * GIB, 2**25)]
    assert [plan.exact_evaluation for plan in plans] == [True, False]
    assert part(plans[1], "keys and values").least * 2 == part(plans[0], "keys and values").least
    assert planned(memory=worst, **ROUNDED).exact_evaluation
    capped = {**wide, "rollout": {**wide["rollout"], "engine": {**wide["rollout"]["engine"], "key_value_mb": 4}}}
    assert not planned(memory=64 * GIB, **capped).exact_evaluation


def test_the_memory_that_native_is_allowed_bounds_its_tables():
    plan = planned(rollout={"engine": {"use": "native", "key_value_mb": 3}})
    assert part(plan, "keys and values").bytes == 3 * 2**20


def test_vllm_in_its_own_process_takes_its_share_of_the_second_device():
    engine = {"use": "vllm", "process": "own", "device": "cuda:1", "key_value_gib": 2.0}
    plan = planned(rollout={"engine": engine}, device="cuda")
    assert plan.devices == ["cuda:0", "cuda:1"]  # weights go over one by one
    assert plan.need("cuda:1") == part(plan, "weights").bytes + 2 * GIB


def test_vllm_s_devices_have_as_many_attention_heads_each(monkeypatch: pytest.MonkeyPatch):
    """The bundled policy has 4 heads."""
    monkeypatch.setattr("winnow.engines.vllm.engine._cuda_devices", lambda: 0)
    engine = {"use": "vllm", "process": "own", "key_value_gib": 2.0}
    planned(rollout={"engine": {**engine, "tensor_parallel": 2}})
    with refused(ConfigError, 3, 4, key="rollout.engine.tensor_parallel", code="config.unsupported"):
        planned(rollout={"engine": {**engine, "tensor_parallel": 3}})


def test_weights_that_sleep_are_in_the_host_s_memory():
    engine = {"use": "vllm", "process": "own", "device": "cuda:1", "key_value_gib": 2.0, "sleep": True}
    plan = planned(rollout={"engine": engine}, device="cuda")
    asleep, awake = part(plan, "vLLM's weights asleep"), part(plan, "vLLM's weights")
    assert (asleep.bytes, asleep.device, awake.device) == (awake.bytes, "cpu", "cuda:1")


def test_vllm_on_a_cpu_takes_no_share_of_the_machine():
    plan = planned(rollout={"engine": "vllm"})
    assert part(plan, "vLLM's keys and values").bytes == 2 * GIB
    assert plan.devices == ["cpu"]


def test_an_engine_of_the_user_s_own_is_not_ours_whatever_its_name():
    def vllm(context):
        raise AssertionError("a plan makes no engine")

    plan = planned(rollout={"engine": vllm})
    assert "vllm" in plan.jobs
    assert not [p for p in plan.parts if "vLLM" in p.name]
    assert part(planned(rollout={"engine": native}), "keys and values") == part(planned(), "keys and values")


def check_gsm8k(model, *arguments):
    return CliRunner().invoke(app, ["check", str(GSM8K), f"--set=model.path={model}", "--set=device=cuda", *arguments])


def test_the_documented_configuration_of_a_real_model_fits_a_card_of_80_gb(qwen):
    """With prompts as long as they may be, and a sixth of the card left to allocators and kernels."""
    members = resolve_members(load_config(GSM8K, [f"model.path={qwen}"]), base=GSM8K.parent)
    plan = plan_devices(members, torch.device("cuda"))
    assert part(plan, "gradients").bytes == 4 * 1_543_714_304, "the published model's parameters, in float32"
    assert plan.need("cuda:0") < 66 * GIB


@pytest.mark.parametrize(("memory", "code"), [("80GiB", 0), ("70 GB", 0), ("40GiB", 0), ("30GiB", 2), ("1 GB", 2)])
def test_check_answers_for_a_card_that_is_not_here(qwen, memory, code):
    result = check_gsm8k(qwen, "--memory", memory, "--set=task.path=owner/data")
    assert result.exit_code == code, result.output
    for part_or_size in ("cuda:0", "master weights", "activations", format_bytes(parse_bytes(memory))):
        assert part_or_size in result.stdout
    if code:
        assert "cuda:0" in result.stderr
        assert "model.lora" in result.stderr


def test_keys_and_values_make_do_with_what_the_rest_leaves(qwen):
    """Per token 28 layers x 2 x heads of 128; 512 rollouts of 16,384 tokens would take 80 cards."""
    model = {"path": str(qwen), "dtype": "bfloat16", "gradient_checkpointing": "full"}
    keys = {"model": model, "rollout": {"max_new_tokens": 16_384}}
    found = {size: planned(device="cuda", memory=size * GIB, **keys) for size in (80, 60, 20)}
    sizes = {size: part(plan, "keys and values").bytes for size, plan in found.items()}
    least = part(found[80], "keys and values").least
    assert sizes[80] - sizes[60] == pytest.approx(0.8 * 20 * GIB, abs=2)
    assert found[80].need("cuda:0") == pytest.approx(0.8 * 80 * GIB, abs=2)
    assert sizes[20] == least == part(found[20], "keys and values").least
    assert found[80].adjusted == sizes[80]
    with refused(ConfigError, 1, 8192, key="rollout.engine.key_value_mb", code="config.memory"):
        planned(memory=80 * GIB, rollout={"max_new_tokens": 8192, "engine": {"use": "native", "key_value_mb": 1}})
    bounded = planned(memory=80 * GIB, rollout={"engine": {"use": "native", "key_value_mb": 3}})
    assert bounded.adjusted is None
    assert part(found[80], "keys and values").wanted > sizes[80]
    assert part(planned(memory=80 * GIB), "keys and values").wanted is None, "there all rollouts fit"


def test_the_share_that_vllm_takes_is_of_the_card_that_is_not_here():
    plan = planned(rollout={"engine": "vllm"}, device="cuda", memory=80 * GIB)
    assert part(plan, "vLLM").bytes == 40 * GIB


@pytest.mark.parametrize(("ranks", "prompts"), [(1, 5), (2, 3), (3, 2), (8, 1)])
def test_a_rank_samples_the_prompts_that_it_is_dealt(ranks, prompts):
    """Per token 3 layers x 2 heads x 32 x 2 x 4 bytes; 4 rollouts of 8 tokens on each prompt of 20."""
    rollout = {"prompts_per_step": 5, "rollouts_per_prompt": 4, "max_new_tokens": 8}
    found = planned(ranks_of=ranks, rollout=rollout, evaluate={"problems": 1, "rollouts_per_prompt": 1})
    assert sizes(found, "always")["keys and values"] == 3 * 2 * 32 * 2 * 4 * prompts * (20 + 4 * 8)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_no_rank_is_dealt_more_than_is_planned_for(ranks):
    for loads in ([9] * 7, [9, 9, 9, 1, 1, 1, 1], [1, 9, 9, 1, 9, 9, 9], [1, 1, 1, 1, 1, 1, 9]):
        most = max(sum(loads[place] for place in part) for part in in_runs(loads, ranks))
        assert most <= 9 * of_one_rank(7, ranks)


def test_keys_and_values_take_what_the_others_of_the_machine_leave():
    rollout = {"max_new_tokens": 20_000, "max_rollouts_at_once": 512}
    one, two = (planned(ranks_of=n, rollout=rollout, memory=16 * GIB).need("cpu") for n in (1, 2))
    assert two == pytest.approx(one / 2, rel=1e-3)


def test_keys_and_values_make_do_with_what_it_leaves():
    long = {"rollout": {**STEP, "max_new_tokens": 20_000}}
    cards = {form: planned_with(form, device="cuda", memory=GIB, **long) for form in (None, "model")}
    cache = {form: sizes(plan, "always")["keys and values"] for form, plan in cards.items()}
    assert cards[None].adjusted is not None
    assert cache["model"] < cache[None]


def test_a_function_that_no_worker_can_import_judges_in_the_trainer():
    def reward(prompt, rollout):
        return 1.0

    few = {"task": "arithmetic", "verify": {"workers": 2}}
    chosen = (resolve_members(validate({**few, "reward": use}), base=Path()) for use in ("r1_zero", reward))
    assert ["2 workers" in plan_devices(members, CPU).jobs for members in chosen] == [True, False]


def test_hf_reads_the_conversation_before_each_turn():
    """Prompts of 20 tokens; a turn of at most 32 begins after at most 68 of 100."""
    rollout = {"prompts_per_step": 2, "rollouts_per_prompt": 4, "max_new_tokens": 100, "engine": "hf"}
    game = {"task": "guess_number", "environment": {"use": "guess_number", "max_turn_tokens": 32}}
    one, turns = (part(planned(rollout=rollout, **keys), "reading prompts").bytes for keys in ({}, game))
    assert turns * 20 == one * (20 + 68)
