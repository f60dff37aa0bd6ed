"""winnow's training step and TRL's, in one process and in turn: the same model, prompts, lengths and objective.

    python benchmarks/trl_step.py                          every point, 5 pairs each: a quarter of an hour
    python benchmarks/trl_step.py --points step pods       some of them
    python benchmarks/trl_step.py --shape 40m --lengths fixed --points generation update step pods \
        --prompts 4 --rollouts 8 --keep 2 --dtype bfloat16
    python benchmarks/trl_step.py --shape published --lengths fixed --fixed-tokens 32 --points generation update step \
        pods --prompts 4 --rollouts 16 --keep 4 --rounds 3            SmolLM2-135M: 40 minutes
    python benchmarks/trl_step.py --ranks 2 --points step pods     both sides with 2 processes of one thread
    python benchmarks/trl_step.py --quick                  a smoke test; its figures mean nothing and are not written

Needs `trl` (1.16.0, or 1.10.0 with `requests`) beside winnow; the file is not called trl.py, as that would hide the
package. First both sides compute loss and gradient of one fixed batch, which must agree within 1e-5 (trl_parity.py),
in float64 if float32 is too coarse. The embedding of the padding token is trained on both sides (trl_peer.py).
Then, per point, TRL and winnow do one step each in turn, after 2 of each as a warm-up. The result is the median of
the ratios per pair. With --ranks, each side is data-parallel, TRL by the Trainer's DistributedDataParallel over gloo,
and the seconds are those of rank 0; the proof of equal gradients is that of a run without --ranks.

generation  the same prompts, sampled by the base policy
update      forward, backward, clipping and optimizer on the same rollouts
step        the whole step at n = m
pods        winnow samples n and trains on m (max_variance); TRL samples and trains on n
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import frame
import numpy as np
import torch
import trl_parity
from trl_peer import Peer, fastest_micro_batch, update_of
from trl_sides import NOTES, Measured, Setting, completions
from trl_winnow import Ours

from winnow import ranks
from winnow.models.architecture import architecture
from winnow.models.load import load
from winnow.models.save import write_model_folder
from winnow.records import Group, Prompt

LENGTHS = ("natural", "fixed")
POINTS = ("generation", "update", "step", "pods")
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}  # read when the libraries are imported
WARM_UP = 2
Pair = dict[str, Measured]
Report = dict[str, Any]


def main() -> None:
    options = _options()
    if options.ranks > 1 and "RANK" not in os.environ:
        launch(options.ranks)
        return
    if os.environ.get("HF_HUB_OFFLINE") != "1":
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **OFFLINE})
    warnings.filterwarnings("ignore", category=FutureWarning)
    with ranks.joined(timeout_seconds=600), tempfile.TemporaryDirectory(prefix="winnow-trl-") as own:
        (name, *_), writes = ranks.gather_from_all(own), ranks.is_writer()  # the folder of rank 0
        with contextlib.nullcontext() if writes else contextlib.redirect_stdout(None):
            report = _measure(options, Path(name))
        ranks.gather_from_all(None)  # the folder is removed after all have finished
    if not writes:
        return
    packages = (*frame.PACKAGES, "trl", "accelerate", "datasets")
    suffix = "" if options.shape == "bundled" else f"_{options.shape}_{options.dtype}"
    suffix += f"_{options.ranks}_ranks" if options.ranks > 1 else ""
    frame.finish("trl_" + version("trl").replace(".", "_") + suffix, report, options, packages=packages)


def launch(count: int) -> None:
    """Run one process of this script per rank, with the variables of torch's launchers and one thread, until all exit.

    If one fails, all are stopped and this process exits. If this one is stopped, so are they.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # otherwise the ranks would continue without this process
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, **OFFLINE, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    children = list[subprocess.Popen[bytes]]()
    try:
        for rank in range(count):
            own = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            children.append(subprocess.Popen([sys.executable, *sys.argv], env=own))
        codes = [child.wait() for child in children]
    finally:
        for child in children:
            child.kill()
    if any(codes):
        sys.exit(f"a rank failed: exit codes {codes}")


