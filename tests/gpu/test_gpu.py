"""The same policy on a GPU: it samples and computes as on the CPU, learns, and is repeatable.

WINNOW_TEST_GPU=cpu runs all of it on the CPU, which shows that the tests themselves still run.
"""

from __future__ import annotations

import hashlib
import json
import os
import typing
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import winnow
from winnow.config import ModelSection
from winnow.core.mismatch import percentile_999
from winnow.engines.base import Engine, EngineContext
from winnow.engines.native.engine import native
from winnow.engines.sampling import ascending_sums, choose
from winnow.learner.adamw import stochastically_rounded
from winnow.learner.learner import compute_logprobs
from winnow.learner.policy import Policy
from winnow.models.device import set_deterministic
from winnow.models.load import Loaded, load
from winnow.records import Batch, Group, Matrix, Prompt, Rollout, Sampling, TrainingSequence
from winnow.seeds import generator
from winnow.state.logbook import read_metrics
from winnow.tasks.arithmetic import arithmetic
from winnow.tasks.templates import render

DEVICE = os.environ.get("WINNOW_TEST_GPU", "cuda")
CUDA = DEVICE == "cuda"
present = not CUDA or torch.cuda.is_available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not present, reason="needs a CUDA device")]

SEED = ("gpu",)
SAMPLING = Sampling(max_new_tokens=48)
ROLLOUTS = 32
BOUNDARY = 1e-5  # a uniform this close to a step of the cumulative distribution may fall on either side
CHECKPOINTING = typing.get_args(ModelSection.model_fields["gradient_checkpointing"].annotation) or (False, True)
LORA = {"lora": {"rank": 4, "alpha": 8.0}}


def policy(device: str, dtype: str = "float32") -> tuple[Loaded, list[Prompt]]:
    loaded = load("bundled", dtype=dtype, device=device)
    return loaded, render(arithmetic("validation")[:8], loaded.tokenizer, template="chat", max_prompt_tokens=64).prompts


def sample(loaded: Loaded, prompts: Sequence[Prompt], *, at_once: int = 512) -> tuple[Engine, list[Group]]:
    engine = native(
        EngineContext(
            model=loaded.model,
            tokenizer=loaded.tokenizer,
            stop_tokens=loaded.stop_tokens,
            max_rollouts_at_once=at_once,
        )
    )
    return engine, engine.generate(prompts, [ROLLOUTS] * len(prompts), SAMPLING, seed=SEED)


def flat(groups: Sequence[Group]) -> list[tuple[Prompt, Rollout]]:
    return [(group.prompt, rollout) for group in groups for rollout in group.rollouts]


