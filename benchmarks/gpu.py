"""Everything that a GPU machine without a network can tell, in one command and within a given time.

    python benchmarks/gpu.py                                          # an H200: under 9 minutes
    python benchmarks/gpu.py --native graphs=false                    # native with options too, beside its defaults
    python benchmarks/gpu.py --device cpu --shape tiny --minutes 1    # does it run?

Random weights in the public shapes of Qwen2.5, bfloat16, rollouts that only their length ends. In this order:

    ceiling     bytes and operations per second that the machine reaches
    generation  plain generate, transformers' continuous batching and the native engine, for 8 to 512 rollouts at once:
                speed, time per token, memory, share of the ceilings
    update      seconds and memory against rollouts, with and without selection and gradient checkpointing, AdamW
                included, and where one micro-batch no longer fits

Findings are written to benchmarks/results/<date>_gpu.json after every measurement. What the time does not allow is
skipped, and the file says so. Memory is what was allocated at most, weights included.
"""

from __future__ import annotations

import argparse
import logging
import time
import tomllib
from collections.abc import Callable
from typing import Any

import frame
import torch
from gpu_generation import entrants, generation
from gpu_lab import SECONDS, Lab
from gpu_update import updates

PER_RUN = 10  # operations per timed run
Section = tuple[str, Callable[[], None], float]  # name, work, share of the whole time by which it must be over


def main() -> None:
    started = time.perf_counter()
    options = _options()
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    device = torch.device(options.device)
    found: dict[str, Any] = {"device": _device(device), "settings": vars(options)}
    if options.commit:
        found["commit"] = options.commit
    lab = Lab(options=options, device=device, dtype=getattr(torch, options.dtype), ends=0.0, found=found)
    entrants(lab)  # an option that native does not have is refused now
    known: dict[str, float] = {}
    for name, work, share in _sections(lab, known):
        lab.section, lab.ends = name, started + 60 * options.minutes * share
        try:
            work()
        except Exception as error:  # the sections after it may still have something to say
            lab.record({"error": f"{type(error).__name__}: {error}"[:500]})
    found["minutes"] = round((time.perf_counter() - started) / 60, 2)
    print(f"written: {lab.write()}")


def _sections(lab: Lab, known: dict[str, float]) -> list[Section]:
    """The main line first, then updates of the largest shape, then what there is time for."""
    options = lab.options
    first, *others = options.shape

    def measure_ceilings() -> None:
        known.update(ceilings(lab))

    def work(of: Callable[..., None], *arguments: Any) -> Callable[[], None]:
        return lambda: of(lab, *arguments, known)

    return [
        ("ceiling", measure_ceilings, 0.08),
        ("generation", work(generation, first, options.rollouts), 0.52),
        *(("update", work(updates, shape), 0.70) for shape in others[:1]),
        ("update", work(updates, first), 0.84),
        *(("generation", work(generation, shape, options.few_rollouts), 1.0) for shape in others),
    ]


def _options() -> argparse.Namespace:
    parser = frame.parser(
        __doc__,
        most_rollouts=(512, "tried in one micro-batch"),
        prompt_tokens=128,
        tokens=(256, "of every rollout"),
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--minutes", type=float, default=8.5, help="what would end later is skipped")
    parser.add_argument("--shape", nargs="+", default=["1.5B", "3B", "0.5B"], help="the first one is the main line")
    parser.add_argument("--rollouts", type=int, nargs="+", default=[64, 8, 512, 128, 256, 32, 16], help="in this order")
    parser.add_argument("--few-rollouts", type=int, nargs="+", default=[64, 512, 8], help="for the other shapes")
    parser.add_argument(
        "--native",
        type=_native,
        action="append",
        default=[],
        metavar="KEY=VALUE[,KEY=VALUE]",
        help="native again, with these options; may be repeated",
    )
    parser.add_argument("--seconds-per-point", type=float, default=8.0, help="spent on repeating a measurement")
    parser.add_argument("--seconds-for-pairs", type=float, default=45.0)
    parser.add_argument("--commit", help="what is measured, where the machine has the files without their history")
    return frame.parse(parser)


def _native(text: str) -> tuple[str, dict[str, Any]]:
    """Options as `--set` takes them: TOML, or text where it is none."""
    options = {}
    for assignment in text.split(","):
        key, _, value = assignment.partition("=")
        try:
            options[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            options[key] = value
    return text, options


def ceilings(lab: Lab) -> dict[str, float]:
    """`bandwidth` in bytes per second, the best of three ways to move memory, and `matmul` in operations per second."""
    large = lab.device.type == "cuda"
    rows = torch.randn(65536 if large else 1024, 16384 if large else 1024, device=lab.device, dtype=lab.dtype)  # 2 GiB
    side = 8192 if large else 256
    a, b = (torch.randn(side, side, device=lab.device, dtype=lab.dtype) for _ in range(2))
    moved = _moves(rows)
    speeds = {name: _speed(lab, name, work, amount) for name, (work, amount) in moved.items()}
    matmul = _speed(lab, "matmul", lambda: a @ b, 2 * side**3)
    return {"bandwidth": max(speeds.values()), "matmul": matmul}


def _moves(rows: torch.Tensor) -> dict[str, tuple[Callable[[], Any], int]]:
    """Work and the bytes that it reads and writes."""
    size = rows.numel() * rows.element_size()
    other, target = torch.ones_like(rows), torch.empty_like(rows)
    vector = torch.ones(rows.shape[1], device=rows.device, dtype=rows.dtype)
    return {
        "copy": (lambda: target.copy_(rows), 2 * size),
        "triad": (lambda: torch.add(rows, other, alpha=3.0, out=target), 3 * size),
        "matrix times vector": (lambda: rows @ vector, size),
    }


def _speed(lab: Lab, name: str, work: Callable[[], Any], amount: int) -> float:
    """Amount per second; 0 where it could not be measured."""

    def run() -> None:
        for _ in range(PER_RUN):
            work()

    measured = lab.measure("ceiling", 1, {"what": name}, run, repeats=5)
    speed = PER_RUN * amount / min(measured["seconds"]) if SECONDS in measured else 0.0
    unit, scale = ("tera_operations", 1e12) if name == "matmul" else ("gigabytes", 1e9)
    lab.record(measured | {f"{unit}_per_second": round(speed / scale, 2)})
    return speed


def _device(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"name": device.type}
    has = torch.cuda.get_device_properties(device)
    return {"name": has.name, "memory_gib": round(has.total_memory / 2**30, 1), "cuda": torch.version.cuda}


if __name__ == "__main__":
    main()
