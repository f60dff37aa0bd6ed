"""Members by name, by file and as functions; errors name the nearest name."""

from __future__ import annotations

import dataclasses
import functools
import re
import subprocess
import sys

import numpy as np
import pytest

from refusals import refused
from winnow.errors import ConfigError
from winnow.options import bind
from winnow.registry import members, register, resolve


def test_a_name_an_alias_and_the_function_itself_are_one():
    by_name = resolve("loss", "clip")
    assert resolve("loss", "grpo_clip").function is by_name.function
    assert resolve("loss", by_name.function) == by_name


def test_published_names_have_the_members_that_they_presume():
    known = members("loss")
    assert known["reinforce"].aliases == {"no_baseline": {"advantage": "raw"}, "reinforce_with_baseline": {}}
    assert known["clip"].aliases == {"grpo_clip": {}}
    assert resolve("loss", "no_baseline") == known["reinforce"]
    assert "no_baseline" not in known


def test_what_an_alias_presumes_is_checked_or_refused():
    with refused(ConfigError, "advantag", "'advantage'", code="config.registration"):
        register("loss", "presuming", aliases={"x": {"advantag": "raw"}})
    with refused(ConfigError, "'x'", "selector", code="config.registration"):
        register("selector", "presuming", aliases={"x": {"advantage": "raw"}})


def test_a_trait_that_raises_is_named_with_its_line(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import winnow\n"
        "def check(options):\n"
        "    raise ValueError('no good')\n"
        "@winnow.register('reward', 'checked_here', check=check)\n"
        "def checked(prompt, rollout):\n"
        "    'Paid always.'\n"
        "    return 1.0\n"
    )
    entry = resolve("reward", "mine.py:checked", base=tmp_path)
    with refused(
        ConfigError, "'check'", "'checked_here'", "ValueError: no good", "mine.py, line 3", code="config.user_code"
    ):
        entry.traits.check({})


@pytest.mark.parametrize(
    ("family", "function", "trait"),
    [
        ("reward", lambda prompt, rollout, *, seconds=1.0: 1.0, {"own_limit": "second"}),
        ("engine", lambda context, *, seconds=1.0: None, {"may_change": ("second",)}),
    ],
)
def test_a_trait_names_only_options_that_exist(family, function, trait):
    (name,) = trait
    with refused(ConfigError, f"'{name}'", family, "'second'", "'seconds'", code="config.registration"):
        register(family, "naming", **trait)(function)


def test_an_unknown_name_gets_a_suggestion():
    with refused(ConfigError, "'clp'", "'clip'", code="config.unknown_member"):
        resolve("loss", "clp")


@pytest.mark.parametrize(
    ("family", "use", "meant"),
    [
        ("task", "d/good.jsonl", "--set task.path=d/good.jsonl"),
        ("task", "my data/good.jsonl", "--set 'task.path=my data/good.jsonl'"),
        ("task", "shop.shop", "shop.py:shop"),
        ("reward", "mine.reward", "mine.py:reward"),
        ("reward", "mine:reward", "mine.py:reward"),
        ("loss", "my.losses.clp", "my/losses.py:clp"),
        ("selector", "mine.py", "mine.py:function"),
    ],
)
def test_a_file_or_a_function_in_another_form_gets_the_form_of_winnow(family, use, meant):
    with refused(ConfigError, repr(use), code="config.unknown_member") as caught:
        resolve(family, use)
    assert meant in caught.value.remedy


@pytest.mark.parametrize(
    ("family", "use"), [("loss", "clp"), ("reward", "d/good.jsonl"), ("loss", "0.5"), ("loss", "")]
)
def test_another_unknown_name_is_taken_for_no_function(family, use):
    with refused(ConfigError, code="config.unknown_member") as caught:
        resolve(family, use)
    assert not {".py:", "--set"} & set(re.findall(r"\.py:|--set", caught.value.remedy))


def test_an_option_without_default_must_be_given():
    def mine(kept, *, scale: float):
        return np.full(len(kept.lengths), scale)

    with refused(ConfigError, key="weighting.scale", code="config.missing_key"):
        bind(resolve("weighting", mine), {}, key="weighting")


def test_a_function_from_a_file(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def double(groups, *, by: float = 2.0):\n    return [g.rewards * by for g in groups]\n"
    )
    entry = resolve("advantage", "mine.py:double", base=tmp_path)
    assert list(entry.options) == ["by"]
    assert bind(entry, {"by": 3.0}, key="advantage")([]) == []


