"""Samples rollouts of several turns with any engine: the policy and an environment write in turn.

An engine that keeps the keys and values of unfinished rollouts goes on with each of them by itself
(`winnow.engines.base.Turns`). With any other engine the turns of a step are rounds: in each round it samples the next
turn of every unfinished rollout, and the environment answers a finished turn while others are sampled. The next round
begins when all answers are there. Either way, what is sampled together, and hence the bits, do not depend on the speed
of an environment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from winnow.config import Config, EnvironmentSection
from winnow.engines.base import Engine, OnRollout, PendingRollout, Turns
from winnow.engines.requests import turn_seed
from winnow.engines.stopping import text_keeping
from winnow.environments.tool_calls import MARKS
from winnow.records import (
    BoolArray,
    Finish,
    FloatArray,
    Group,
    IntArray,
    Outcome,
    Prompt,
    Reply,
    Rollout,
    Sampling,
    rollout_id,
)
from winnow.seeds import SeedName
from winnow.tasks.dialogue import Dialogue
from winnow.training.answers import RequestRecord
from winnow.verify.verifiers import Verifiers

CHECKED = 8  # rollouts of each kind of request that are played twice, once in a process


def with_environment(
    engine: Engine, verifiers: Verifiers, config: Config, dialogue: Dialogue | None, *, run: Path | None = None
) -> Engine:
    """The engine; where the configuration has an environment, one that samples rollouts of several turns.

    `run` is the folder for the record of a recorded environment.
    """
    section = config.environment
    if section is None or dialogue is None:
        return engine
    turns = TurnEngine(engine, verifiers, dialogue, section, run)
    return cast(Engine, turns)  # `version` and the like are those of the engine, through __getattr__


class TurnEngine:
    """An engine whose rollouts consist of turns; everything but `generate` is the inner engine's.

    A turn of the policy has at most `max_turn_tokens` tokens, and begins only where that many fit into
    `Sampling.max_new_tokens`, the limit of all turns together. The finish of a rollout is "length" where there was no
    room for another turn, and "stop" where the environment ended it. The outcomes of the latter are stored in
    `verifiers`.

    The random numbers of the first turn are those of a rollout of one turn. Those of later ones depend on the prompt,
    the index and the turn, so no rollout depends on its neighbours.
    """

    def __init__(
        self, engine: Engine, verifiers: Verifiers, dialogue: Dialogue, section: EnvironmentSection, run: Path | None
    ) -> None:
        """In the folder `run`, answers of a recorded environment take the place of its own, and others are added."""
        self._engine, self._verifiers, self._dialogue = engine, verifiers, dialogue
        self._max_turn_tokens, self._answer_after = section.max_turn_tokens, section.answer_after
        self._repeats, self._record = not section.recorded, run if section.recorded else None
        self._text = text_keeping(dialogue.tokenizer, MARKS)
        # Kinds of requests in which the environment repeated itself: the purpose of the request, and a task
        self._checked = set[tuple[SeedName, ...]]()
        self._of: tuple[SeedName, ...] = ()  # seed, purpose and step of the requests that are not marked as ended
        self._open: list[RequestRecord] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(
        self,
        prompts: Sequence[Prompt],
        counts: Sequence[int],
        sampling: Sampling,
        *,
        seed: tuple[SeedName, ...],
        on_rollout: OnRollout | None = None,
    ) -> list[Group]:
        """See `Engine`; `on_rollout` is called with whole rollouts."""
        limit = min(self._max_turn_tokens, sampling.max_new_tokens)
        one_turn = dataclasses.replace(sampling, max_new_tokens=limit)
        most = sampling.max_new_tokens - limit
        games: dict[str, _Game] = {}  # by the id of the prompt that the engine continues
        record = self._record_of(seed, greedy=not sampling.temperature)

        def turn_of(prompt: Prompt, rollout: Rollout) -> None:
            name = rollout_id(prompt.id, rollout.index)
            if name not in games:
                games[name] = _Game(prompt, rollout.index, self._verifiers.new_episode(), record)
            self._take(games[name], rollout)

        def later_turn(prompt: Prompt, rollout: Rollout) -> None:
            self._take(games[prompt.id], rollout)

        def answers(ended: Sequence[PendingRollout]) -> list[IntArray | None]:
            taken = [games[rollout_id(each.prompt.id, each.index)] for each in ended]
            over = self._answer(taken, most, on_rollout)
            return [None if is_over else game.tokens[-1] for game, is_over in zip(taken, over, strict=True)]

        kept = getattr(self._engine, "keeps_turns", False)
        turns = Turns(
            max_tokens=sampling.max_new_tokens,
            steps=self._answer_after,
            opening=self._dialogue.opening,
            answers=answers,
        )
        more: dict[str, Any] = {"turns": turns} if kept else {}
        try:
            sampled = self._engine.generate(prompts, counts, one_turn, seed=seed, on_rollout=turn_of, **more)
            order = [rollout_id(group.prompt.id, rollout.index) for group in sampled for rollout in group.rollouts]
            playing, turn = [] if kept else [games[name] for name in order], 0
            while playing:
                over = self._answer(playing, most, on_rollout)
                playing = [game for game, is_over in zip(playing, over, strict=True) if not is_over]
                turn += 1
                if playing:
                    following = [game.prompt_so_far() for game in playing]
                    again = turn_seed(seed, turn)
                    self._engine.generate(following, [1] * len(following), one_turn, seed=again, on_rollout=later_turn)
            self._end([games[name] for name in order], on_rollout)
            if record is not None:
                self._open.append(record)
        except BaseException:
            self._verifiers.give_up([game.episode for game in games.values() if game.outcome is None])
            raise
        if self._repeats:
            self._check_repeats([games[name] for name in order], purpose=seed[:2])  # without the step
        rollouts = iter([games[name].finished for name in order])
        return [
            Group(prompt=group.prompt, rollouts=tuple(cast(Rollout, next(rollouts)) for _ in group.rollouts))
            for group in sampled
        ]

    def _record_of(self, seed: tuple[SeedName, ...], *, greedy: bool) -> RequestRecord | None:
        """The record of a request. Those of the step before are marked as ended: its verdicts were accepted."""
        if self._record is None:
            return None
        if seed[:3] != self._of:
            for each in self._open:
                each.end()
            self._of, self._open = seed[:3], []
        return RequestRecord(self._record, seed, self._engine.version, greedy=greedy)

    def _check_repeats(self, played: Sequence[_Game], *, purpose: tuple[SeedName, ...]) -> None:
        """Have some rollouts that have ended answered again: those of a purpose and a task that were not checked yet.

        Training, probes and evaluations have other prompts, on which an environment may depend.
        """
        kinds: dict[tuple[SeedName, ...], list[tuple[Prompt, Rollout, Outcome]]] = {}
        for game in played:
            if game.finished is not None and game.outcome is not None and game.finished.finish == "stop":
                kind = (*purpose, game.prompt.task)
                kinds.setdefault(kind, []).append((game.prompt, game.finished, game.outcome))
        for kind, ended in kinds.items():
            if kind not in self._checked:
                self._verifiers.check_repeats(ended[:CHECKED])
                self._checked.add(kind)

    def _take(self, game: _Game, rollout: Rollout) -> None:
        """Add a turn of the policy, and request the environment's answer."""
        text = self._text(rollout.tokens, rollout.text)
        game.add(rollout.tokens, rollout.logprobs, np.ones(len(rollout.tokens), dtype=np.bool_), text)
        game.version = rollout.version
        self._request(game, game.rollout("stop"))

    def _request(self, game: _Game, rollout: Rollout) -> None:
        """Request the answer to a rollout's last turn from the environment, unless it is recorded."""
        game.asked = rollout
        game.answer = None if game.record is None else game.record.find(game.prompt, rollout)
        if game.answer is None:
            game.ticket = self._verifiers.request(game.prompt, rollout, game.episode)

    def _answers(self, games: Sequence[_Game]) -> list[Outcome | Reply]:
        """The answers that were requested, in the record before they are used."""
        verdicts = []
        for game in games:
            verdict = game.answer
            if verdict is None:
                verdict = self._verifiers.answer(game.ticket)
                if game.record is not None:
                    game.record.add(game.prompt, game.asked, verdict)
            verdicts.append(verdict)
        for record in {id(game.record): game.record for game in games if game.record is not None}.values():
            record.sync()
        return verdicts

    def _answer(self, games: Sequence[_Game], most: int, on_rollout: OnRollout | None) -> list[bool]:
        """Add the environment's turn to each rollout; returns for each whether it has ended instead.

        At most `most` tokens leave room for another turn.
        """
        verdicts = self._answers(games)
        replies = [(game, v) for game, v in zip(games, verdicts, strict=True) if not isinstance(v, Outcome)]
        last = [game.last for game, _ in replies]
        tokens = iter(self._dialogue.all_tokens([reply for _, reply in replies], last=last))
        for game, verdict in zip(games, verdicts, strict=True):
            if isinstance(verdict, Outcome):
                game.finished = game.rollout("stop")
                self._settle(game, verdict, on_rollout)
            elif game.size + len(turn := next(tokens)) <= most:
                game.add(turn, np.zeros(len(turn)), np.zeros(len(turn), dtype=np.bool_), verdict.text)
            else:
                game.finished = game.rollout("length")
                self._request(game, game.finished)
        return [game.finished is not None for game in games]

    def _end(self, games: Sequence[_Game], on_rollout: OnRollout | None) -> None:
        """Take the outcomes of the rollouts that had no room for another turn."""
        ending = [game for game in games if game.outcome is None]
        for game, outcome in zip(ending, self._answers(ending), strict=True):
            self._settle(game, cast(Outcome, outcome), on_rollout)

    def _settle(self, game: _Game, outcome: Outcome, on_rollout: OnRollout | None) -> None:
        finished = cast(Rollout, game.finished)
        game.outcome = outcome
        self._verifiers.settle(game.prompt, finished, outcome)
        if on_rollout is not None:
            on_rollout(game.prompt, finished)


