"""Seconds of a step on GPUs that are not here, from counted operations and bytes, and what selection saves of them.

    nice -n 10 python benchmarks/step_times.py --write
    python benchmarks/step_times.py --counts RESULT.json --write

The operations of every pass, and the bytes of its collectives, are counted by torch's instruments in a rehearsed step
(winnow.commands.check.proof): shapes of Qwen2.5, bfloat16 with float32 masters, selective checkpointing, 8 ranks.
Everything else is stated: the peak and the utilisation of a card, the share of its memory's bandwidth, and the speed of
links. Nothing here was measured on a GPU.

    sampling   rounds of at most --at-once rollouts of full length: a token takes the larger of the time for the bytes
               of the weights and the time for the operations, and the time for keys and values at half length
    update     a micro-batch takes the larger of the time for the operations and the time for the gathered and
               scattered bytes, because FSDP2 exchanges a layer while another computes
    weights    gathered once for the engine's copy

The speed-up of selection is the time of a step that trains on all n rollouts of a prompt, over that of one that trains
on m. It says nothing of how many steps are needed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import frame
from proof import COMMON, KEYS, SHAPES

RANKS, TOKENS, PROMPT, COMPLETION = 8, 8_192, 128, 1_024
NODE = 8  # cards that a fast link connects
CARDS = (8, 64)
PAIRS = ((16, 4), (64, 16), (64, 4), (512, 128), (512, 16))
FRACTIONS = (1, 2, 4, 8, 16, 32, 64)  # n / m of the drawing, with n = 64
DRAWN = 64
ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "static" / "selection_speed_up.svg"
LEARNERS = ("replicated", "sharded")
LARGE = (48, 5_120, 13_824, 40, 8)  # of config.json of Qwen/Qwen2.5-14B-Instruct
PUBLISHED = {"3B": "pods_d.toml", "7B": "pods_e.toml", "14B": "pods_e.toml"}  # whose settings are planned


@dataclass(frozen=True)
class Card:
    """Stated speeds of a card."""

    operations: float  # per second, at the utilisation
    memory: float  # bytes per second, at the share of bandwidth
    link: float  # bytes per second that a card sends to others of its node
    network: float  # and to other nodes

    def exchange(self, size: float, cards: int) -> float:
        """Seconds in which a card gets or sums `size` bytes of all cards in a ring."""
        return size * (cards - 1) / cards / (self.link if cards <= NODE else self.network)


@dataclass(frozen=True)
class Model:
    """What was counted of a model."""

    update: float  # operations per token that the backbone reads
    prefill: float
    exchanged: float  # bytes that a micro-batch's update gathers and scatters
    weights: float  # bytes in the computing precision
    numbers: float
    keys: float  # bytes of keys and values of a token


def main() -> None:
    made = frame.parser(__doc__, prompts=(64, "of a step"), at_once=512)
    made.add_argument("--shapes", nargs="+", choices=tuple(SHAPES), default=["1.5B", "3B", "7B"])
    made.add_argument("--counts", type=Path, help="a result whose counts are used again")
    for name, default in {"teraflops": 989.0, "utilisation": 0.4, "memory-gb": 3350.0, "memory-share": 0.6}.items():
        made.add_argument(f"--{name}", type=float, default=default)
    for name, default in {"link-gb": 450.0, "network-gb": 50.0}.items():
        made.add_argument(f"--{name}", type=float, default=default)
    made.add_argument("--write", action="store_true", help="write the result and the picture")
    options = frame.parse(made)
    if options.counts is not None:
        counts = json.loads(options.counts.read_text())["counts"]
    else:
        counts = {shape: counted(shape) for shape in options.shapes}
    card = Card(
        operations=options.teraflops * 1e12 * options.utilisation,
        memory=options.memory_gb * 1e9 * options.memory_share,
        link=options.link_gb * 1e9,
        network=options.network_gb * 1e9,
    )
    models = {shape: model_of(found) for shape, found in counts.items()}
    report = {
        "plans": {size: {learner: planned(size, learner) for learner in LEARNERS} for size in PUBLISHED},
        "counts": counts,
        "steps": {
            f"{shape}, {cards} cards": {
                f"{n} -> {m}": rounded(step(model, card, cards, n, m, options)) for n, m in PAIRS
            }
            for shape, model in models.items()
            for cards in CARDS
        },
        "speed-up": {
            f"{shape}, {cards} cards": {
                f"{n} -> {m}": round(speed_up(model, card, cards, n, m, options), 2) for n, m in PAIRS
            }
            for shape, model in models.items()
            for cards in CARDS
        },
    }
    if options.write:
        draw(models, card, options)
        del options.counts
        frame.finish("step_times", report, options, show=("steps", "speed-up"))
    else:
        print(json.dumps(report, indent=1))


def counted(shape: str) -> dict[str, Any]:
    """Operations and bytes of each pass of a rehearsed step."""
    import torch

    from winnow.commands.check.proof import prove
    from winnow.config_file import validate
    from winnow.memory import footprint
    from winnow.training.budget import demand_of, log_probs_needed
    from winnow.training.resolve import resolve_members

    with tempfile.TemporaryDirectory(prefix="winnow-step-times-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(settings(shape)))
        config = {
            "model": {"path": folder, "dtype": "bfloat16", "gradient_checkpointing": "selective"},
            "select": "all",
            "allocate": "gvm",
            "prompt": {"max_prompt_tokens": PROMPT},
            "rollout": {"prompts_per_step": 64, "rollouts_per_prompt": 16, "max_new_tokens": COMPLETION},
            "terms": [{"use": "kl", "coefficient": 0.01}],
            "update": {"tokens_per_micro_batch": TOKENS, "updates_per_step": 2},
            "ranks": {"learner": "sharded"},
        }
        members = resolve_members(validate(config), base=Path())
        demand = demand_of(members, torch.device("cpu"), longest_prompt=PROMPT, planned_ranks=RANKS)
        found = prove(demand, needs=log_probs_needed(members))
    numbers = sum(p.numel() for p in demand.model.parameters())
    return {
        "numbers": numbers,
        "bytes of keys and values per token": footprint.key_value_bytes(demand.model, 1),
        "passes": {
            each.name: {
                "tokens": each.tokens,
                "completion tokens": each.completion_tokens,
                "operations": each.operations,
                "operations per token": round(each.operations / each.tokens),
                "operations per token / parameters": round(each.operations / each.tokens / numbers, 2),
                "gathered": each.gathered,
                "scattered": each.scattered,
            }
            for each in found.passes
        },
        "seconds": round(found.seconds, 1),
    }


def planned(size: str, learner: str) -> dict[str, float]:
    """GiB of a card by `winnow check --ranks 8 --memory 80GiB`: at most, at all times, and besides in an update."""
    import torch

    from winnow.config_file import load
    from winnow.training.budget import plan_devices
    from winnow.training.resolve import resolve_members

    with tempfile.TemporaryDirectory(prefix="winnow-step-times-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(settings(size)))
        changes = (f"model.path={json.dumps(folder)}", "rollout.engine.use='native'", f"ranks.learner={learner!r}")
        members = resolve_members(load(ROOT / "configs" / "published" / PUBLISHED[size], changes), base=ROOT)
        plan = plan_devices(members, torch.device("cuda"), memory=80 * 2**30, planned_ranks=RANKS)
    phases = {phase: plan._sum("cuda:0", phase) for phase in ("always", "update")}
    found = {"at most": plan.need("cuda:0"), "at all times": phases["always"], "in an update": phases["update"]}
    return {name: round(size / 2**30, 1) for name, size in found.items()}


def settings(size: str) -> dict[str, Any]:
    """Content of config.json."""
    sizes = dict(zip(KEYS, {**SHAPES, "14B": LARGE}[size], strict=True))
    own_head = size in ("7B", "14B")
    return {**COMMON, **sizes, "vocab_size": 152_064 if own_head else 151_936, "tie_word_embeddings": not own_head}


def model_of(found: dict[str, Any]) -> Model:
    update, prefill = found["passes"]["update"], found["passes"]["prefill"]
    return Model(
        update=update["operations"] / update["tokens"],
        prefill=prefill["operations"] / prefill["tokens"],
        exchanged=update["gathered"] + update["scattered"],
        weights=2 * found["numbers"],
        numbers=found["numbers"],
        keys=found["bytes of keys and values per token"],
    )


def step(model: Model, card: Card, cards: int, n: int, m: int, options: argparse.Namespace) -> dict[str, float]:
    """Seconds of the parts of a step."""
    prompts = max(1, options.prompts // cards)
    read = m * prompts * (PROMPT + COMPLETION)
    micro_batches = -(-read // TOKENS)
    computed = read * model.update / card.operations
    exchanged = micro_batches * card.exchange(model.exchanged, cards)
    return {
        "sampling": sampling(model, card, prompts, n, options),
        "update": max(computed, exchanged),
        "of the update, computing": computed,
        "of the update, exchanging": exchanged,
        "weights": card.exchange(model.weights, cards),
    }


def sampling(model: Model, card: Card, prompts: int, n: int, options: argparse.Namespace) -> float:
    """Seconds in which a card samples n rollouts of each of its prompts."""
    seconds, left = prompts * PROMPT * model.prefill / card.operations, prompts * n
    while left > 0:
        rows = min(left, options.at_once)
        token = max(model.weights / card.memory, 2 * model.numbers * rows / card.operations)
        token += rows * (PROMPT + COMPLETION / 2) * model.keys / card.memory
        seconds, left = seconds + COMPLETION * token, left - rows
    return seconds


def whole(parts: dict[str, float]) -> float:
    return parts["sampling"] + parts["update"] + parts["weights"]


def speed_up(model: Model, card: Card, cards: int, n: int, m: int, options: argparse.Namespace) -> float:
    """The time of a step that trains on all rollouts, over that of one that trains on m of n."""
    return whole(step(model, card, cards, n, n, options)) / whole(step(model, card, cards, n, m, options))


def rounded(parts: dict[str, float]) -> dict[str, float]:
    return {name: round(seconds, 3) for name, seconds in {**parts, "step": whole(parts)}.items()}


def draw(models: dict[str, Model], card: Card, options: argparse.Namespace) -> None:
    """The speed-up over the share of rollouts that is trained on, a panel for each number of cards."""
    from winnow.view.drawing import BLUE, GREEN, ORANGE, new_figure, save_figure

    figure = new_figure(8, 3.2)
    panels = figure.subplots(1, len(CARDS), sharey=True)
    for panel, cards in zip(panels, CARDS, strict=True):
        for (shape, model), colour, marker in zip(models.items(), (BLUE, ORANGE, GREEN), "osD", strict=False):
            kept = [DRAWN // fraction for fraction in FRACTIONS]
            gains = [speed_up(model, card, cards, DRAWN, m, options) for m in kept]
            panel.plot(kept, gains, color=colour, marker=marker, markersize=4, label=shape)
        panel.set_xscale("log", base=2)
        panel.set_xticks([DRAWN // fraction for fraction in FRACTIONS], [str(DRAWN // f) for f in FRACTIONS])
        panel.set_title(f"{cards} cards", fontsize=10)
        panel.set_xlabel(f"rollouts trained on, of {DRAWN} of a prompt")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("a step on all / a step on these")
    panels[0].legend(frameon=False)
    save_figure(figure, PICTURE)


if __name__ == "__main__":
    main()
