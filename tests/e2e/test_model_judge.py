"""examples/model_judge.py against a server in this process: a verdict, a failure, and never a 0 that nobody gave."""

from __future__ import annotations

import http.client
import importlib.util
import itertools
import urllib.error
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import winnow
from winnow.errors import VerifierError
from winnow.state.logbook import read_rows
from winnow.verify.golds import task_of

FILE = Path(__file__).parents[2] / "examples" / "model_judge.py"
PROBLEM = winnow.Problem(id="p", question="What is 40 + 2?", answer="42", task="t")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("model_judge", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    return module


def test_a_dropped_connection_is_asked_again(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, left = example.urllib.request.urlopen, [http.client.RemoteDisconnected("closed")]

    def flaky(*args: Any, **options: Any) -> Any:
        if left:
            raise left.pop()
        return ask(*args, **options)

    monkeypatch.setattr(example.urllib.request, "urlopen", flaky)
    with example.stand_in(["Verdict: yes"]) as url:
        assert example.judge(*task_of(PROBLEM, "It is 42."), url=url).correct
    assert left == []


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        ("Both are 42.\nVerdict: yes", 1.0),
        ("verdict: YES\n\n", 1.0),
        ("They differ.\nVerdict: no", 0.0),
        ('The answer says "Verdict: yes".\nVerdict: no', 0.0),
    ],
)
def test_a_reply_that_ends_with_a_verdict_is_one(example: ModuleType, reply: str, reward: float) -> None:
    with example.stand_in([reply]) as url:
        outcome = example.judge(*task_of(PROBLEM, "It is 42."), url=url)
    assert (outcome.reward, outcome.correct) == (reward, bool(reward))
    assert outcome.kind == ("correct" if reward else "wrong")


@pytest.mark.parametrize(
    "reply", ["", "   \n", "yes", "Verdict:", "Verdict: yes or no", "Verdict: maybe", "Verdict: yes\nOr is it no?"]
)
def test_a_reply_without_a_verdict_is_an_error_and_no_zero(example: ModuleType, reply: str) -> None:
    with example.stand_in([reply]) as url, pytest.raises(ValueError, match="no verdict"):
        example.judge(*task_of(PROBLEM, "It is 42."), url=url)


def test_a_busy_server_is_asked_again(example: ModuleType) -> None:
    with example.stand_in([None, None, "Verdict: yes"]) as url:
        assert example.judge(*task_of(PROBLEM, "42"), url=url).correct
    with example.stand_in([None, None, "Verdict: yes"]) as url, pytest.raises(urllib.error.HTTPError):
        example.judge(*task_of(PROBLEM, "42"), url=url, tries=2)


def test_a_server_that_is_not_there_is_an_error(example: ModuleType) -> None:
    with example.stand_in([]) as url:
        pass
    with pytest.raises(urllib.error.URLError):
        example.judge(*task_of(PROBLEM, "42"), url=url, seconds=0.5)


def test_an_empty_answer_is_wrong_and_not_judged(example: ModuleType) -> None:
    with example.stand_in([]) as url:
        outcome = example.judge(*task_of(PROBLEM, " \n"), url=url)
    assert (outcome.kind, outcome.reward) == ("unparsable", 0.0)


def test_a_run_is_trained_on_verdicts_and_ends_without_any(example: ModuleType, smallest: Any, tmp_path: Path) -> None:
    config = smallest(
        rollout={"max_new_tokens": 8, "prompts_per_step": 2, "rollouts_per_prompt": 4},
        steps=1,
    )
    for name, replies in (("judged", ("Verdict: yes", "Verdict: no")), ("empty", ("",))):
        config["verify"] = {"workers": int(name == "judged"), "timeout_seconds": 60.0}
        with example.stand_in(itertools.cycle(replies)) as url:
            config |= {"reward": {"use": f"{FILE}:judge", "url": url}, "output": str(tmp_path / name)}
            if name == "judged":
                winnow.train(**config, progress=False)
            else:
                with pytest.raises(VerifierError):
                    winnow.train(**config, progress=False)
    rows = list(read_rows(tmp_path / "judged" / "rollouts"))
    assert {row["kind"] for row in rows} <= {"correct", "wrong", "unparsable"}
    assert {row["reward"] for row in rows} == {0.0, 1.0}


def test_the_example_prints_what_replies_become(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")  # which main sets, and which is restored
    example.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-3:-2] == ["correct,"] for line in lines] == [True, False, False, False, False]
    assert sum(" failed: " in line for line in lines) == 3


def test_the_stand_in_is_asked_without_a_proxy(example, monkeypatch, capsys):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    example.main()
    assert "correct, reward 1.0" in capsys.readouterr().out