def sequences(groups: Sequence[Group]) -> tuple[TrainingSequence, ...]:
    return tuple(
        TrainingSequence(prompt=prompt, rollout=rollout, group=place // ROLLOUTS, advantage=1.0, weight=1.0)
        for place, (prompt, rollout) in enumerate(flat(groups))
    )


def learner(loaded: Loaded, **options: Any) -> Policy:
    pad = loaded.tokenizer.pad_token_id
    return Policy(loaded.model, temperature=1.0, pad_token=pad, tokens_per_micro_batch=4096, **options)


@pytest.mark.parametrize("how", ["none", "selective", "full"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packed_rows_have_the_logprobs_and_gradients_of_padded_ones(dtype: str, how: str) -> None:
    """On a GPU through flex attention, compiled, which the CPU does not run."""
    rows, found = sequences(sample(*policy("cpu"))[1]), []
    for packed in (False, True):
        of = learner(policy(DEVICE, dtype)[0], gradient_checkpointing=how, packed=packed)
        pieces: dict[tuple[int, int], Tensor] = {}
        for mb in of.micro_batches(rows):
            logprobs = of.forward(mb).logprobs
            logprobs.sum().backward()  # type: ignore[no-untyped-call]
            lengths = [len(sequence.rollout.tokens) for sequence in mb.sequences]
            pieces |= dict(zip((s.key for s in mb.sequences), logprobs.detach().split(lengths), strict=True))
        gradient = torch.cat([p.grad.flatten().float() for p in of.parameters.values() if p.grad is not None])
        found.append((torch.cat([pieces[row.key] for row in rows]), gradient))
    (alone, expected), (together, gradient) = found
    if dtype == "float32":
        torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    assert (together - alone).abs().mean() < 0.02
    # In bfloat16 every micro-batch rounds the sum of the gradients, and the layouts cut others.
    assert (gradient - expected).norm() < (1e-4 if dtype == "float32" else 0.2) * expected.norm()


def distance_to_boundary(model: Any, prompt: Prompt, rollout: Rollout, column: int) -> float:
    """Between the uniform that drew this token and the nearest step of the distribution that it was drawn from."""
    before = np.concatenate([prompt.tokens, rollout.tokens[:column]])
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(before)[None]).logits[0, -1]
    steps = logits.double().softmax(-1).cumsum(-1).numpy()
    uniform = generator(*SEED, prompt.id, rollout.index).random(SAMPLING.max_new_tokens)[column]
    return float(np.abs(steps - uniform).min())


@pytest.mark.parametrize("at_once", [512, 37])
def test_native_draws_the_same_tokens_as_on_the_cpu(at_once: int) -> None:
    on_cpu, prompts = policy("cpu")
    _, expected = sample(on_cpu, prompts)
    _, found = sample(policy(DEVICE)[0], prompts, at_once=at_once)
    differing = 0
    for (prompt, one), (_, other) in zip(flat(expected), flat(found), strict=True):
        length = min(len(one.tokens), len(other.tokens))
        unequal = np.flatnonzero(one.tokens[:length] != other.tokens[:length])
        if len(unequal):
            differing += 1
            assert distance_to_boundary(on_cpu.model, prompt, one, int(unequal[0])) < BOUNDARY
        else:
            assert len(one.tokens) == len(other.tokens)
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)
    assert differing <= 2, f"{differing} of {len(flat(expected))} rollouts differ"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_native_reports_the_log_probs_of_the_policy(dtype: str) -> None:
    loaded, prompts = policy(DEVICE, dtype)
    engine, groups = sample(loaded, prompts)
    (filled,) = compute_logprobs(learner(loaded), [Batch(epoch=0, sequences=sequences(groups))], {"old_logprobs"})
    gaps = np.concatenate([np.abs(row.rollout.logprobs - np.asarray(row.old_logprobs)) for row in filled.sequences])
    assert gaps.mean() <= engine.logprob_tolerance.mean
    assert percentile_999(gaps) <= engine.logprob_tolerance.tail
    assert dtype != "float32" or gaps.max() <= 1e-4


@pytest.mark.parametrize("matrix", typing.get_args(Matrix))
def test_gradient_norms_are_those_of_the_cpu(matrix: Matrix) -> None:
    on_cpu, prompts = policy("cpu")
    rows = sequences(sample(on_cpu, prompts)[1])[:: ROLLOUTS // 2]
    expected = learner(on_cpu).gradient_norms(rows, of=matrix)
    found = learner(policy(DEVICE)[0]).gradient_norms(rows, of=matrix)
    np.testing.assert_allclose(found, expected, rtol=2e-3)


@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
@pytest.mark.parametrize("arch", ["qwen2", "llama"])
def test_a_training_step_runs(smallest: Callable[..., dict[str, Any]], arch: str, checkpointing: Any) -> None:
    config = smallest(arch, device=DEVICE, model={"gradient_checkpointing": checkpointing})
    result = winnow.train(**config, progress=False)
    steps = [row for row in read_metrics(result.folder) if "policy/grad_norm" in row]
    assert len(steps) == 2
    assert all(np.isfinite(row["policy/grad_norm"]) and row["policy/grad_norm"] > 0 for row in steps)


def saved(folder: Path, step: int) -> dict[str, torch.Tensor]:
    checkpoint = folder / "checkpoints" / f"step-{step:06d}"
    return {**load_file(checkpoint / "model.safetensors"), **load_file(checkpoint / "trainer.tensors")}


def test_bfloat16_weights_are_their_masters_rounded(smallest: Callable[..., dict[str, Any]]) -> None:
    result = winnow.train(**smallest(device=DEVICE, model={"dtype": "bfloat16"}), progress=False)
    tensors = saved(result.folder, 2)
    masters = {name.removesuffix("/master"): value for name, value in tensors.items() if name.endswith("/master")}
    assert masters
    for name, master in masters.items():
        assert master.dtype == torch.float32
        assert torch.equal(master.bfloat16(), tensors[name])
    between = [(master != master.bfloat16().float()).float().mean() for master in masters.values()]
    assert max(between) > 0.5, "what an update added is not rounded away"


def test_an_adapter_is_trained_in_float32_on_a_bfloat16_base(smallest: Callable[..., dict[str, Any]]) -> None:
    keys = smallest(device=DEVICE, model={"dtype": "bfloat16", **LORA})
    result = winnow.train(**keys, progress=False)
    assert result.model is not None
    (adapter,) = result.model.rglob("adapter_model.safetensors")
    weights = load_file(adapter)
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert any(weight.abs().max() > 0 for name, weight in weights.items() if "lora_B" in name)
    merged = load_file(result.model / "model.safetensors")
    assert merged["model.embed_tokens.weight"].dtype == torch.bfloat16


def test_stochastic_rounding_is_right_on_average() -> None:
    values = torch.full((1_000_000,), 1.0 + 2**-9, device=DEVICE)  # a quarter of the way from 1 to its neighbour
    random = torch.Generator(device=DEVICE).manual_seed(0)
    rounded = stochastically_rounded(values, random).float()
    assert sorted(rounded.unique().tolist()) == [1.0, 1.0 + 2**-7]
    assert float(rounded.mean() - 1) == pytest.approx(2**-9, rel=0.02)  # 11 standard errors


@pytest.fixture
def repeatable() -> Iterator[None]:
    """torch's deterministic mode is switched on, and off again."""
    set_deterministic(torch.device(DEVICE), deterministic=True)
    yield
    set_deterministic(torch.device(DEVICE), deterministic=False)


@pytest.mark.parametrize("columns", [64, 2374])
@pytest.mark.parametrize("rows", [1, 7, 512])
def test_repeatable_sums_ascend_and_never_draw_a_token_without_mass(repeatable: None, rows: int, columns: int) -> None:
    random = np.random.default_rng(rows)
    values = random.random((rows, columns)) * 10.0 ** random.integers(-30, 1, (rows, columns))
    values[random.random(values.shape) < 0.3] = 0.0
    found = ascending_sums(torch.from_numpy(values).to(DEVICE))
    assert torch.equal(found, ascending_sums(torch.from_numpy(values).to(DEVICE)))
    np.testing.assert_allclose(found.cpu().numpy(), values.cumsum(axis=1), rtol=1e-12)
    rises = np.diff(found.cpu().numpy(), axis=1, prepend=0.0)
    assert rises.min() >= 0
    assert (rises[values == 0] == 0).all()


@pytest.mark.parametrize("cut", [{}, {"top_p": 0.8}, {"top_k": 5}])
def test_a_repeatable_draw_is_that_of_the_cpu(repeatable: None, cut: dict[str, float]) -> None:
    random = np.random.default_rng(3)
    logits, u = torch.from_numpy(random.normal(0, 4, (2000, 500))).float(), torch.from_numpy(random.random(2000))
    settings = Sampling(max_new_tokens=1, **cut)
    expected, found = choose(logits, u, settings), choose(logits.to(DEVICE), u.to(DEVICE), settings)
    assert (found[0].cpu() != expected[0]).sum() <= 2, "float32 exponentials differ in their last bit"
    again = choose(logits.to(DEVICE), u.to(DEVICE), settings)
    assert torch.equal(found[0], again[0])
    assert torch.equal(found[1], again[1])


def digest(folder: Path, step: int) -> dict[str, str]:
    checkpoint = folder / "checkpoints" / f"step-{step:06d}"
    names = ("model.safetensors", "trainer.tensors")
    return {name: hashlib.sha256((checkpoint / name).read_bytes()).hexdigest() for name in names}


@pytest.mark.parametrize("model", [{}, {"dtype": "float32"}, LORA], ids=["bfloat16", "float32", "lora"])
def test_a_deterministic_run_repeats_itself_and_resumes_to_the_bit(
    smallest: Callable[..., dict[str, Any]], tmp_path: Path, model: dict[str, Any]
) -> None:
    keys = {
        "device": DEVICE,
        "deterministic": True,
        "model": {"dtype": "bfloat16", **model},
        "update": {"epochs": 2},
        "terms": [{"use": "entropy", "coefficient": 0.01}, {"use": "kl", "coefficient": 0.01}],
        "rollout": {"prompts_per_step": 8 if CUDA else 2, "rollouts_per_prompt": 16, "max_new_tokens": 24},
        "select": {"use": "max_variance", "keep_per_prompt": 8},
        "evaluate": {"every": 2, "top_p": 0.9},
        "checkpoint": {"every": 2},
    }
    found = {}
    try:
        for name in ("straight", "again"):
            winnow.train(**smallest(**keys, steps=4, output=str(tmp_path / name)), progress=False)
            found[name] = digest(tmp_path / name, 4)
        winnow.train(**smallest(**keys, steps=2, output=str(tmp_path / "resumed")), progress=False)
        winnow.train(**smallest(**keys, steps=4, output=str(tmp_path / "resumed")), progress=False, resume=True)
        found["resumed"] = digest(tmp_path / "resumed", 4)
    finally:
        set_deterministic(torch.device(DEVICE), deterministic=False)
    assert found["straight"] == found["again"] == found["resumed"]


def test_the_manifest_records_what_the_bits_depend_on(smallest: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    winnow.train(**smallest(device=DEVICE, steps=1), progress=False)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert ("gpu" in manifest) == CUDA
    if CUDA:
        assert manifest["gpu"].keys() == {"name", "driver", "cuda", "cudnn"}
        assert all(manifest["gpu"].values())


def waits(act: Callable[[], object]) -> int:
    """How often the host waits for the device in `act`, counted by torch; always 0 on the CPU."""
    if not CUDA:
        act()
        return 0
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            act()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sum("synchroniz" in str(warning.message) for warning in caught)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_no_micro_batch_waits_for_the_device(packed: bool) -> None:
    """transformers reads one flag per pass over padded rows; packed rows have no such read."""
    loaded, prompts = policy(DEVICE)
    _, groups = sample(loaded, prompts)
    model = Policy(
        loaded.model,
        temperature=1.0,
        pad_token=loaded.tokenizer.pad_token_id,
        tokens_per_micro_batch=2048,
        gradient_checkpointing="full",  # one pass over padded rows per micro-batch: no prompt is read apart
        packed=packed,
    )
    passes = 0

    def update() -> None:
        nonlocal passes
        for mb in model.micro_batches(sequences(groups)):
            mb.of_trained(mb.weights * model.forward(mb).logprobs).sum().backward()
            passes += 1

    update()  # the first one compiles, and sets up libraries
    first, passes = passes, 0
    found = waits(update)
    assert passes == first > 1
    assert found <= (0 if packed else passes)


def test_decoding_waits_a_fixed_number_of_times_per_token() -> None:
    """Once for the sampled tokens; and index arrays are uploaded, at most three times."""
    loaded, prompts = policy(DEVICE)
    engine = native(
        EngineContext(model=loaded.model, tokenizer=loaded.tokenizer, stop_tokens=(), max_rollouts_at_once=512)
    )

    def generate(tokens: int) -> None:
        engine.generate(prompts, [4] * len(prompts), Sampling(max_new_tokens=tokens), seed=SEED)

    generate(40)  # records the steps
    assert waits(lambda: generate(40)) - waits(lambda: generate(8)) <= 4 * 32
