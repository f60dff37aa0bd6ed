"""One rank of a run with vLLM, as a launcher starts it. It trains with the configuration of a file and writes the
metrics of its steps. A third argument plants a bug: the engine of that rank never copies weights after the first load.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from winnow.config_file import validate
from winnow.engines.process import engine as process
from winnow.engines.vllm.sampler import VllmEngine
from winnow.records import StepReport
from winnow.training.fit import fit
from winnow.training.resolve import resolve_members


def forget() -> None:
    """Make workers read every weight and record its version, but copy only the weights of version 0."""
    from winnow.engines.vllm.worker import OneByOne, for_worker

    honest = OneByOne.receive_weights

    def forgetful(self: Any, info: Any) -> None:
        if info.version == 0:
            return honest(self, info)
        weights = for_worker(info.weights, self.parallel_config.rank)
        for name in info.names:
            weights[name]
        self._arriving = info.version

    OneByOne.receive_weights = forgetful


def forgetful_engine(**options: Any) -> VllmEngine:
    """The factory of an engine that runs in a separate process."""
    engine = VllmEngine(**options)
    forget()
    return engine


def plant() -> None:
    """Plant the bug in this process and in that of its engine."""
    start = process.SecondProcess
    process.SecondProcess = lambda make, *given, **more: start(f"{__file__}:forgetful_engine", *given, **more)
    forget()


def main(config: Path, reports: Path, forgetful: str = "") -> None:
    if forgetful == os.environ["RANK"]:
        plant()
    events: list[Any] = []
    fit(resolve_members(validate(json.loads(config.read_text())), base=config.parent), watch=events.append)
    steps = [event.metrics for event in events if isinstance(event, StepReport)]
    if os.environ["RANK"] == "0":
        reports.write_text(json.dumps(steps))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
