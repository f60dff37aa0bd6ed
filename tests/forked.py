"""Commands in processes of their own that need not import torch again: forks of one process per test worker, which has
imported what winnow does and has computed nothing.

To import torch and transformers takes a second or more of a processor's time, a run of a tiny policy less. What must
be seen of a whole interpreter (its flags, what it imports, how it is installed) is for tests that start one.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from unittest import mock

SECONDS = 250.0


def context() -> Any:
    """The multiprocessing context whose processes are such forks."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["no_collection", "forked_imports"])
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": path}):
        forkserver.ensure_running()
    return forks


def winnow(*arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """`winnow ARGUMENTS`, as `run` does it."""
    return run(_command, *map(str, arguments), **more)


def python(script: Path, *arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """`python SCRIPT ARGUMENTS`, as `run` does it."""
    return run(_script, str(script), *map(str, arguments), **more)


def run(
    function: Callable[..., None],
    *arguments: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = SECONDS,
) -> subprocess.CompletedProcess[str]:
    """A function of a module in a fork: as `subprocess.run` with text that is captured; `env` adds to what is there.

    Raises TimeoutError, and the fork is killed, where it takes longer than `timeout` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="forked-") as folder:
        environment = {**os.environ, **(env or {})}
        about = (folder, str(cwd or Path.cwd()), environment)
        process = context().Process(target=_live, args=(*about, function, arguments))
        process.start()
        process.join(timeout)
        late = process.exitcode is None
        if late:
            process.kill()
            process.join()
        out, err = (Path(folder, name).read_text(errors="replace") for name in ("out", "err"))
        if late:
            raise TimeoutError(f"{' '.join(arguments)} took longer than {timeout} seconds\n{out}{err}")
        return subprocess.CompletedProcess(list(arguments), process.exitcode, out, err)


def _live(
    folder: str, cwd: str, env: dict[str, str], function: Callable[..., None], arguments: tuple[str, ...]
) -> None:
    """The whole of a fork that writes its output to files."""
    out, err = (os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in ("out", "err"))
    live(cwd, env, out, err, lambda: function(*arguments))


def live(cwd: str, env: Mapping[str, str], out: int, err: int, act: Callable[[], object]) -> None:
    """Act as a process with this folder, environment and output (two descriptors, which may be one), and then do what
    Python does at an exit.
    """
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    for number, file in ((1, out), (2, err)):
        os.dup2(file, number)
    for file in {out, err}:
        os.close(file)
    import torch

    torch.set_num_threads(1)
    try:
        act()
    finally:
        atexit._run_exitfuncs()


def _command(*arguments: str) -> None:
    from winnow.commands import main

    sys.argv = ["winnow", *arguments]
    main()


def _script(script: str, *arguments: str) -> None:
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
