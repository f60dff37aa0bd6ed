"""`winnow chat`: talk to a model, with the prompt that its run trained it on.

The text is sampled by transformers and not by winnow's engine, which returns whole rollouts: here each word is printed
as soon as it is sampled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from winnow.commands.command_line import print_text
from winnow.errors import DataError, conflict, format_with_code
from winnow.records import Message, Problem
from winnow.view.text import encodable

if TYPE_CHECKING:
    from winnow.models.load import Loaded

CHAT: Mapping[str, Any] = MappingProxyType({"template": "chat"})  # the prompt of a model without a run


def chat(
    model: Annotated[str, typer.Argument(help='A model folder, such as a checkpoint; "bundled"; or a hub id.')],
    messages: Annotated[
        list[str] | None, typer.Option("--message", "-m", help="Send this and exit; repeat it for several turns.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system message. Default: the run's, if there is one.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of one reply.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, help="0: the most probable token.")] = 0.7,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the whole conversation.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Talk to a model. A checkpoint gets the prompts of its run: the same template and system message."""
    import torch
    from transformers.utils import logging

    from winnow.models.device import resolve_device
    from winnow.models.load import describe, load, load_tokenizer
    from winnow.state.saved_runs import check_is_model

    check_is_model(model)
    prompt, base = prompt_of(model, system)
    if system is not None and prompt["template"] != "chat":
        raise conflict(
            f"--system: the run of {model} had the template {prompt['template']!r}, which has no system message",
            remedy="omit --system",
            key="prompt.system",
        )
    describe(model)  # raises for a model without a bounded context
    tokenizer = load_tokenizer(model)
    if prompt["template"] == "chat" and not tokenizer.chat_template:
        raise DataError(
            f"{model} has no chat template",
            remedy="name an instruction-tuned model, or a checkpoint of a run with another prompt.template",
            key="MODEL",
            code="data.unfit_model",
        )
    where = resolve_device(device)
    logging.disable_progress_bar()
    dtype = "float32" if where.type == "cpu" else "bfloat16"
    loaded = load(model, dtype=dtype, device=str(where), tokenizer=tokenizer)
    talk = Conversation(loaded, prompt, base, stops_of(model), max_new_tokens=max_new_tokens, temperature=temperature)
    torch.manual_seed(seed)
    asking = sys.stdin.isatty() and messages is None
    for text in lines(prompted=asking) if messages is None else messages:
        try:
            talk.reply(text, partial(print_text, newline=False))
        except DataError as error:
            if not asking:
                raise
            print_text(format_with_code(error), err=True)


def prompt_of(model: str, system: str | None) -> tuple[dict[str, Any], Path | None]:
    """The keys of [prompt] of the run that trained a model, else of a chat; and the folder of a template's file."""
    table, base = _table_of(model, "prompt")
    prompt = {**CHAT, **table}
    if system is not None:
        prompt["system"] = system
    return prompt, base


def stops_of(model: str) -> tuple[str, ...]:
    """The stop strings of the run that trained a model: it has not learned to end a reply after them."""
    texts = _table_of(model, "rollout")[0].get("stop")
    return tuple(text for text in texts if isinstance(text, str) and text) if isinstance(texts, list) else ()


def _table_of(model: str, name: str) -> tuple[Mapping[str, Any], Path | None]:
    """A table of the settings of the run that trained a model, empty if there is none, and the run's base folder."""
    from winnow.state.saved_runs import manifest_of, run_of

    run = run_of(model)
    if run is None:
        return {}, None
    manifest = manifest_of(run)
    table = manifest.config.get(name)
    return table if isinstance(table, Mapping) else {}, manifest.base  # a manifest may contain anything


def lines(*, prompted: bool) -> Iterator[str]:
    """The lines of standard input that are not empty, to its end; `prompted` is for a person at a terminal."""
    while True:
        try:
            text = input("> " if prompted else "")
        except EOFError:
            return
        except UnicodeDecodeError as error:
            raise _not_utf8() from error
        if text.strip():
            yield text


def _not_utf8() -> DataError:
    return DataError("the message is no text in UTF-8", remedy="write it in UTF-8", code="data.malformed")


@dataclass
class Conversation:
    """The turns so far. A reply continues them, as far as they fit into the model's context."""

    loaded: Loaded
    prompt: Mapping[str, Any]  # the keys of [prompt]
    base: Path | None
    stop: tuple[str, ...]  # strings that end a reply
    max_new_tokens: int
    temperature: float
    turns: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Drop the model's own settings, such as the repetition penalty of Qwen2.5: no run samples with them."""
        from transformers import GenerationConfig

        self.loaded.model.generation_config = GenerationConfig()

    def reply(self, text: str, write: Callable[[str], None]) -> str:
        """The model's reply to `text`, which is also written part by part.

        Raises DataError for a text that cannot be rendered: it contains a special token, is too long, or is not UTF-8.
        """
        import torch
        from transformers import TextStreamer

        from winnow.engines.stopping import split_stops

        class Streamer(TextStreamer):  # type: ignore[misc]  # the library has no types
            def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
                write(text + "\n" * stream_end)

        tokenizer = self.loaded.tokenizer
        tokens = torch.tensor([self._rendered(text)], device=self.loaded.model.device)
        ends, strings = split_stops(tokenizer, self.stop)
        stops = {"stop_strings": list(strings), "tokenizer": tokenizer} if strings else {}
        sampled = {"do_sample": True, "temperature": self.temperature} if self.temperature else {"do_sample": False}
        with torch.inference_mode():
            (row,) = self.loaded.model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=self.max_new_tokens,
                eos_token_id=[*self.loaded.stop_tokens, *ends],
                pad_token_id=self.loaded.stop_tokens[0],
                top_k=0,
                top_p=1.0,
                streamer=Streamer(tokenizer, skip_prompt=True, skip_special_tokens=True),
                **sampled,
                **stops,
            )
        reply: str = tokenizer.decode(row[tokens.shape[1] :], skip_special_tokens=True)
        if self.prompt["template"] == "chat":  # another template has one question and no history
            self.turns += [Message("user", text), Message("assistant", reply)]
        return reply

    def _rendered(self, text: str) -> Sequence[int]:
        """The tokens of the prompt. The oldest exchanges are left out if the context is full."""
        from winnow.tasks.templates import render

        if encodable(text) != text:  # half of a surrogate pair is a byte of another encoding
            raise _not_utf8()
        context = self.loaded.model.config.get_text_config().max_position_embeddings
        keys = {**self.prompt, "max_prompt_tokens": max(1, context - self.max_new_tokens)}
        while True:
            problem = Problem(id="chat", question=text, answer=None, task="chat", earlier=tuple(self.turns))
            try:
                (prompt,) = render([problem], self.loaded.tokenizer, base=self.base, **keys).prompts
            except DataError as error:
                if error.code != "data.empty":
                    raise
                if not self.turns:
                    raise DataError(
                        f"the message does not fit beside {self.max_new_tokens} new tokens into the model's context of "
                        f"{context} tokens",
                        remedy="shorten it, or lower --max-new-tokens",
                        code="data.empty",
                    ) from error
                self.turns = self.turns[2:]
            else:
                return [int(token) for token in prompt.tokens]
