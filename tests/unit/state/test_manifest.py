from __future__ import annotations

import json

import pytest

from winnow.errors import RunFolderError
from winnow.state.run_folder import RunFolder


@pytest.mark.parametrize("version", [2, 0, "1", None, [1]])
@pytest.mark.parametrize("resume", [False, True])
def test_a_manifest_of_another_format_is_refused_and_left_as_it_is(tmp_path, version, resume):
    text = json.dumps({"winnow_run": version, "config": {}})
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"manifest\.json is of format .*, and this winnow knows 1 at most"):
        RunFolder.open(tmp_path, resume=resume)
    assert (tmp_path / "manifest.json").read_text() == text