@dataclass(eq=False)
class _Game:
    """An unfinished rollout: the tokens and the text of each turn so far."""

    prompt: Prompt
    index: int
    episode: int
    record: RequestRecord | None
    version: int = 0
    asked: Rollout = field(init=False)  # the rollout up to its last turn
    answer: Outcome | Reply | None = None  # the recorded answer to this turn
    ticket: int = -1  # of the environment's answer, if none is recorded
    tokens: list[IntArray] = field(default_factory=list)
    logprobs: list[FloatArray] = field(default_factory=list)
    sampled: list[BoolArray] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    finished: Rollout | None = None
    outcome: Outcome | None = None  # of a rollout that the environment ended

    @property
    def size(self) -> int:
        """Tokens so far."""
        return sum(map(len, self.tokens))

    @property
    def last(self) -> int:
        """The last token of the last turn; -1 where the turn is empty."""
        return int(self.tokens[-1][-1]) if len(self.tokens[-1]) else -1

    def add(self, tokens: IntArray, logprobs: FloatArray, sampled: BoolArray, text: str) -> None:
        self.tokens.append(tokens)
        self.logprobs.append(logprobs)
        self.sampled.append(sampled)
        self.texts.append(text)

    def prompt_so_far(self) -> Prompt:
        """The prompt that the engine continues: that of the rollout, with all of its tokens so far."""
        tokens = np.concatenate([self.prompt.tokens, *self.tokens])
        text = "\n".join([self.prompt.text, *self.texts])
        own = rollout_id(self.prompt.id, self.index)
        return dataclasses.replace(self.prompt, id=own, tokens=tokens, text=text)

    def rollout(self, finish: Finish) -> Rollout:
        """The rollout so far."""
        return Rollout(
            index=self.index,
            tokens=np.concatenate(self.tokens),
            logprobs=np.concatenate(self.logprobs),
            text="\n".join(self.texts[::2]),
            finish=finish,
            version=self.version,
            trainable=np.concatenate(self.sampled),
            turns=tuple(self.texts),
        )
