"""What docs/watching.md shows in Python does what the page says."""

from __future__ import annotations

import json
import urllib.request

from doc_pages import blocks

from synthetic_run import metrics, write_run
from winnow.config import Config, dump
from winnow.core.events import AlarmRaised
from winnow.records import Alarm


def shown(page, first):
    (text,) = (block.text for block in blocks(page) if block.language == "python" and block.first == first)
    names = {}
    exec(text, names)
    return names


def test_a_run_is_diagnosed_as_shown(tmp_path, capsys):
    names = shown("docs/watching.md", "import winnow")
    alarm = Alarm(step=7, name="all_flat", text="step 7: all_flat", evidence={"group/flat": 4.0}, keys={"task": None})
    names["watch"](AlarmRaised(alarm))
    assert capsys.readouterr().out == "all_flat {'group/flat': 4.0} {'task': None}\n"
    run = write_run(tmp_path / "run")
    (run / "manifest.json").write_text(json.dumps({"winnow_run": 1, "base": "", "config": dump(Config())}))
    alike = {"reward/min": 0.0, "reward/max": 0.0, "reward/mean": 0.0, "reward/accuracy": 0.0}
    rows = [{"step": step, **metrics(step, **alike)} for step in range(8)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    names["diagnose"](str(run))
    assert "constant_reward" in capsys.readouterr().out


def test_a_tracker_of_your_own_posts_what_it_is_told(monkeypatch):
    sent = []
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, data, timeout: sent.append((url, data)))
    post = shown("docs/watching.md", "# mine.py")["post"]
    tracker = post(None, url="http://localhost:8000")
    tracker.log(2, {"reward/mean": 0.5})
    tracker.log(3, {"eval/accuracy_sampled": 0.25})
    assert sent == [("http://localhost:8000", b"step 3: 25.0%")]