def _options() -> argparse.Namespace:
    parser = frame.parser(
        __doc__,
        rounds=(5, "pairs per point, after 2 to warm up"),
        threads=2,
        prompts=(8, "prompts per step"),
        fixed_tokens=64,
        keep=(16, "m of PODS; its n is the largest of --rollouts"),
        ranks=(1, "processes of each side, of one thread each"),
    )
    shapes = ("bundled", "40m", "published")
    parser.add_argument("--shape", choices=shapes, default="bundled", help="40m: random weights; published: a folder")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--lengths", nargs="+", choices=LENGTHS, default=LENGTHS, metavar="KIND", help="natural, fixed")
    parser.add_argument("--points", nargs="+", choices=POINTS, default=POINTS, metavar="POINT", help=", ".join(POINTS))
    parser.add_argument("--rollouts", type=int, nargs="+", default=(16, 64), help="n = m, one point each")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=(), help="TRL's, to choose the fastest from")
    options = frame.parse(parser)
    if options.shape != "bundled" and "natural" in options.lengths:
        parser.error("natural lengths are those of the bundled policy: ask for --lengths fixed")
    if options.ranks > 1:
        torch.set_num_threads(1)
        if not set(options.points) <= {"step", "pods"} or options.shape != "bundled":
            parser.error("several ranks measure --points step pods of the bundled policy")
    return options


