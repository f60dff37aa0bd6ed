"""Check that both sides compute the same: same weights, same rollouts, same loss, same gradient."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from trl_peer import Peer
from trl_sides import Measured, Setting, completions
from trl_winnow import Ours

from winnow.core.batches import make_batches
from winnow.core.collect import collect
from winnow.core.plan import plan
from winnow.core.sample import StepRequest
from winnow.core.select import fill_keep
from winnow.core.step import fill_advantages
from winnow.records import Batch, FloatArray, Prompt, TrainingSequence

TOLERANCE = 1e-5
Gradients = dict[str, Tensor]


def prove(setting: Setting, folder: Path, *, micro_batch: int) -> dict[str, dict[str, float]]:
    """Relative differences by precision, those of the last one at most 1e-5. Raises SystemExit otherwise.

    They are computed in float32, and again in float64 if one of them is larger: the rounding errors of many layers may
    exceed 1e-5 although both sides compute the same.
    """
    found: dict[str, dict[str, float]] = {}
    for dtype in ("float32", "float64"):
        found[dtype] = differences(setting.but(dtype=dtype), folder, micro_batch=micro_batch)
        beyond = {name: value for name, value in found[dtype].items() if not value <= TOLERANCE}
        if not beyond:
            return found
    raise SystemExit(f"the two sides do not compute the same thing, so their speeds mean nothing: {beyond}")


def differences(setting: Setting, folder: Path, *, micro_batch: int) -> dict[str, float]:
    """Relative differences between the sides in the precision of a setting.

    At ratio 1 the loss is the mean of centred advantages, 0 up to rounding. The losses are therefore compared with old
    log-probs that differ from the policy's, some of them beyond the clip. The last two compare a whole step with each
    side's training loop, TRL's with its micro-batches and accumulation.
    """
    setting = setting.but(problems=setting.prompts)
    groups = Ours(setting, folder).sample(seed=0)
    ours = Ours(setting, folder, replay=groups)
    prompts = ours.prompts()
    order = {group.prompt.id: group for group in groups}
    replay = completions([order[prompt.id] for prompt in prompts])
    peer = Peer(setting, prompts, folder, micro_batch=setting.total, replay=replay)
    batch = _batch(ours)
    moved = _off_policy(ours, batch)
    fresh_ours, fresh_theirs = _ours(ours, batch), _theirs(peer, prompts, None)
    moved_ours, moved_theirs = _ours(ours, moved), _theirs(peer, prompts, moved)
    return {
        "gradient, ratio 1": _distance(fresh_ours[1], fresh_theirs[1]),
        "gradient norm, ratio 1": _relative(_norm(fresh_ours[1]), _norm(fresh_theirs[1])),
        "loss, off policy": _relative(moved_ours[0], moved_theirs[0]),
        "gradient, off policy": _distance(moved_ours[1], moved_theirs[1]),
        "gradient norm, off policy": _relative(_norm(moved_ours[1]), _norm(moved_theirs[1])),
        **_whole_step(Peer(setting, prompts, folder, micro_batch=micro_batch, replay=replay), ours),
    }


def _batch(ours: Ours) -> Batch:
    """The sequences of the first step, as in train_step."""
    run, progress = ours.run, ours.built.progress
    plan(run, progress, 0)
    prompts = run.prompts.take(progress.history.drawn(0))
    counts = progress.history.plan(prompts, 0)
    request = StepRequest(run, 0, prompts, counts, progress.history, progress.phases.rollout_counter, nullcontext)
    groups = collect(run.engine, run.verifiers, request.round(counts))
    groups = fill_advantages(run.members.advantage, [fill_keep(run.members, group, 0) for group in groups])
    (batch,) = make_batches(
        groups,
        run.members.weighting,
        epochs=1,
        updates_per_step=1,
        max_new_tokens=run.sampling.max_new_tokens,
        planned=len(prompts),
        pass_rates=None,
        seed=("parity",),
    )
    if len(batch.sequences) != ours.setting.total:
        raise SystemExit(f"{ours.setting.total - len(batch.sequences)} of the rows taught nothing; take another seed")
    return batch


def _off_policy(ours: Ours, batch: Batch) -> Batch:
    """With old log-probs around the policy's, lower for better rollouts: some ratios are clipped, and the loss
    does not cancel.
    """
    (annotated,) = ours.run.learner.compute_logprobs([batch], {"old_logprobs"})
    rng = np.random.default_rng(0)

    def shifted(row: TrainingSequence) -> FloatArray:
        assert row.old_logprobs is not None
        around = rng.normal(-0.1 * np.sign(row.advantage), 0.15, len(row.old_logprobs))
        return (row.old_logprobs + around).astype(np.float32).astype(np.float64)  # TRL keeps them in float32

    sequences = tuple(dataclasses.replace(row, old_logprobs=shifted(row)) for row in annotated.sequences)
    return dataclasses.replace(batch, sequences=sequences)


def _ours(ours: Ours, batch: Batch) -> tuple[float, Gradients]:
    learner, loss = ours.run.learner, 0.0
    for mb in learner.micro_batches(batch):
        value = ours.run.members.objective(learner.forward(mb), mb)
        learner.backward(value.total)
        loss += float(value.total.detach())
    return loss, _take_gradients(ours.run.learner.parameters)


def _theirs(peer: Peer, prompts: list[Prompt], batch: Batch | None) -> tuple[float, Gradients]:
    inputs = peer.inputs(prompts)
    if batch is not None:
        inputs["old_per_token_logps"] = _padded(batch, prompts, inputs["completion_ids"].shape)
    loss = peer.trainer.compute_loss(peer.trainer.model, inputs)
    loss.backward()
    return float(loss.detach()), _take_gradients(dict(peer.trainer.model.named_parameters()))


def _padded(batch: Batch, prompts: list[Prompt], shape: tuple[int, int]) -> Tensor:
    """Old log-probs in TRL's order and form: [completions, longest], 0 at padding."""
    place = {prompt.id: i for i, prompt in enumerate(prompts)}
    per_prompt = shape[0] // len(prompts)
    old = torch.zeros(shape)
    for row in batch.sequences:
        assert row.old_logprobs is not None
        numbers = torch.from_numpy(row.old_logprobs)
        old[place[row.prompt.id] * per_prompt + row.rollout.index, : len(numbers)] = numbers
    return old


def _whole_step(peer: Peer, ours: Ours) -> dict[str, float]:
    """Reward and gradient norm as each side's training loop logs them."""
    seen: list[Measured] = []

    def after(measured: Measured) -> bool:
        seen.append(measured)
        return False

    peer.run(after)
    logged = next(entry for entry in peer.trainer.state.log_history if "grad_norm" in entry)
    reward = ours().reward
    return {
        "gradient norm, whole step": _relative(ours.metrics["policy/grad_norm"], logged["grad_norm"]),
        "mean reward, whole step": _relative(reward, seen[0].reward),
    }


def _take_gradients(parameters: Mapping[str, torch.nn.Parameter]) -> Gradients:
    found = {name: p.grad.clone() for name, p in parameters.items() if p.grad is not None}
    for p in parameters.values():
        p.grad = None
    return found


def _norm(gradients: Gradients) -> float:
    return float(torch.cat([g.double().flatten() for g in gradients.values()]).norm())


def _distance(ours: Gradients, theirs: Gradients) -> float:
    """The relative L2 difference."""
    return _norm({name: ours[name].double() - theirs[name].double() for name in ours}) / _norm(theirs)


def _relative(ours: float, theirs: float) -> float:
    return abs(ours - theirs) / abs(theirs)
