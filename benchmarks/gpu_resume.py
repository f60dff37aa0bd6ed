"""Runs on the GPU under `deterministic = true`, killed at random moments and resumed: are the bytes equal?

    python benchmarks/gpu_resume.py --home FOLDER --config NAME --run FOLDER [--events FILE] [--moment EVENT#N]

is one process of such a run, which gpu.py starts. Configurations, moments and comparisons are those of chaos.py: every
file of the final checkpoint (weights, masters, moments, history) and both logs. chaos.py forks its processes, which
is impossible after CUDA has started.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import chaos
from gpu_lab import Lab

PATIENCE_SECONDS = 240.0  # for one process
KILLED = -signal.SIGKILL


def resume(lab: Lab) -> None:
    """Two uninterrupted runs of each configuration, then killed ones while the time lasts."""
    with TemporaryDirectory(prefix="winnow-gpu-") as folder:
        home = Path(folder)
        precision = {"model": {"dtype": "bfloat16"}}
        chaos.make(home, {"device": lab.device.type, "deterministic": True, **precision})
        calm = {name: _undisturbed(lab, home, name) for name in lab.sizes.resumed}
        rng, longest = random.Random(0), 0.0
        for number in range(lab.sizes.kills):
            name = lab.sizes.resumed[number % len(lab.sizes.resumed)]
            if name not in {name for name, found in calm.items() if found}:
                continue
            if lab.left < 1.2 * longest:
                lab.record({"skipped": f"{lab.sizes.kills - number} kills: {lab.left:.0f} s left"})
                break
            begin = time.perf_counter()
            lab.record(_killed(home, name, number, calm[name], rng, here=lab.dry), section="kills")
            longest = max(longest, time.perf_counter() - begin)
    kills = lab.found.get("kills", [])
    lab.found["equal"] = f"{sum(kill['equal'] for kill in kills)} of {len(kills)}"
    lab.write()
    wrong = [kill for kill in kills if not kill["equal"]] + [name for name, found in calm.items() if not found]
    if wrong:
        raise RuntimeError(f"{len(wrong)} runs or configurations did not end in the same bytes; see above")


def _undisturbed(lab: Lab, home: Path, name: str) -> chaos.Undisturbed | None:
    """Digests of a run's files; None if it failed or a second run differs. The dry run makes only one."""
    events, begin = home / f"{name}.events", time.perf_counter()
    status, said = _live(home, name, home / f"{name}_counted", events=events, here=lab.dry)
    seconds = time.perf_counter() - begin
    runs = [home / f"{name}_counted"]
    if status == 0 and not lab.dry:
        runs.append(home / f"{name}_plain")
        status, said = _live(home, name, runs[-1])
    if status != 0:
        lab.record({"config": name, "status": status, "said": said}, section="undisturbed")
        return None
    left = [chaos.what_is_left(run) for run in runs]
    differs = sorted(file for file in left[0] if left[0][file] != left[-1].get(file))
    lab.record({"config": name, "seconds": round(seconds, 1), "differs": differs}, section="undisturbed")
    return None if differs else chaos.Undisturbed(left[0], Counter(json.loads(events.read_text())), seconds)


def _killed(
    home: Path, name: str, number: int, calm: chaos.Undisturbed, rng: random.Random, *, here: bool
) -> dict[str, Any]:
    """Kill a run once, then resume it to its end. Returns whether its bytes are equal."""
    run, moment = home / f"{number:03d}_{name}", chaos.choose(rng, calm, timed=False)
    point = {"config": name, "moment": str(moment)}
    status, said = _live(home, name, run, moment=moment)
    if status == KILLED:
        status, said = _live(home, name, run, here=here)
    elif status == 0:
        return point | {"equal": False, "said": "it was not killed: the moment did not come"}
    if status != 0:
        return point | {"equal": False, "status": status, "said": said}
    left = chaos.what_is_left(run)
    differs = sorted(file for file in {*left, *calm.left} if left.get(file) != calm.left.get(file))
    return point | {"equal": not differs, **({"differs": differs} if differs else {})}


def _live(
    home: Path,
    name: str,
    run: Path,
    *,
    moment: chaos.Moment | None = None,
    events: Path | None = None,
    here: bool = False,
) -> tuple[int | None, str]:
    """Run one process. Returns its exit status (None if it hung), and the end of its output.

    Without a kill and without CUDA it can run in this process (`here`), which is faster.
    """
    if here:
        live(home, name, run, moment="", events=events)
        return 0, ""
    command = [sys.executable, __file__, "--home", str(home), "--config", name, "--run", str(run)]
    command += ["--moment", f"{moment.event}#{moment.occurrence}"] if moment else []
    command += ["--events", str(events)] if events else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        return None, f"no end in {PATIENCE_SECONDS:.0f} s"
    return done.returncode, (done.stdout + done.stderr)[-1500:]


def live(home: Path, name: str, run: Path, *, moment: str, events: Path | None) -> None:
    """Train or resume; kill this process at the moment, or count its events."""
    seen: Counter[str] = Counter()
    event, _, occurrence = moment.rpartition("#")

    def watch(frame: Any, kind: str, argument: Any) -> None:
        found = chaos.named(frame, kind, argument)
        if found is not None:
            seen[found] += 1
            if found == event and seen[found] == int(occurrence):
                os.kill(os.getpid(), signal.SIGKILL)

    if events or moment:
        sys.setprofile(watch)
    chaos.train(name, home, run)
    sys.setprofile(None)
    if events:
        events.write_text(json.dumps(seen))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--config", choices=list(chaos.CONFIGS), required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--moment", default="")
    parser.add_argument("--events", type=Path)
    options = parser.parse_args()
    live(options.home, options.config, options.run, moment=options.moment, events=options.events)


if __name__ == "__main__":
    main()