def _measure(options: argparse.Namespace, folder: Path) -> Report:
    model = random_weights(folder) if options.shape == "40m" else options.shape
    lengths = base_lengths(folder) if "natural" in options.lengths else {"p99": 0}
    natural = Setting(model=model, prompts=options.prompts, rollouts=0, max_new_tokens=lengths["p99"])
    fixed = natural.but(fixed=True, max_new_tokens=options.fixed_tokens)
    shapes = [shape for name, shape in zip(LENGTHS, (natural, fixed), strict=True) if name in options.lengths]
    settings = [shape.but(rollouts=n) for shape, n in itertools.product(shapes, options.rollouts)]
    proven = settings[0]
    if options.shape != "bundled":  # few tokens: the proof of a larger policy would take minutes
        proven = proven.but(rollouts=4, max_new_tokens=16)
    parity = trl_parity.prove(proven, folder, micro_batch=proven.total // 2) if options.ranks == 1 else None
    settings = [setting.but(dtype=options.dtype) for setting in settings]
    print(json.dumps({"natural lengths": lengths, "parity": parity}, indent=1), flush=True)
    points = []
    for setting in settings:
        for point in _points(setting, options, folder):
            points.append(point)
            print(_lines(point), flush=True)
    return {"natural_lengths": lengths, "parity": parity, "notes": NOTES, "points": points}


def random_weights(folder: Path) -> str:
    """A model folder of some 40 million parameters, drawn at random, with the bundled tokenizer."""
    bundled = load("bundled")
    model = architecture("qwen2", bundled.tokenizer, hidden=512, layers=10, heads=8, kv_heads=4, intermediate=2048)
    write_model_folder(model, bundled.files, folder / "40m")
    return str(folder / "40m")


def base_lengths(folder: Path) -> dict[str, Any]:
    """Completion lengths of the base policy, which define `natural`. Raises SystemExit if the longest ones dominate."""
    ours = Ours(Setting(prompts=64, rollouts=8, max_new_tokens=256), folder)
    found = np.concatenate([group.lengths for group in ours.sample(seed=0)])
    p99 = int(np.ceil(np.quantile(found, 0.99)))
    share = float(np.minimum(found, p99).mean() / p99)
    if share < 0.4:
        raise SystemExit(f"mean / max of the natural lengths is {share:.2f}, below 0.4: stragglers would rule")
    return {"rollouts": len(found), "mean": float(found.mean()), "max": int(found.max()), "p99": p99, "share": share}


def _points(setting: Setting, options: argparse.Namespace, folder: Path) -> Iterator[Report]:
    """Every point of one n and one kind of length."""
    ours = Ours(setting.but(problems=setting.prompts), folder)
    groups, prompts = ours.sample(seed=0), ours.prompts()
    # Each of several ranks samples its own completions
    replay = completions(groups) if ranks.count() == 1 else None
    size, tried = ranks.gather_from_all(fastest_micro_batch(setting, prompts, replay, folder, options.micro_batches))[0]
    about = {"n": setting.rollouts, "prompts": setting.prompts, "lengths": setting.lengths}
    about |= {"trl_micro_batch": size, "trl_micro_batches_tried": {k: round(v, 4) for k, v in tried.items()}}
    race = _Race(setting, folder, size, options.rounds)
    if "generation" in options.points:
        yield {"point": "generation", **about, **summary(race.generation(prompts))}
    if "update" in options.points:
        yield {"point": "update", **about, **summary(race.update(groups), of=update_of)}
    if "step" in options.points:
        yield {"point": "step, n = m", **about, **summary(race.step())}
    if "pods" in options.points and setting.rollouts == max(options.rollouts):
        yield {"point": f"pods, m = {options.keep}", **about, **summary(race.step(keep=options.keep))}


class _Race:
    """The pairs of one setting, without the warm-up."""

    def __init__(self, setting: Setting, folder: Path, micro_batch: int, rounds: int) -> None:
        self._setting = setting
        self._folder = folder
        self._micro_batch = micro_batch
        self._rounds = rounds

    def generation(self, prompts: Sequence[Prompt]) -> list[Pair]:
        peer = Peer(self._setting, prompts, self._folder, micro_batch=self._micro_batch)
        ours = Ours(self._setting.but(problems=len(prompts)), self._folder)

        def pair(seed: int) -> Pair:
            groups, seconds = frame.timed(lambda: ours.sample(seed))
            return {"winnow": _sampled(seconds, completions(groups)), "trl": _sampled(*peer.generate(prompts))}

        return [pair(seed) for seed in range(WARM_UP + self._rounds)][WARM_UP:]

    def update(self, groups: Sequence[Group]) -> list[Pair]:
        ours = Ours(self._setting.but(problems=len(groups)), self._folder, replay=groups)
        prompts = [group.prompt for group in groups]
        peer = self._peer(prompts, replay=completions(groups))
        return alternate(peer, ours, self._rounds)

    def step(self, *, keep: int | None = None) -> list[Pair]:
        ours = Ours(self._setting.but(keep=keep), self._folder)
        return alternate(self._peer(ours.prompts(ours.run.prompts.steps_per_epoch)), ours, self._rounds)

    def _peer(self, prompts: Sequence[Prompt], **options: Any) -> Peer:
        return Peer(self._setting, prompts, self._folder, micro_batch=self._micro_batch, **options)


def alternate(peer: Peer, ours: Callable[[], Measured], rounds: int) -> list[Pair]:
    """Alternate one step of TRL and one of winnow. The warm-up is omitted."""
    pairs: list[Pair] = []

    def after(measured: Measured) -> bool:
        pairs.append({"trl": measured, "winnow": ours()})
        return len(pairs) < WARM_UP + rounds

    peer.run(after)
    return pairs[WARM_UP:]


def summary(pairs: Sequence[Pair], of: Callable[[Measured], float] = lambda m: m.seconds) -> Report:
    """The ratio (how many times faster winnow is), with the medians of phases and seconds."""
    ratios = [of(pair["trl"]) / of(pair["winnow"]) for pair in pairs]
    per_token = [r * pair["winnow"].tokens / pair["trl"].tokens for r, pair in zip(ratios, pairs, strict=True)]
    return {
        "ratio": frame.median(ratios, 3),
        "ratio_per_token": frame.median(per_token, 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        **{side: _side([pair[side] for pair in pairs], of) for side in pairs[0]},
    }


def _side(steps: Sequence[Measured], of: Callable[[Measured], float]) -> Report:
    return {
        "seconds": frame.median([of(step) for step in steps]),
        "phases": {name: frame.median([step.phases[name] for step in steps]) for name in steps[0].phases},
        "tokens": frame.median([step.tokens for step in steps]),
        "length_mean": frame.median([step.length_mean for step in steps]),
        "length_max": frame.median([step.length_max for step in steps]),
        "rollouts_trained": [step.trained for step in steps],
    }


def _sampled(seconds: float, found: Sequence[Sequence[int]]) -> Measured:
    lengths = [len(tokens) for tokens in found]
    return Measured(
        seconds=seconds,
        phases={"generate": seconds},
        reward=0.0,
        tokens=sum(lengths),
        length_mean=statistics.mean(lengths),
        length_max=max(lengths),
        trained=0,
    )


def _lines(point: Report) -> str:
    head = f"{point['point']}, n {point['n']}, lengths {point['lengths']}: {point['ratio']} times faster"
    head += f" ({point['ratio_per_token']} per token; pairs {min(point['ratios'])} to {max(point['ratios'])})"
    return "\n".join([head, *(_side_line(side, point[side]) for side in ("trl", "winnow"))])


def _side_line(name: str, side: Report) -> str:
    phases = ", ".join(f"{phase} {seconds:.3f}" for phase, seconds in side["phases"].items())
    lengths = f"mean length {side['length_mean']:.1f}, longest {side['length_max']:.0f}"
    return f"  {name:7} {side['seconds']:.3f} s: {phases}; {lengths}, trained {side['rollouts_trained']}"


if __name__ == "__main__":
    main()
