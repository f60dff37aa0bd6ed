"""No micro-batch of an update waits for the device, and decoding waits once per token: see pretended_device.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pretended_device import Pretended, pretended_device
from value_models import FORMS, ValueModels
from winnow.config_file import validate
from winnow.core.critic import CriticTally
from winnow.core.members import Members
from winnow.core.mismatch import Parity
from winnow.core.tally import Tally
from winnow.engines.base import EngineContext, Tolerance
from winnow.engines.native.decoder import Decoder
from winnow.engines.native.engine import native
from winnow.learner.learner import Learner, make_learner
from winnow.models.device import as_on_gpu
from winnow.models.load import load_tokenizer
from winnow.records import Batch, Prompt, Rollout, Sampling, TrainingSequence
from winnow.testing import tiny
from winnow.training.load import load_model
from winnow.training.resolve import resolve_members

CPU = torch.device("cpu")
NUMBERS = torch.arange(6.0)
OF_TRANSFORMERS = "find_packed_sequence_indices"  # reads one flag per pass over padded rows; see CONTRIBUTING.md

READS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda t: t[2].item(),
    "float": lambda t: float(t.sum()),
    "bool": lambda t: bool((t > 2).all()),
    "tolist": lambda t: t.tolist(),
    "cpu": lambda t: t.cpu(),
    "to cpu": lambda t: t.to("cpu"),
    "numpy": lambda t: t.numpy(force=True),
    "asarray": lambda t: np.asarray(t),
    "mask": lambda t: t[t > 2],
    "assigned by a mask": lambda t: t.clone().__setitem__(t > 2, t[0]),
    "masked_select": lambda t: t.masked_select(t > 2),
    "nonzero": lambda t: t.nonzero(),
    "where": lambda t: torch.where(t > 2),
    "unique": lambda t: t.unique(),
    "bincount": lambda t: torch.bincount(t.long()),
    "repeat_interleave": lambda t: t.repeat_interleave(t.long()),
    "equal": lambda t: torch.equal(t, t),
    "copied to the host": lambda t: torch.zeros(6).copy_(t),
}


@pytest.fixture(autouse=True)
def as_gpu() -> Iterator[None]:
    """Models are made and computed with as for a GPU."""
    with as_on_gpu():
        yield


@pytest.mark.parametrize("name", READS)
def test_a_read_of_the_device_is_found(name: str) -> None:
    with pretended_device() as seen:
        READS[name](NUMBERS)
    assert [finding.kind for finding in seen.findings] == ["read"]
    assert seen.findings[0].file == __file__


UPLOADS: dict[str, Callable[[], Any]] = {
    "to": lambda: torch.from_numpy(np.zeros(6)).to(CPU),
    "to another's": lambda: torch.tensor([1.0]).to(NUMBERS),
    "tensor": lambda: torch.tensor([1.0], device=CPU),
    "copied": lambda: NUMBERS.clone().copy_(torch.from_numpy(np.zeros(6))),
    "an index": lambda: NUMBERS[torch.from_numpy(np.zeros(6, dtype=np.int64))],
}


@pytest.mark.parametrize("name", UPLOADS)
def test_an_upload_that_waits_is_found(name: str) -> None:
    with pretended_device() as seen:
        UPLOADS[name]()
    assert [finding.kind for finding in seen.findings] == ["upload"]


def test_what_does_not_wait_is_not_found() -> None:
    with pretended_device() as seen:
        host = torch.from_numpy(np.arange(6.0))
        assert float(host.sum()) == 15
        assert host[host > 2].tolist() == [3, 4, 5]
        moved = host.to(CPU, non_blocking=True)
        assert (moved * NUMBERS).index_select(0, torch.arange(2, device=CPU)).shape == (2,)
        assert (NUMBERS * torch.tensor(2.0)).shape == (6,)  # a device takes a single number of the host
    assert seen.findings == []


def test_an_operation_on_tensors_of_host_and_device_is_found() -> None:
    """A GPU refuses it."""
    with pretended_device() as seen:
        NUMBERS + torch.zeros(6)
    assert [(finding.kind, finding.operator) for finding in seen.findings] == [("mixed", "add")]


def sequences(count: int = 9) -> tuple[TrainingSequence, ...]:
    """Rollouts of three prompts; one has a token that is not trained."""
    draw = np.random.default_rng(7)
    prompts = [Prompt(id=f"p{i}", tokens=draw.integers(3, 60, 4 + i), text="", answer=None, task="t") for i in range(3)]
    made = []
    for number in range(count):
        length = int(draw.integers(2, 9))
        rollout = Rollout(
            index=number,
            tokens=draw.integers(3, 60, length),
            logprobs=-draw.uniform(2, 5, length),
            text="",
            finish="stop",
            version=0,
            trainable=np.arange(length) != 1 if number == 1 else None,
        )
        prompt, advantage = prompts[number % 3], float(draw.normal())
        made.append(TrainingSequence(prompt=prompt, rollout=rollout, group=number % 3, advantage=advantage, weight=0.1))
    return tuple(made)


def learner_of(config: dict[str, Any]) -> tuple[Members, Learner]:
    members = resolve_members(validate(config), Path.cwd())
    loaded = load_model(members.config, CPU, None, load_tokenizer(members.config.model.path))
    return members, make_learner(members.config, loaded, needs=members.needs, resumed=False)


@contextmanager
def update(config: dict[str, Any]) -> Iterator[tuple[Pretended, Tally, Learner]]:
    """What the micro-batches of an update have done, before its optimizer step; there are several."""
    members, learner = learner_of(config)
    (batch,) = learner.compute_logprobs([Batch(epoch=0, sequences=sequences())], members.needs)
    tally = Tally(Parity(Tolerance(mean=1.0, tail=1.0), 0.5))
    with pretended_device() as seen:
        for mb in learner.micro_batches(batch):
            out = learner.forward(mb, members.needs)
            value = members.objective(out, mb)
            learner.backward(value.total)
            tally.add(value, out, mb)
        assert len(tally.unread) > 1
        yield seen, tally, learner


def waits(seen: Pretended) -> list[Any]:
    """Findings, without those that transformers makes: a flag per pass, where it looks for packed rows."""
    return [
        finding
        for finding in seen.findings
        if OF_TRANSFORMERS not in finding.function and not (finding.kind == "upload" and "winnow" not in finding.file)
    ]


KL: dict[str, Any] = {"terms": [{"use": "kl", "coefficient": 0.05}, {"use": "entropy", "coefficient": -0.01}]}
UPDATES: dict[str, dict[str, Any]] = {
    "shared prompts, clip": {"loss": {"use": "clip"}},
    "padded, importance": {
        "model": {"gradient_checkpointing": "selective"},
        "correction": {"use": "token_truncate", "most": 2.0},
        "loss": {"use": "cispo"},
    },
    "packed, gspo, kl": {"update": {"layout": "packed"}, "loss": {"use": "gspo"}, **KL},
    "lora, full checkpointing, kl": {"model": {"lora": {"rank": 4}, "gradient_checkpointing": "full"}, **KL},
    "bfloat16 with masters": {"model": {"dtype": "bfloat16"}},
    "bfloat16, rounded": {
        "model": {"dtype": "bfloat16"},
        "optimizer": {"master_weights": False, "stochastic_rounding": True},
    },
}


@pytest.fixture
def configured(tiny_folder: Callable[[str], Path]) -> Callable[..., dict[str, Any]]:
    def configuration(**more: Any) -> dict[str, Any]:
        model = {"path": str(tiny_folder("qwen2")), "dtype": "float32", **more.get("model", {})}
        return {**more, "model": model, "update": {"tokens_per_micro_batch": 64, **more.get("update", {})}}

    return configuration


@pytest.mark.parametrize("name", UPDATES)
def test_no_micro_batch_of_an_update_waits_for_the_device(name: str, configured: Any) -> None:
    with update(configured(**UPDATES[name])) as (seen, tally, learner):
        assert waits(seen) == []
        result = learner.step()
        before = len(seen.findings)
        tally.close(result)
        assert [finding.operator for finding in seen.findings[before:]] == ["numpy"]  # one copy for all micro-batches
    assert tally.parity.metrics()["policy/logprob_gap_mean"] > 0


def test_old_log_probs_are_read_once_per_batch(configured: Any) -> None:
    _, learner = learner_of(configured())
    batches = [Batch(epoch=0, sequences=sequences(count)) for count in (9, 5)]
    with pretended_device() as seen:
        learner.compute_logprobs(batches, {"old_logprobs"})
    assert [finding.operator for finding in waits(seen)] == ["cpu", "cpu"]


@pytest.mark.parametrize("form", ["shared", "model with lora"])
def test_no_micro_batch_of_a_value_model_waits(form: str, configured: Any) -> None:
    config = configured(**FORMS[form])
    made, tally = ValueModels(config, dtype="float32"), CriticTally()
    values = made.trained.values(sequences())
    batch = Batch(
        epoch=0, sequences=tuple(s.fill(values=values[s.key], returns=values[s.key] + 1.0) for s in sequences())
    )
    with pretended_device() as seen:
        for mb in made.trained.micro_batches(batch):
            value = made.loss(mb)
            made.trained.backward(value.total)
            tally.measure(value)
        assert len(tally.unread) > 1
        assert waits(seen) == []


def test_a_planted_wait_in_a_micro_batch_is_found(configured: Any, monkeypatch: Any) -> None:
    backward = Learner.backward

    def read_and_backward(learner: Learner, scalar: Tensor) -> None:
        scalar.detach().item()
        backward(learner, scalar)

    monkeypatch.setattr(Learner, "backward", read_and_backward)
    with update(configured()) as (seen, tally, _):
        found = waits(seen)
    assert Counter(finding.kind for finding in found) == {"read": len(tally.unread)}
    assert {finding.function for finding in found} == {read_and_backward.__qualname__}


def waits_of_decoding(tokens: int) -> int:
    """Reads of the device while five rollouts of two prompts get this many tokens each."""
    loaded = tiny()
    context = EngineContext(model=loaded.model, tokenizer=loaded.tokenizer, stop_tokens=(), max_rollouts_at_once=8)
    prompts = [Prompt(id=str(n), tokens=np.arange(3, 3 + n), text="", answer=None, task="t") for n in (4, 6)]
    engine = native(context)
    with pretended_device() as seen:
        groups = engine.generate(prompts, [3, 2], Sampling(max_new_tokens=tokens), seed=(1,))
    assert {len(rollout.tokens) for group in groups for rollout in group.rollouts} == {tokens}
    assert not seen.of("upload", within="sampling.py")  # it would wait for the pass that was just submitted
    return len(seen.of("read"))


def test_decoding_waits_once_per_token() -> None:
    """The host decides which rollouts end. Reads of the prefill do not depend on the number of tokens."""
    assert waits_of_decoding(12) - waits_of_decoding(4) == 8


def test_a_planted_wait_per_token_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = Decoder.decode

    def decode_and_read(decoder: Decoder, *arrays: Any) -> Tensor:
        logits = decode(decoder, *arrays)
        logits.isfinite().all().item()
        return logits

    monkeypatch.setattr(Decoder, "decode", decode_and_read)
    assert waits_of_decoding(12) - waits_of_decoding(4) == 2 * 8
