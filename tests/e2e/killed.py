"""Run by test_resume.py: `winnow train CONFIG`, killed with SIGKILL at a chosen moment of step 3.

python killed.py generate|update|save CONFIG
"""

from __future__ import annotations

import os
import signal
import sys

from winnow.commands import main
from winnow.core import collect
from winnow.learner.optimizer import Optimizer
from winnow.state import checkpoint


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after_generate() -> None:
    check = collect.check_fresh
    collect.check_fresh = lambda groups, number: die() if number == 3 else check(groups, number)


def after_the_first_update() -> None:
    take = Optimizer.step

    def stepped(self: Optimizer) -> object:
        result = take(self)
        return die() if self.updates == 3 * 4 + 1 else result

    Optimizer.step = stepped


def during_the_save() -> None:
    publish = checkpoint._publish
    checkpoint._publish = lambda draft, final: die() if final.name == "step-000003" else publish(draft, final)


moment, config = sys.argv[1:]
{"generate": after_generate, "update": after_the_first_update, "save": during_the_save}[moment]()
sys.argv = ["winnow", "train", config]
main()
