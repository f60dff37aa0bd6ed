"""Who computes where: the engine that `auto` becomes, the plan in words and numbers, and runs that cannot fit."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel
from typer.testing import CliRunner

from golden_files import assert_golden
from published_models import NAMES, make
from refusals import refused
from winnow.commands import app
from winnow.config_file import load as load_config
from winnow.config_file import validate
from winnow.engines.base import EngineContext
from winnow.engines.native.engine import native
from winnow.errors import ConfigError
from winnow.memory.plan import MemoryPart, MemoryPlan, assume_free
from winnow.memory.sizes import format_bytes, parse_bytes
from winnow.models.load import load
from winnow.models.meta import meta_model
from winnow.models.skeleton import Skeleton
from winnow.records import Prompt, Sampling
from winnow.training.device_plan import plan_devices
from winnow.training.resolve import resolve_members, with_engine

GIB = 2**30
CPU = torch.device("cpu")
GSM8K = Path(__file__).parents[3] / "configs" / "gsm8k.toml"


def planned(*, longest_prompt=20, device=CPU, memory=None, ranks_of=None, **keys):
    members = resolve_members(validate(keys), base=Path())
    return plan_devices(members, device, longest_prompt=longest_prompt, memory=memory, planned_ranks=ranks_of)


def part(plan, name):
    (found,) = [part for part in plan.parts if part.name == name]
    return found


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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", ["bundled", *NAMES])
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
        return [planned(device=torch.device(kind), memory=GIB, **run) for run in runs for kind in ("cpu", "cuda")]

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


def test_a_reference_is_planned_for_a_term_that_needs_it():
    kl = {"terms": [{"use": "kl", "coefficient": 0.1}]}
    assert not [p for p in planned().parts if p.name == "reference"]
    assert part(planned(**kl), "reference").bytes == part(planned(), "weights").bytes
    adapted = planned(model={"lora": {"rank": 2}}, **kl)
    assert part(adapted, "reference").bytes == part(adapted, "gradients").bytes


def test_a_micro_batch_is_as_large_as_allowed_but_no_larger_than_the_step():
    small = planned(rollout={"prompts_per_step": 1, "rollouts_per_prompt": 4, "max_new_tokens": 30})
    double = planned(rollout={"prompts_per_step": 2, "rollouts_per_prompt": 4, "max_new_tokens": 30})
    assert part(double, "activations").bytes == 2 * part(small, "activations").bytes
    limits = [part(planned(update={"tokens_per_micro_batch": n}), "activations").bytes for n in (1000, 2000)]
    assert limits[1] == 2 * limits[0]


def test_vllm_in_its_own_process_takes_its_share_of_the_second_device():
    engine = {"use": "vllm", "process": "own", "device": "cuda:1", "key_value_gib": 2.0}
    plan = planned(rollout={"engine": engine}, device=torch.device("cuda"))
    assert plan.devices == ["cuda:0", "cuda:1"]  # weights go over one by one
    assert plan.need("cuda:1") == part(plan, "weights").bytes + 2 * GIB


def test_vllm_on_a_cpu_takes_no_share_of_the_machine():
    plan = planned(rollout={"engine": "vllm"})
    assert part(plan, "vLLM's keys and values").bytes == 2 * GIB
    assert plan.devices == ["cpu"]


EXAMPLE = MemoryPlan(
    "policy on cpu",
    (
        MemoryPart("weights", 2 * GIB, "always", "cpu", ("use D",)),
        MemoryPart("activations", 5 * GIB, "update", "cpu", ("lower A", "set B")),
        MemoryPart("gradients", GIB // 8, "update", "cpu", ("train C",)),
        MemoryPart("keys and values", 3 * GIB, "generate", "cpu"),
    ),
)


def test_an_engine_of_the_user_s_own_is_not_ours_whatever_its_name():
    def vllm(context):
        raise AssertionError("a plan makes no engine")

    plan = planned(rollout={"engine": vllm})
    assert "vllm" in plan.jobs
    assert not [p for p in plan.parts if "vLLM" in p.name]
    assert part(planned(rollout={"engine": native}), "keys and values") == part(planned(), "keys and values")


def test_phases_do_not_coincide():
    assert EXAMPLE.need("cpu") == 2 * GIB + (5 * GIB + GIB // 8)


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
        planned(rollout={"engine": engine}, device=torch.device("cuda")),
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


FEW_ON_CPU = 'task = { use = "arithmetic", size = 64 }\ndevice = "cpu"\n'  # no more problems than a test reads
HUGE = ["update.tokens_per_micro_batch=2000000000", "rollout.prompts_per_step=64", "rollout.rollouts_per_prompt=500000"]


@pytest.mark.parametrize("command", ["check", "train"])
def test_a_run_that_cannot_fit_is_refused_before_it_starts(tmp_path, command):
    """Also there `check` shows where the memory goes; `train` prints no more than that it loads."""
    (tmp_path / "run.toml").write_text(f'{FEW_ON_CPU}output = "{tmp_path}/run"\n')
    result = CliRunner().invoke(app, [command, str(tmp_path / "run.toml"), *(f"--set={text}" for text in HUGE)])
    assert result.exit_code == 2
    assert "update.tokens_per_micro_batch" in result.stderr
    assert "model.gradient_checkpointing" in result.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    assert ("update.tokens_per_micro_batch = 2000000000" in result.stdout) == (command == "check")
    assert ("activations" in result.stdout) == (command == "check")
    assert command == "check" or len(result.stdout.splitlines()) <= 1


@pytest.fixture
def qwen(tmp_path):
    """The published settings of Qwen2.5-1.5B, with a small tokenizer and no weights."""
    make("qwen2.5", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    sizes = {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_attention_heads": 12,
        "num_hidden_layers": 28,
        "vocab_size": 151936,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **sizes}))
    return tmp_path


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
    found = {size: planned(device=torch.device("cuda"), memory=size * GIB, **keys) for size in (80, 60, 20)}
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
    plan = planned(rollout={"engine": "vllm"}, device=torch.device("cuda"), memory=80 * GIB)
    assert part(plan, "vLLM").bytes == 40 * GIB


def test_only_the_policy_s_kind_of_device_is_assumed():
    free_on = assume_free(7, "cuda")
    assert (free_on("cuda:0"), free_on("cuda:1")) == (7, 7)
    assert free_on("cpu") != 7


@pytest.mark.parametrize(
    ("text", "size"),
    [("80GiB", 80 * GIB), ("80 gb", 80 * 10**9), (" 1.5GiB ", 3 * GIB // 2), ("512MiB", 2**29), ("3MB", 3 * 10**6)],
)
def test_sizes_as_a_person_writes_them(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "80", "GiB", "80G", "80 Gib it", "-1GiB", "1e3GiB", "80KiB", "８0GiB", "1.GiB"])
def test_text_that_is_not_a_size_is_refused(text):
    with refused(ConfigError, repr(text), "GiB", "MB", code="config.value"):
        parse_bytes(text)


def test_check_prints_the_memory_plan(tmp_path):
    (tmp_path / "run.toml").write_text(FEW_ON_CPU)
    result = CliRunner().invoke(app, ["check", str(tmp_path / "run.toml")])
    assert 'rollout.engine.use = "native"' in result.stdout
    assert planned().jobs in result.stdout
    for name in ("weights", "optimizer", "gradients"):
        assert f"{name} {format_bytes(part(planned(), name).bytes)}" in result.stdout


def test_adapters_that_do_not_fit_the_model_are_refused_by_check(tmp_path):
    (tmp_path / "run.toml").write_text(FEW_ON_CPU + '[model.lora]\ntargets = ["nope"]\n')
    result = CliRunner().invoke(app, ["check", str(tmp_path / "run.toml")])
    assert result.exit_code == 2
    assert "model.lora.targets" in result.stderr
    assert "nope" in result.stderr


def parts_of(phase, **keys):
    return {part.name: part.bytes for part in planned(**keys).parts if part.phase == phase}


STEP = {"prompts_per_step": 2, "rollouts_per_prompt": 4, "max_new_tokens": 30}
GVM = {"allocate": "gvm", "rollout": STEP}


def test_groups_that_dynamic_sampling_adds_are_in_a_micro_batch_too():
    plain, refilled = (
        parts_of(
            "update", rollout={**STEP, "dynamic_sampling_rounds": rounds}, update={"tokens_per_micro_batch": 10**6}
        )
        for rounds in (0, 2)
    )
    assert refilled["activations"] == 3 * plain["activations"]


def test_passes_for_log_probs_are_planned_where_there_are_any():
    """8 rollouts of 20 + 30 tokens: keys and values of 3 layers x 2 heads x 32, and 240 x 512 logits twice."""
    assert parts_of("logprobs", rollout=STEP) == {}
    found = parts_of("logprobs", rollout=STEP, terms=[{"use": "kl", "coefficient": 0.1}])
    assert found["logits"] == 2 * 240 * 512 * 4
    model = load("bundled").model.config
    widest = 3 * model.intermediate_size + 4 * model.hidden_size
    assert found["forward pass"] == 400 * 4 * (widest + 3 * 2 * 2 * 32)


@pytest.mark.parametrize(
    ("matrix", "name"), [("embedding", "activations for norms"), ("output_head", "forward pass for norms")]
)
def test_passes_for_gradient_norms_are_planned_for_gvm(matrix, name):
    """Of one rollout's 30 tokens the logits three times; a probe of 1 x 2 prompts x 3 rollouts of 50 tokens."""
    assert parts_of("norms", rollout=STEP) == {}
    assert parts_of("norms", **GVM, probe={"gradient_norm": "none"}) == {}
    found = parts_of("norms", **GVM, probe={"gradient_norm": matrix, "every": 1, "rollouts_per_prompt": 3})
    assert set(found) == {name, "logits for norms"}
    assert found["logits for norms"] == 4 * 30 * 512 * 4
    double = parts_of("norms", **GVM, probe={"gradient_norm": matrix, "every": 2, "rollouts_per_prompt": 3})
    assert double[name] == 2 * found[name]


