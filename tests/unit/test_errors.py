"""An error is data: what is wrong, what to do, the key, and a code that programs can rely on."""

import copy
import pickle

import pytest

from winnow.errors import ConfigError, DataError, WinnowError


def kinds(base=WinnowError):
    return [base, *(kind for child in base.__subclasses__() for kind in kinds(child))]


def test_the_message_is_problem_and_remedy():
    error = ConfigError("task.size is 0", remedy="set it to 1 or more", key="task.size")
    assert (str(error), error.problem, error.remedy, error.key) == (
        "task.size is 0; set it to 1 or more",
        "task.size is 0",
        "set it to 1 or more",
        "task.size",
    )


def test_an_error_without_a_remedy_is_its_problem():
    assert str(DataError("a file is damaged")) == "a file is damaged"


def test_every_kind_has_a_code_of_its_own():
    ours = [kind for kind in kinds() if kind.__module__ == "winnow.errors"]
    assert len({kind.code for kind in ours}) == len(ours)
    assert DataError("x").code == "data"
    assert DataError("x", code="data.damaged").code == "data.damaged"


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"])
def test_an_error_from_another_process_keeps_its_parts(again):
    error = again(ConfigError("a", remedy="b", key="c.d", code="config.e"))
    assert (type(error), str(error), error.key, error.code) == (ConfigError, "a; b", "c.d", "config.e")


def test_a_place_is_put_before_the_problem():
    error = ConfigError("a", remedy="b", key="c", code="config.e").within("x.toml, line 3")
    assert (type(error), str(error), error.key, error.code) == (ConfigError, "x.toml, line 3: a; b", "c", "config.e")
