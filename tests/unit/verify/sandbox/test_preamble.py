"""The names that a program may use without importing them, and the program's own names before them."""

from __future__ import annotations

import builtins
import dataclasses

import pytest

from winnow.verify.sandbox import Limits, Program, RunResult, SandboxError, choose, preamble

LIMITS = Limits(cpu_seconds=30, wall_seconds=120.0)  # far beyond what a busy machine needs


@pytest.fixture(autouse=True)
def there_is_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a user of its own for each run, as in test_launch.py."""
    try:
        sandbox = choose("auto")
    except SandboxError as error:
        pytest.skip(str(error))
    if sandbox.layers.bubblewrap is None:
        monkeypatch.setattr(sandbox, "layers", dataclasses.replace(sandbox.layers, own_user=False))


def run(code: str, stdin: bytes = b"") -> RunResult:
    return choose("auto").run(Program(code=code.encode(), stdin=stdin), LIMITS)


def call(code: str, name: str, arguments: str = "[]") -> bytes | None:
    return choose("auto").run(Program(code=code.encode(), function=name, arguments=arguments), LIMITS).value


def printed(code: str) -> str:
    ended = run(code)
    assert (ended.ending, ended.detail) == ("finished", "")
    return ended.stdout.decode().rstrip("\n")


USES = {
    "typing": "def f(a: List[int], b: Optional[Dict[str, Set[int]]], *c: Tuple[Any]) -> Union[int, str]: ...",
    "a class": "class Solution:\n  seen: DefaultDict[int, int]\n  def f(self, a: Callable) -> Iterator: ...",
    "modules": "print(typing, collections, math, heapq, itertools, functools, bisect, string, re, sys, random, copy, "
    "datetime, statistics, operator, io, json, time, fractions, decimal)",
    "collections": "print(deque([1]), Counter('a')['a'], defaultdict(int)[0], OrderedDict())",
    "math": "print(sqrt(4), gcd(4, 6), inf, pi, comb(4, 2), math.isqrt(9), floor(1.5), ceil(1.5), log2(8))",
    "heapq and bisect": "a = [2, 1]; heapify(a); heappush(a, 0); print(heappop(a), bisect_left(a, 1), insort(a, 3))",
    "itertools": "print(*accumulate([1, 2]), *permutations([1]), *product([1]), *combinations([1], 1), *chain([1]))",
    "functools": "print(reduce(lambda a, b: a + b, [1, 2]), sorted([2, 1], key=cmp_to_key(lambda a, b: a - b)))\n"
    "@lru_cache(None)\ndef f(n): return n\n@cache\ndef g(n): return f(n)\nprint(g(1))",
    "string and re": "print(ascii_lowercase, digits, findall('a', 'a'), re.sub('a', 'b', 'a'))",
    "sys": "setrecursionlimit(5000); print(stdin.read(), stdout is sys.stdout, maxsize)",
    "more": "print(Fraction(1, 2), Decimal(1), mean([1]), itemgetter(0)([1]), deepcopy([1]), randint(1, 1))",
    "nested": "def f():\n  class A:\n    g = lambda self: [sqrt(i) for i in [4]]\n  return A().g()\nprint(f())",
}


@pytest.mark.parametrize("name", USES)
def test_usual_names_are_in_scope(name: str):
    printed(USES[name])


def test_a_module_comes_before_a_name_in_a_module():
    """`datetime` and `copy` are modules, as a checker's last imports leave them."""
    assert printed("print(datetime.date(2024, 2, 29), copy.copy([1]), time.time() > 0)") == "2024-02-29 [1] True"


def test_names_of_python_itself_stay():
    """math.pow, operator.abs, io.open and re.compile are not the builtins of these names."""
    assert printed("print(pow(2, 3), pow(2, -1, 7), sum([1]), abs(-1), compile.__module__)") == "8 4 1 1 builtins"
    lines = [line.split()[0].decode() for line in preamble.table().splitlines()]
    assert not [name for name in lines if hasattr(builtins, name)]
    assert len(lines) == len(set(lines))


