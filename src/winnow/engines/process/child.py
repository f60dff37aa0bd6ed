"""The engine's own process: makes the engine, then answers the trainer's requests until the trainer has ended.

    python -m winnow.engines.process.child <channel> <trainer> <weights>

Its arguments are the numbers of three inherited descriptors: the socket to the trainer, a pipe whose other end only the
trainer has open, and the memory that weights come in.
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
from winnow.engines.process.messages import (
    Channel,
    ChannelClosed,
    Crashed,
    Done,
    Generate,
    LoadWeights,
    Ready,
    Refused,
    Sampled,
)
from winnow.engines.process.shared_memory import SharedWeights
from winnow.errors import ConfigError, EngineError, WinnowError
from winnow.records import Prompt, Rollout
from winnow.user_code import load_function


def serve(channel: Channel, weights: SharedWeights) -> None:
    """Make the engine and answer requests. Raises ChannelClosed when the trainer has ended."""
    start = channel.receive()
    try:
        engine = find(start.make)(**start.options)
    except WinnowError as error:
        return channel.send(Refused(error))
    channel.send(Ready(engine.version, engine.logprob_tolerance))
    while True:
        request = channel.receive()
        try:
            generate(engine, request, channel) if isinstance(request, Generate) else load(engine, request, weights)
        except WinnowError as error:
            channel.send(Refused(error))
        else:
            channel.send(Done(engine.version))


def generate(engine: Engine, request: Generate, channel: Channel) -> None:
    """Sample, and send every rollout as soon as it is finished. Raises EngineError for stale weights."""
    if engine.version != request.version:
        raise EngineError(
            f"stale weights: the engine in the second process has version {engine.version}, and rollouts of version "
            f"{request.version} were asked for"
        )
    prompts = [dataclasses.replace(prompt) for prompt in request.prompts]  # a prompt that recurs becomes two objects
    indices = {id(prompt): index for index, prompt in enumerate(prompts)}

    def send(prompt: Prompt, rollout: Rollout) -> None:
        channel.send(Sampled(indices[id(prompt)], rollout))

    engine.generate(prompts, request.counts, request.sampling, seed=request.seed, on_rollout=send)


def load(engine: Engine, request: LoadWeights, weights: SharedWeights) -> None:
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


def end_with_the_trainer(trainer: int) -> None:
    """Start a guard process that kills this one, everything it starts, and itself once the other end of the pipe
    `trainer` is closed.

    The kernel closes it however the trainer ends, and the guard works even where the engine hangs or has left processes
    behind.
    """
    subprocess.Popen(["/bin/sh", "-c", "trap '' INT TERM HUP; read -r _; kill -KILL 0"], stdin=trainer)
    os.close(trainer)


def main(arguments: Sequence[str]) -> None:
    """Serve until the trainer has ended; send it the exception that ends this process earlier."""
    end, trainer, memory = map(int, arguments)
    # Signals to a whole job are the trainer's to handle: it ends its last step, and then this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # unlike SIG_IGN not inherited by what the engine starts
    end_with_the_trainer(trainer)
    for inherited in (end, memory):
        os.set_inheritable(inherited, False)
    channel = Channel(socket.socket(fileno=end))
    try:
        serve(channel, SharedWeights(memory))
    except ChannelClosed:
        return
    except Exception as error:
        channel.send(Crashed(f"{type(error).__name__}: {error}"))
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