def test_a_wrong_signature_is_refused():
    def too_many(groups, extra):
        return groups

    def open_ended(groups, **anything):
        return groups

    for function in (too_many, open_ended):
        with refused(ConfigError, function.__name__, "(groups)", code="config.registration"):
            resolve("advantage", function)


def test_a_taken_name_is_refused():
    with refused(ConfigError, "'clip'", "winnow", code="config.registration"):

        @register("loss", "clip")
        def other(out, mb):
            return out.logprobs, {}


@pytest.mark.parametrize(
    ("traits", "named"),
    [
        ({"basline": "none"}, ("'basline'", "'baseline'")),
        ({"baseline": "gruop"}, ("'baseline'", "'gruop'", "'group'")),
        ({"needs": ("value",)}, ("'needs.0'", "'value'", "'values'")),
    ],
)
def test_a_misspelt_trait_is_refused_at_registration(traits, named):
    with refused(ConfigError, "advantage", *named, code="config.registration"):
        register("advantage", **traits)


@pytest.mark.parametrize(
    ("family", "need"),
    [("loss", "values"), ("term", "token_rewards"), ("advantage", "entropy"), ("weighting", "values")],
)
def test_a_need_that_a_family_never_gets_is_refused_at_registration(family, need):
    with refused(ConfigError, family, f"'{need}'", code="config.registration"):
        register(family, needs=(need,))


def test_a_function_without_a_name_has_the_default_traits_of_its_family():
    entry = resolve("advantage", lambda groups: [])
    assert entry.traits.baseline == "group"
    assert resolve("allocator", lambda stats, budget: []).traits.source == "history"


def test_an_unknown_family_is_refused_wherever_it_is_named():
    for look_up in (members, register, lambda family: resolve(family, "clip")):
        with refused(ConfigError, "'losses'", "'loss'", code="config.unknown_member"):
            look_up("losses")


def test_a_trait_has_the_type_of_its_family_and_not_that_of_the_argument():
    @register("loss", "registry_test_traits", policy_gradient="false", needs=["entropy"])
    def registry_test_traits(out, mb):
        """A test's."""
        return out.logprobs, {}

    assert resolve("loss", "registry_test_traits").traits.policy_gradient is False


FILE = """
from winnow import register
@register("advantage", "NAME", aliases={"NAME_too": {}}, baseline="none")
def credit(groups):
    "A test's."
    return VALUE
"""


def registered(name):
    names = {each for entry in members("advantage").values() for each in (entry.name, *entry.aliases)}
    return {each for each in names if each.startswith(name)}