OWN = {
    "a variable": "gcd = 7\nprint(gcd)",
    "a function": "def sqrt(x): return 7\nprint(sqrt(4))",
    "one that follows its use": "def f(): return count()\ndef count(): return 7\nprint(f())",
    "an import": "from operator import mul as math\nprint(math(7, 1))",
    "a name of typing": "class List: v = 7\ndef f(a: List): return a.v\nprint(f(List))",
    "a parameter": "print((lambda inf: inf)(7))",
    "a global statement": "def f():\n  global e\n  e = 7\nf()\nprint(e)",
    "a star import": "from statistics import *\nprint(round(mean([7])))",
    "own exit": "def exit(): return 7\nprint(exit())",
    "another use": "print([7] and 'gcd' in globals() or 7)",
}


@pytest.mark.parametrize("name", OWN)
def test_the_program_s_own_names_come_first(name: str):
    assert printed(OWN[name]) == "7"


def test_nothing_is_put_before_the_program():
    top = '"""A docstring."""\nfrom __future__ import annotations\nprint(__doc__)\ndef f(a: Unknown, b: List): ...\n'
    assert printed(top) == "A docstring."
    assert printed(f"{top}print(f.__annotations__, sorted(n for n in globals() if n[0] != '_'))") == (
        "A docstring.\n{'a': 'Unknown', 'b': 'List'} ['annotations', 'f']"
    )
    ended = run("x: List = []\n\ngcd(4, 6)\n1 / 0\n")
    assert 'File "solution.py", line 4' in ended.detail


@pytest.mark.parametrize("name", ["gcd", "permutations", "List", "math", "count"])
def test_a_usual_name_is_no_answer(name: str):
    """A program without the function fails, although the name of the function is in scope."""
    assert call(f"{name}\n", name, "[4, 6]") is None
    assert call(f"{name}\nclass Solution: pass", name, "[4, 6]") is None


def test_a_method_comes_before_a_function_of_its_name():
    """A solution may import, or use, the function after which its method is named."""
    method = "class Solution:\n  def permutations(self, a: List): return len([*permutations(a)])"
    assert call(method, "permutations", "[[1, 2, 3]]") == b"6"
    assert call(f"from itertools import permutations\n{method}", "permutations", "[[1, 2, 3]]") == b"6"
    assert call("class Solution: pass\ndef f(): return 1", "f") == b"1"


def test_an_attribute_imports_nothing():
    """`split` is a name of re and `copy` a module, but here both are methods."""
    names = "print([n for n in ('re', 'typing', 'copy') if n in __import__('sys').modules])"
    assert printed(f"'a b'.split(); [].copy()\n{names}") == "[]"
    assert printed(f"split\n{names}") == "['re']"


def test_many_names_are_found():
    """The place of a name above 255 takes a longer instruction."""
    many = "\n".join(f"v{place} = {place}" for place in range(70_000))
    assert printed(f"{many}\nprint(sqrt(4), v69999)") == "2.0 69999"


@pytest.mark.parametrize("leave", ["exit()", "quit()", "exit(0)", "exit", "sys.exit()", "raise SystemExit"])
def test_a_program_may_leave_as_in_python(leave: str):
    ended = run(f"print(1)\n{leave}\nprint(2)\n")
    assert (ended.ending, ended.stdout) == ("finished", b"1\n" if leave != "exit" else b"1\n2\n")


def test_leaving_with_a_status_is_an_error():
    assert run("exit(3)").ending == "runtime_error"
    assert run("quit('no')").detail == "no"
    assert call("def f(): exit()", "f") is None


def test_deep_recursion_and_long_integers_work_as_in_livecodebench() -> None:
    deep = "def f(n): return n and 1 + f(n - 1)\n"
    assert printed(f"{deep}print(f(20_000), len(str(10**20_000)))") == "20000 20001"