def test_the_norm_of_a_long_rollout_takes_the_head_s_gradient():
    """[512, 128] in float32, from where 128 multiplications per token are less than a token's with every other."""

    def part(tokens):
        probe = {"gradient_norm": "output_head", "every": 1, "rollouts_per_prompt": 1}
        found = parts_of("norms", allocate="gvm", rollout={**STEP, "max_new_tokens": tokens}, probe=probe)
        return found.get("output layer's gradient for norms", 0)

    assert [part(tokens) for tokens in (128, 129, 1000)] == [0, 512 * 128 * 4, 512 * 128 * 4]


@pytest.mark.parametrize("phase", ["update", "logprobs", "norms"])
def test_of_a_rollout_that_is_cut_the_passes_read_what_is_trained(phase):
    def found(tokens, **update):
        keys = {**GVM, "terms": [{"use": "kl", "coefficient": 0.1}], "update": update}
        return parts_of(phase, **{**keys, "rollout": {**STEP, "max_new_tokens": tokens}})

    assert found(300, max_trained_tokens=30) == found(30) != found(300)


def test_the_worst_phase_is_the_one_that_is_refused():
    parts = [MemoryPart(name, size, name, "cpu") for name, size in
             (("always", 1), ("update", 2), ("logprobs", 4), ("norms", 5), ("generate", 3))]  # fmt: skip
    assert MemoryPlan("", tuple(parts)).need("cpu") == 6


def test_logits_of_a_large_vocabulary_are_bounded(qwen):
    """441 tokens of 151,936 three times in float32, and the head's gradient twice, whatever the micro-batch; where that
    is large enough, a layer's backward takes more.
    """
    rollout = {"max_new_tokens": 512, "prompts_per_step": 64}
    for tokens in (4096, 8192, 65_536):
        update = {"tokens_per_micro_batch": tokens}
        found = parts_of("update", model={"path": str(qwen), "dtype": "float32"}, rollout=rollout, update=update)
        assert found.get("output layer", 0) == (3 * 441 + 2 * 1536) * 151_936 * 4 * (tokens < 65_536)
        assert ("a layer's backward" in found) == (tokens == 65_536)


def test_a_cut_distribution_takes_more_while_sampling():
    plain, cut = (parts_of("generate", evaluate={"top_p": p})["sampling"] for p in (1.0, 0.9))
    assert cut == plain * 40 / 24