def test_an_edited_file_registers_anew_and_what_it_no_longer_has_is_gone(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(FILE.replace("NAME", "rt_before").replace("VALUE", "1"))
    assert resolve("advantage", "mine.py:credit", base=tmp_path).name == "rt_before"
    file.write_text(FILE.replace("NAME", "rt_before").replace("VALUE", "2"))
    resolve("advantage", "mine.py:credit", base=tmp_path)
    assert resolve("advantage", "rt_before").function([]) == 2
    file.write_text(FILE.replace("NAME", "rt_after").replace("VALUE", "3"))
    resolve("advantage", "mine.py:credit", base=tmp_path)
    assert registered("rt_") == {"rt_after", "rt_after_too"}


def test_one_text_cannot_register_a_name_twice(tmp_path):
    (tmp_path / "mine.py").write_text(2 * FILE.replace("NAME", "rt_twice").replace("VALUE", "1"))
    with refused(ConfigError, "'rt_twice'", tmp_path / "mine.py", code="config.registration"):
        resolve("advantage", "mine.py:credit", base=tmp_path)


def test_files_whose_paths_differ_only_in_punctuation_are_two_modules(tmp_path):
    for folder in ("a_b", "a-b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(FILE.replace("NAME", "rt_paths").replace("VALUE", "1"))
    resolve("advantage", "a_b/mine.py:credit", base=tmp_path)
    with refused(ConfigError, "'rt_paths'", tmp_path / "a_b" / "mine.py", code="config.registration"):
        resolve("advantage", "a-b/mine.py:credit", base=tmp_path)


def test_a_notebooks_cell_replaces_its_member_and_a_factory_does_not():
    cell = {"__name__": "registry_test_notebook"}
    exec(FILE.replace("NAME", "rt_cell").replace("VALUE", "1"), cell)
    exec(FILE.replace("NAME", "rt_cell").replace("VALUE", "2"), cell)
    assert resolve("advantage", "rt_cell").function([]) == 2

    def made(value):
        def credit(groups):
            """A test's."""
            return value

        return register("advantage", "rt_made")(credit)

    made(1)
    with refused(ConfigError, "'rt_made'", code="config.registration"):
        made(2)


def test_a_name_that_is_taken_leaves_none_of_the_others_behind():
    with refused(ConfigError, "'grpo'", "winnow", code="config.registration"):

        @register("advantage", "rt_half", aliases={"rt_half_too": {}, "grpo": {}})
        def credit(groups):
            return []

    assert registered("rt_half") == set()


@pytest.mark.parametrize("name", ["mine.py:credit", "credit (given from Python)", "two words", "line\nbreak", None])
def test_a_name_that_could_not_be_resolved_is_refused(name):
    with refused(ConfigError, "advantage", code="config.registration"):
        register("advantage", name)(lambda groups: [])


def test_winnows_own_names_cannot_be_taken_before_they_are_loaded():
    """In a separate process, which has not loaded the selectors yet."""
    script = (
        "from winnow.errors import ConfigError\n"
        "from winnow.registry import register, resolve\n"
        "try:\n"
        "    register('selector', 'max_variance')(lambda group, rng: 'mine')\n"
        "except ConfigError as error:\n"
        "    print(error.code)\n"
        "print(resolve('selector', 'max_variance').function.__module__)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "config.registration",
        "winnow.algos.selectors",
    ]


def test_the_origin_of_a_member_is_that_of_its_registration():
    @register("reward", "rt_wrapped")
    @functools.wraps(resolve("reward", "boxed").function)
    def mine(prompt, rollout):
        return 1.0

    del mine.__wrapped__  # as a decorator that only copies the name does
    own, boxed = resolve("reward", "rt_wrapped"), resolve("reward", "boxed")
    assert (own.origin, own.package) == (__file__, None)
    assert (boxed.origin, boxed.package) == ("winnow", "winnow")


class Scaled:
    """Credits times a factor."""

    by: str  # not the option's type

    def __call__(self, groups, *, by: float = 1.0):
        return by


class Sampler:
    by: str

    def __init__(self, context, *, by: float = 1.0) -> None:
        self.made_with = by


def scaled(groups, *, by: float = 1.0, shift: float = 0.0):
    """Credits times a factor."""
    return by


@pytest.mark.parametrize(
    ("family", "member"),
    [
        ("advantage", Scaled()),
        ("advantage", functools.partial(scaled, shift=2.0)),
        ("advantage", functools.cache(scaled)),
        ("advantage", Scaled().__call__),
        ("engine", Sampler),
    ],
    ids=["object", "partial", "cached", "method", "class"],
)
def test_whatever_can_be_called_is_a_member_whose_options_are_checked(family, member):
    bound = bind(resolve(family, member), {"by": 3}, key=family)
    answer = bound(())
    assert getattr(answer, "made_with", answer) == 3.0
    with refused(ConfigError, "'three'", key=f"{family}.by", code="config.value"):
        bind(resolve(family, member), {"by": "three"}, key=family)


def test_an_option_of_a_type_that_cannot_be_checked_takes_anything():
    @dataclasses.dataclass
    class Own:
        size: int

    def hidden(groups, *, own: Own, other: np.no_such_type = 1):
        return own

    def typed(groups, *, own: Own):
        return own

    typed.__annotations__["own"] = Own
    for function in (hidden, typed):
        assert bind(resolve("advantage", function), {"own": Own(1)}, key="advantage")([]) == Own(1)


def test_a_script_may_resolve_members_of_its_own_file(tmp_path):
    """In a separate process: the member of the file is that of the script, which is not run again."""
    script = (
        "from winnow.registry import name_of, register, resolve\n"
        "print(__name__)\n"
        "@register('advantage', 'rt_script', baseline='none')\n"
        "def credit(groups):\n"
        "    return []\n"
        "if __name__ == '__main__':\n"
        "    by_file = resolve('advantage', 'mine.py:credit')\n"
        "    print(by_file.function is credit, by_file.traits.baseline, resolve('advantage', 'rt_script') == by_file)\n"
        "    print(resolve('advantage', credit).traits.baseline, name_of(credit))\n"
    )
    (tmp_path / "mine.py").write_text(script)
    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["__main__", "True none True", "none rt_script"]


@pytest.mark.parametrize(
    "function",
    [lambda solution_str, ground_truth: 0.0, lambda prompts, completions: 0.0, lambda completions, answer: 0.0],
)
def test_a_reward_of_another_program_is_refused(function):
    with refused(ConfigError, "(prompt, rollout)", code="config.registration"):
        resolve("reward", function)
