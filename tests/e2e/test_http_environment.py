"""examples/http_environment.py against a server in this process: an episode per rollout, and a run that is recorded."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import winnow
from chat_templates import render_here
from winnow.environments.replay import make_environment
from winnow.records import Prompt, Rollout
from winnow.state.logbook import read_rows

CLIENT = Path(__file__).parents[2] / "examples" / "http_environment.py"


class Counter(BaseHTTPRequestHandler):
    """Counts to the number in the row, and pays 1 when it is reached. Observations contain the number of requests."""

    episodes: ClassVar[dict[str, dict[str, Any]]] = {}
    requests = 0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Counter.requests += 1
        if body.get("action", {}).get("amount") == 13:
            self.send_error(500)
            return
        if self.path == "/reset":
            state = self.episodes.setdefault(body["episode_id"], {"goal": int(body["row"]["answer"]), "count": 0})
        else:
            state = self.episodes[body["episode_id"]]
            state["count"] += body["action"]["amount"]
        done = state["count"] >= state["goal"]
        observation = {"count": state["count"], "request": Counter.requests}
        data = json.dumps({"observation": observation, "reward": float(done), "done": done}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *about: Any) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Counter.episodes.clear()
    Counter.requests = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Counter) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def rollout(*turns: str) -> Rollout:
    none = np.zeros(0)
    return Rollout(index=0, tokens=none.astype(int), logprobs=none, text="", finish="stop", version=0, turns=turns)


def test_calls_are_actions_and_each_rollout_has_an_episode(url: str):
    played = make_environment(f"{CLIENT}:Remote", {"url": url}, max_turns=4)
    prompt = Prompt(id="p", tokens=np.array([1]), text="?", answer="3", task="t")
    one = played(prompt, rollout("<call>act add 2</call>"), 1)
    two = played(prompt, rollout("<call>act add 1</call>"), 2)
    assert [json.loads(each.text)["count"] for each in (one, two)] == [2, 1]
    ended = played(prompt, rollout("<call>act add 2</call>", one.text, "<call>act add 1</call>"), 1)
    assert (ended.reward, ended.correct) == (1.0, True)
    assert played(prompt, rollout("<call>act add 1</call>", two.text, "enough"), 2).reward == 0.0
    assert len(Counter.episodes) == 2


def test_a_server_that_fails_is_an_answer_to_a_call_and_a_failure_of_a_rollout(url: str):
    played = make_environment(f"{CLIENT}:Remote", {"url": url + "0", "seconds": 0.5}, max_turns=4)
    prompt = Prompt(id="p", tokens=np.array([1]), text="?", answer="3", task="t")
    assert played(prompt, rollout("<call>act add 2</call>")).cause == "raised"
    reply = make_environment(f"{CLIENT}:Remote", {"url": url}, max_turns=4)(prompt, rollout("<call>act add 13</call>"))
    assert reply.text.startswith("error: ")


def test_a_run_with_a_server_resumes_from_its_record(
    url: str, smallest: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    render_here(monkeypatch)
    config = smallest(
        prompt={"template": "chat"},
        rollout={"max_new_tokens": 60, "prompts_per_step": 2, "rollouts_per_prompt": 4},
        verify={"workers": 0},
        steps=1,
    )
    del config["reward"]
    environment = {"use": f"{CLIENT}:Remote", "url": url, "max_turn_tokens": 6, "recorded": True}
    run = tmp_path / "run"
    winnow.train(**{**config, "environment": environment, "output": str(run)}, progress=False)
    assert {row["kind"] for row in read_rows(run / "rollouts")} <= {"correct", "wrong"}
    lines = (run / "answers" / "rollout-000000-000000.rank-0.jsonl").read_text().splitlines()
    assert len(lines) == 9, "an outcome for each of 8 rollouts without a call, and the mark of the end"
    assert Counter.requests >= 8
    asked, turns = Counter.requests, [repr(row["turns"]) for row in read_rows(run / "rollouts")]
    shutil.rmtree(run / "checkpoints" / "step-000001")
    winnow.resume(run, steps=1, trust_run=True, progress=False)
    assert Counter.requests == asked
    assert [repr(row["turns"]) for row in read_rows(run / "rollouts")] == turns
