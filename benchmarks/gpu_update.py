"""Updates of a configuration, as in a run: seconds, model FLOP utilisation, and memory compared with the plan.

Utilisation is the share of the vendor's operations per second that the model's arithmetic uses. Per token that is 6
operations per parameter (2 forward, 4 backward). The embedding is a lookup and does not count; the output layer counts
for completions only. Attention adds 12 per layer, hidden unit and token of context, half of which is masked (Chowdhery
et al. 2022, arXiv 2204.02311, appendix B, with causal attention). Recomputation by gradient checkpointing does not
count: if the whole forward pass is repeated, the device does 4/3 of the counted operations.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from gpu_lab import (
    GIB,
    SECONDS,
    Cost,
    Lab,
    begin_peak,
    ceilings,
    cost_of,
    held,
    random_model,
    random_prompts,
    release,
    share,
)

from winnow.config import ModelSection, UpdateSection
from winnow.config_file import validate
from winnow.core.members import Members
from winnow.learner.learner import Learner, make_learner
from winnow.learner.micro_batches import cut
from winnow.learner.model_input import length, sharing_pays
from winnow.models.device import keeps_masters
from winnow.models.load import load_tokenizer
from winnow.records import Batch, Rollout, TrainingSequence
from winnow.training.budget import plan_devices
from winnow.training.load import load_model
from winnow.training.resolve import resolve_members

PER_PROMPT = 16  # rollouts
FEWEST = 8  # rollouts in one micro-batch at the start of the search
BISECTIONS, REPEATS = 3, 3
UPDATING = ("always", "update")  # phases of the memory plan
LOADING = 15.0  # maximum seconds to load a shape
Keys = dict[str, Any]

CHECKPOINTING: tuple[Any, ...] = (  # its settings, none first and all last
    typing.get_args(ModelSection.model_fields["gradient_checkpointing"].annotation) or (False, True)
)
OFF, FULL = CHECKPOINTING[0], CHECKPOINTING[-1]
LAYOUTS: tuple[str, ...] = typing.get_args(UpdateSection.model_fields["layout"].annotation)
LORA: Keys = {"model": {"lora": {"rank": 16}}}
QUANTIZED: Keys = {"model": {"lora": {"rank": 16}, "quantization": "nf4"}}
EIGHT_BIT: Keys = {"optimizer": {"moments": "8bit"}}
ROUNDED: Keys = {"optimizer": {"master_weights": False, "stochastic_rounding": True}}


def checkpointed(how: Any) -> Keys:
    return {"model": {"gradient_checkpointing": how}}


TECHNIQUES: dict[str, tuple[Keys, ...]] = {  # each one separately, then all together
    "none": (),
    **{f"checkpointing {how}": (checkpointed(how),) for how in CHECKPOINTING[1:]},
    "stochastic rounding": (ROUNDED,),
    "8-bit moments": (EIGHT_BIT,),
    "lora": (LORA,),
    "nf4 and lora": (QUANTIZED,),
    f"8-bit moments, checkpointing {FULL}": (EIGHT_BIT, checkpointed(FULL)),
    f"lora, checkpointing {FULL}": (LORA, checkpointed(FULL)),
    f"nf4 and lora, checkpointing {FULL}": (QUANTIZED, checkpointed(FULL)),
}


@dataclass(frozen=True, slots=True)
class Training:
    """The model and learner of a run, without engine and data. Memory in use before its creation does not count."""

    members: Members
    learner: Learner
    cost: Cost
    before: int

    def update(self, batch: Batch) -> None:
        """Do an update as in a step."""
        for mb in self.learner.micro_batches(batch):
            self.learner.backward(self.members.objective(self.learner.forward(mb, self.members.needs), mb).total)
        self.learner.step()


def updates(lab: Lab) -> None:
    """Tokens per second, utilisation, and peak over plan, by shape, checkpointing and size of a micro-batch."""
    known = ceilings(lab)
    for shape in lab.sizes.shapes:
        with random_folder(shape, lab) as folder:
            for how in CHECKPOINTING:
                for tokens in lab.sizes.micro_batches:
                    point = {"shape": shape, "checkpointing": how, "tokens_per_micro_batch": tokens}
                    _update(lab, folder, point, known)


def layouts(lab: Lab) -> None:
    """An update on rollouts of unequal lengths, by shape, checkpointing and layout."""
    for shape in lab.sizes.shapes:
        with random_folder(shape, lab) as folder:
            for how in CHECKPOINTING:
                for layout in LAYOUTS:
                    _layout(lab, folder, {"shape": shape, "checkpointing": how, "layout": layout})


def memory(lab: Lab) -> None:
    """The most rollouts, with their prompts, that fit into one micro-batch on a card of a given size, by technique."""
    capped = lab.device.type == "cuda"
    total = torch.cuda.get_device_properties(lab.device).total_memory if capped else 1
    if capped:
        torch.cuda.set_per_process_memory_fraction(min(1.0, lab.sizes.cap_gib * GIB / total))
    try:
        for shape in lab.sizes.shapes:
            with random_folder(shape, lab) as folder:
                for name, keys in list(TECHNIQUES.items())[: 2 if lab.dry else None]:
                    _most(lab, folder, {"shape": shape, "technique": name}, keys)
    finally:
        if capped:
            torch.cuda.set_per_process_memory_fraction(1.0)


def most_that_fit(fits_at: Callable[[int], bool | None], most: int) -> tuple[int, int | None]:
    """The most rollouts known to fit, and the fewest known not to: double until they do not, then halve the gap.

    The search ends if `fits_at` returns None, for unknown, or at `most`.
    """
    fits, fails, rollouts = 0, None, FEWEST
    while fails is None and rollouts <= most:
        match fits_at(rollouts):
            case None:
                return fits, None
            case True:
                fits, rollouts = rollouts, 2 * rollouts
            case False:
                fails = rollouts
    for _ in range(BISECTIONS if fails is not None and fits else 0):
        middle = (fits + (fails or 0)) // 2
        answer = fits_at(middle)
        if answer is None:
            break
        fits, fails = (middle, fails) if answer else (fits, middle)
    return fits, fails


@contextmanager
def random_folder(shape: str, lab: Lab) -> Iterator[str]:
    """A model folder with random weights of a public shape, and the bundled tokenizer, which fits any vocabulary."""
    with TemporaryDirectory(prefix="winnow-gpu-") as folder:
        model = random_model(shape, lab)
        model.save_pretrained(folder)
        load_tokenizer("bundled").save_pretrained(folder)
        del model
        release(lab.device)
        yield folder


def _update(lab: Lab, folder: str, point: Mapping[str, Any], known: Mapping[str, float]) -> None:
    """Time an update with one way of checkpointing and one size of a micro-batch."""
    how, tokens = point["checkpointing"], point["tokens_per_micro_batch"]
    keys = _keys(lab, folder, lab.sizes.updated, tokens, (checkpointed(how),))
    found: list[Training] = []
    problem = _loaded(lab, keys, found)
    if not problem:
        training, batch = found[0], random_batch(lab, lab.sizes.updated, found[0].cost)
        parts = cut(batch.sequences, tokens=tokens)
        kind = f"update {point['shape']} {how}"
        size = len(batch.sequences) * lab.sizes.tokens
        record = dict(point) | {"rollouts": lab.sizes.updated, "micro_batches": len(parts)}
        record = lab.measure(kind, size, record, lambda: training.update(batch), repeats=REPEATS)
        if SECONDS in record:
            shared = how == OFF and all(sharing_pays([batch.sequences[i] for i in part]) for part in parts)
            prompts = sum(_prompts([batch.sequences[i] for i in part], shared) for part in parts)
            record |= _rates(lab, record[SECONDS], training.cost, prompts, known, again=how == FULL and how != OFF)
        lab.record(record | _beside_plan(lab, training, record.get("peak_gib")))
        del training
    else:
        lab.record(dict(point) | problem)
    found.clear()
    release(lab.device)


def _layout(lab: Lab, folder: str, point: Mapping[str, Any]) -> None:
    """Time an update in one layout. The first run compiles kernels."""
    tokens, (median, longest) = lab.sizes.micro_batches[0], lab.sizes.unequal
    changes = ({"update": {"layout": point["layout"]}, "rollout": {"max_new_tokens": longest}},)
    keys = _keys(lab, folder, lab.sizes.updated, tokens, (checkpointed(point["checkpointing"]), *changes))
    found: list[Training] = []
    problem = _loaded(lab, keys, found)
    if not problem:
        training = found[0]
        drawn = np.random.default_rng(0).lognormal(np.log(median), 0.8, lab.sizes.updated)
        batch = random_batch(lab, lab.sizes.updated, training.cost, np.clip(drawn, 1, longest).astype(int))
        real = sum(map(length, batch.sequences))
        record = dict(point) | {"rollouts": len(batch.sequences), "tokens": real}
        record["micro_batches"] = sum(1 for _ in training.learner.micro_batches(batch))
        kind = f"layout {point['shape']} {point['checkpointing']}"
        record = lab.measure(kind, real, record, lambda: training.update(batch), repeats=REPEATS)
        if SECONDS in record:
            record["tokens_per_second"] = round(real / record[SECONDS], 1)
        lab.record(record | _beside_plan(lab, training, record.get("peak_gib")))
        del training
    else:
        lab.record(dict(point) | problem)
    found.clear()
    release(lab.device)


def _most(lab: Lab, folder: str, point: dict[str, Any], keys: tuple[Keys, ...]) -> None:
    """Search for the most rollouts in one micro-batch. The first update creates the moments and is not counted."""
    found: list[Training] = []
    each = lab.sizes.prompt_tokens + lab.sizes.tokens
    everything = lab.sizes.most_rollouts * each
    problem = _loaded(lab, _keys(lab, folder, PER_PROMPT, everything, keys), found)
    if not problem:
        training = found[0]
        problem = lab.attempt(lambda: training.update(random_batch(lab, 1, training.cost)))
        peaks: dict[int, float | None] = {}

        def fits_at(rollouts: int) -> bool | None:
            release(lab.device)
            batch = random_batch(lab, rollouts, training.cost)
            record = lab.measure(
                f"most {point}", rollouts, {}, lambda: training.update(batch), warm_up=lambda: None, repeats=1
            )
            peaks[rollouts] = record.get("peak_gib")
            if SECONDS not in record:
                lab.attempt(training.learner.step)  # clears the gradients of an update that failed
            if "error" in record:
                lab.record(point | {"rollouts": rollouts, **record})
            return True if SECONDS in record else False if "out_of_memory" in record else None

        if not problem:
            fits, fails = most_that_fit(fits_at, lab.sizes.most_rollouts)
            point = point | {"most_rollouts": fits, "fails_at": fails, "tokens_each": each}
            if fits:
                planned = _members(lab, _keys(lab, folder, fits, everything, keys))
                point |= _beside_plan(lab, training, peaks[fits], planned)
        del training, fits_at
    lab.record(point | problem)
    found.clear()
    release(lab.device)


def _keys(lab: Lab, folder: str, rollouts: int, tokens: int, changes: tuple[Keys, ...]) -> Keys:
    """A configuration with this number of rollouts, and of tokens per micro-batch."""
    keys: Keys = {
        "device": lab.device.type,
        "model": {"path": folder, "dtype": "bfloat16"},
        "prompt": {"max_prompt_tokens": lab.sizes.prompt_tokens},
        "rollout": {"prompts_per_step": 1, "rollouts_per_prompt": rollouts, "max_new_tokens": lab.sizes.tokens},
        "select": "all",
        "update": {"tokens_per_micro_batch": tokens},
        "optimizer": {"learning_rate": 1e-6},
        "verify": {"workers": 0},
    }
    for change in changes:
        keys = {key: {**value, **change.get(key, {})} if key in change else value for key, value in keys.items()}
    return keys


def _members(lab: Lab, keys: Keys) -> Members:
    return resolve_members(validate(keys), base=lab.folder)


def _loaded(lab: Lab, keys: Keys, found: list[Training]) -> dict[str, Any]:
    """Append the training of a configuration to `found`; otherwise record the reason: error, memory or time."""
    if lab.left < LOADING and not lab.dry:
        return {"skipped": f"{lab.left:.0f} s left"}
    begin_peak(lab.device)
    before = held(lab.device)

    def load() -> None:
        members = _members(lab, keys)
        config = members.config
        tokenizer = load_tokenizer(config.model.path)
        loaded = load_model(config, lab.device, None, tokenizer, masters=keeps_masters(config))
        cost = cost_of(loaded.model)
        found.append(Training(members, make_learner(config, loaded, needs=members.needs, resumed=False), cost, before))

    problem = lab.attempt(load)
    release(lab.device)
    return problem


def _beside_plan(
    lab: Lab, training: Training, peak: float | None, members: Members | None = None
) -> dict[str, float | None]:
    """The memory plan of an update, and the ratio of the measured peak to it."""
    plan = plan_devices(members or training.members, lab.device, longest_prompt=lab.sizes.prompt_tokens)
    planned = sum(part.bytes for part in plan.parts if part.phase in UPDATING) / GIB
    above = None if peak is None else peak - training.before / GIB
    return {"planned_gib": round(planned, 3), "peak_over_plan": above and round(above / planned, 4)}


def _prompts(sequences: list[TrainingSequence], shared: bool) -> int:
    """Prompts that a micro-batch reads."""
    return len({sequence.prompt.id for sequence in sequences}) if shared else len(sequences)


def _rates(
    lab: Lab, seconds: float, cost: Cost, prompts: int, known: Mapping[str, float], *, again: bool
) -> dict[str, float | None]:
    """Tokens of prompts and completions per second, and utilisation; `again`: the forward pass is computed twice."""
    rollouts, prompt, tokens = lab.sizes.updated, lab.sizes.prompt_tokens, lab.sizes.tokens
    operations = _operations(cost, rollouts, prompts, prompt, tokens)
    return {
        "tokens_per_second": round(rollouts * (prompt + tokens) / seconds, 1),
        "model_tera_operations": round(operations / 1e12, 3),
        "mfu": share(operations / seconds, known["peak"]),
        "device_utilisation": share(operations / seconds * (4 / 3 if again else 1), known["peak"]),
        "share_of_measured_matmul": share(operations / seconds, known["matmul"]),
    }


def _operations(cost: Cost, rollouts: int, prompts: int, prompt: int, completion: int) -> int:
    """Operations of an update that reads `prompts`, forward and backward; prompts do not use the output layer."""
    read = prompts * prompt + rollouts * completion
    body = read * (cost.parameters - cost.head_parameters) + rollouts * completion * cost.head_parameters
    pairs = prompts * prompt * prompt // 2 + rollouts * completion * (prompt + completion // 2)
    return 6 * body + 3 * cost.attention_flops * pairs


def random_batch(lab: Lab, rollouts: int, cost: Cost, lengths: Sequence[int] | None = None) -> Batch:
    """Rollouts of these lengths (default: equal), several per prompt, of which every other one is right."""
    vocabulary, lengths = cost.vocabulary, [lab.sizes.tokens] * rollouts if lengths is None else lengths
    prompts = random_prompts(-(-rollouts // PER_PROMPT), lab.sizes.prompt_tokens, vocabulary)
    rng = np.random.default_rng(1)
    made = functools.partial(Rollout, text="", finish="length", version=0)
    return Batch(
        epoch=0,
        sequences=tuple(
            TrainingSequence(
                prompt=prompts[i // PER_PROMPT],
                rollout=made(index=i % PER_PROMPT, tokens=rng.integers(0, vocabulary, n), logprobs=np.zeros(n)),
                group=i // PER_PROMPT,
                advantage=1.0 if i % 2 else -1.0,
                weight=1.0 / sum(lengths),
            )
            for i, n in enumerate(lengths)
        ),
    )
