"""The engine's process: makes the engine, then serves the trainer's requests until the trainer closes the channel or
exits.

    python -m winnow.engines.process.child <channel> <trainer> <folder>

The first two arguments are the numbers of inherited descriptors: the socket to the trainer, and a pipe whose other end
only the trainer has open. The third is the trainer's temporary folder, which is removed when the trainer exits.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from winnow.engines.base import Engine
from winnow.engines.process.messages import (
    Channel,
    ChannelClosed,
    Crashed,
    Done,
    Generate,
    LoadWeights,
    Refused,
    Sampled,
)
from winnow.errors import ConfigError, EngineError, WinnowError
from winnow.memory.usage import memory_by_state
from winnow.records import Prompt, Rollout
from winnow.user_code import load_function

_GUARD = """trap '' INT TERM HUP; read -r _; rm -rf "$1"; kill -KILL 0"""


def serve(channel: Channel) -> None:
    """Make the engine and serve requests. Raises ChannelClosed when the trainer has closed the channel or exited."""
    start = channel.receive()
    try:
        engine = import_factory(start.make)(**start.options)
    except WinnowError as error:
        return channel.send(Refused(error))
    channel.send(Done(engine.version, engine.logprob_tolerance))
    while True:
        request = channel.receive()
        try:
            generate(engine, request, channel) if isinstance(request, Generate) else load(engine, request)
        except WinnowError as error:
            channel.send(Refused(error))
        else:
            state = "sampled" if isinstance(request, Generate) else "loaded"
            channel.send(Done(engine.version, engine.logprob_tolerance, measure_memory(engine, state)))


def measure_memory(engine: Engine, state: str) -> Mapping[str, float]:
    """The engine's `memory_mib` if it has one, such as an engine that sleeps between requests; else this process's
    memory now.
    """
    reported: Mapping[str, float] | None = getattr(engine, "memory_mib", None)
    return memory_by_state(state) if reported is None else reported


def generate(engine: Engine, request: Generate, channel: Channel) -> None:
    """Sample, and send every rollout as soon as it is finished. Raises EngineError for stale weights."""
    if engine.version != request.version:
        raise EngineError(
            f"stale weights: the engine in the second process has version {engine.version}, and rollouts of version "
            f"{request.version} were requested",
            remedy="load the weights of that version first",
            code="engine.stale_weights",
        )
    prompts = [dataclasses.replace(prompt) for prompt in request.prompts]  # a repeated prompt becomes two objects
    indices = {id(prompt): index for index, prompt in enumerate(prompts)}

    def send(prompt: Prompt, rollout: Rollout) -> None:
        channel.send(Sampled(indices[id(prompt)], rollout))

    engine.generate(prompts, request.counts, request.sampling, seed=request.seed, on_rollout=send)


def load(engine: Engine, request: LoadWeights) -> None:
    """Load the weights, each of which is received when the engine reads it."""
    try:
        engine.load(request.weights, version=request.version)
    finally:
        request.weights.finish()


def import_factory(make: str) -> Callable[..., Engine]:
    """Import a function by its name "module:function" or "file.py:function". Raises ConfigError."""
    if ".py:" in make:
        return load_function(make)
    module, _, name = make.partition(":")
    try:
        function: Callable[..., Engine] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"the engine {make!r} cannot be imported in a second process: {error}",
            remedy='name it as "module:function" or "file.py:function"',
            code="config.user_code",
        ) from error
    return function


def main(arguments: Sequence[str]) -> None:
    """Serve until the trainer closes the channel or exits; an exception that ends this process earlier is sent to the
    trainer.
    """
    end, trainer, folder = int(arguments[0]), int(arguments[1]), arguments[2]
    # The trainer handles signals to a whole job: it finishes its last step, and then ends this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # unlike SIG_IGN, child processes do not inherit a handler
    # The kernel closes the other end of the pipe however the trainer exits. The guard then removes the folder and kills
    # the process group (this process, its children, itself), even if the engine hangs or has started processes that
    # outlive it.
    subprocess.Popen(["/bin/sh", "-c", _GUARD, "sh", folder], stdin=trainer)
    os.close(trainer)
    os.set_inheritable(end, False)
    channel = Channel(socket.socket(fileno=end))
    try:
        serve(channel)
    except ChannelClosed:
        return
    except Exception as error:
        channel.send(Crashed(f"{type(error).__name__}: {error}"))
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
