"""The process that an engine lives in: makes it, then does what the trainer asks, until the trainer is gone.

    python -m winnow.engines.process.child <wire> <life> <weights>

Its arguments are the numbers of three inherited descriptors: the wire to the trainer, a pipe whose other end only the
trainer holds, and the memory that weights come in.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence

from winnow.engines.base import Engine
from winnow.engines.process.messages import Closed, Crashed, Done, Generate, Load, Ready, Refused, Sampled, Wire
from winnow.engines.process.shared_memory import SharedWeights
from winnow.errors import ConfigError, EngineError, WinnowError
from winnow.records import Prompt, Rollout
from winnow.user_code import load_function


def serve(wire: Wire, weights: SharedWeights) -> None:
    """Make the engine and answer requests. Raises Closed when the trainer is gone."""
    start = wire.receive()
    try:
        engine = find(start.make)(**start.options)
    except WinnowError as error:
        return wire.send(Refused(error))
    wire.send(Ready(engine.version, engine.logprob_tolerance))
    while True:
        request = wire.receive()
        try:
            generate(engine, request, wire) if isinstance(request, Generate) else load(engine, request, weights)
        except WinnowError as error:
            wire.send(Refused(error))
        else:
            wire.send(Done(engine.version))


def generate(engine: Engine, request: Generate, wire: Wire) -> None:
    """Sample, and send every rollout as soon as it is finished. Raises EngineError for stale weights."""
    if engine.version != request.version:
        raise EngineError(
            f"stale weights: the engine in the second process has version {engine.version}, and rollouts of version "
            f"{request.version} were asked for"
        )
    prompts = [dataclasses.replace(prompt) for prompt in request.prompts]  # one asked for twice stands in two places
    places = {id(prompt): place for place, prompt in enumerate(prompts)}

    def send(prompt: Prompt, rollout: Rollout) -> None:
        wire.send(Sampled(places[id(prompt)], rollout))

    engine.generate(prompts, request.counts, request.sampling, seed=request.seed, on_rollout=send)


def load(engine: Engine, request: Load, weights: SharedWeights) -> None:
    """Hand the engine the weights in the shared memory; it copies what it keeps, as they change with the next load."""
    engine.load(weights.read(request.layout), version=request.version)


def find(make: str) -> Callable[..., Engine]:
    """The function that "module:function" or "file.py:function" names. Raises ConfigError."""
    if ".py:" in make:
        return load_function(make)
    module, _, name = make.partition(":")
    try:
        function: Callable[..., Engine] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"the engine {make!r} cannot be imported in a second process: {error}") from error
    return function


def die_with_the_trainer(life: int) -> None:
    """Start a guard that kills this process, everything it starts, and itself once the other end of `life` is closed.

    The kernel closes it however the trainer ends, and a guard of its own can be kept neither by an engine that hangs
    nor by processes that the engine leaves behind.
    """
    subprocess.Popen(["/bin/sh", "-c", "trap '' INT TERM HUP; read -r _; kill -KILL 0"], stdin=life)
    os.close(life)


def main(arguments: Sequence[str]) -> None:
    """Serve until the trainer is gone; tell it of an exception that ends the process earlier."""
    end, life, memory = map(int, arguments)
    # Signals that are sent to a whole job: the trainer decides, and ends its last step.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # unlike SIG_IGN not inherited by what the engine starts
    die_with_the_trainer(life)
    for inherited in (end, memory):
        os.set_inheritable(inherited, False)
    wire = Wire(socket.socket(fileno=end))
    try:
        serve(wire, SharedWeights(memory))
    except Closed:
        return
    except Exception as error:
        wire.send(Crashed(f"{type(error).__name__}: {error}"))
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
