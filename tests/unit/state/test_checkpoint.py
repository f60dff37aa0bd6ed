from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import time

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from refusals import refused
from refusing_disks import small_disk
from winnow.errors import RunFolderError
from winnow.models.folder import published_files
from winnow.models.save import write_model_folder
from winnow.models.tensor_file import write_tensors
from winnow.state import checkpoint


def write_weights(value: float, size: int = 1000):
    def write(folder):
        return {
            "model.safetensors": write_tensors(folder / "model.safetensors", {"weight": torch.full((size,), value)})
        }

    return write


def save(folder, step, *, keep_last=2, size=1000, **state):
    moments = {"exp_avg": torch.full((7,), step / 3, dtype=torch.float64), "step": torch.tensor(float(step))}
    return checkpoint.save(
        folder, step, write_model=write_weights(step, size), tensors=moments, state=state, keep_last=keep_last
    ).path


def names(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_what_was_saved_is_loaded(tmp_path):
    path = save(tmp_path, 10, history={"a": [1, 0.1 + 0.2]}, window=[True, None])

    found = checkpoint.newest(tmp_path)
    tensors, state = checkpoint.load(found)

    assert found == checkpoint.Checkpoint(tmp_path / "checkpoints" / "step-000010", 10)
    assert found.path == path
    assert state == {"history": {"a": [1, 0.30000000000000004]}, "window": [True, None]}
    assert tensors["exp_avg"].dtype == torch.float64
    assert tensors["exp_avg"].tolist() == [10 / 3] * 7
    assert tensors["step"].shape == ()


def test_no_checkpoint_is_none(tmp_path):
    assert checkpoint.newest(tmp_path) is None


def test_old_checkpoints_are_removed_after_a_save(tmp_path):
    for step in (2, 4, 6, 10):
        save(tmp_path, step)
    assert names(tmp_path) == ["step-000006", "step-000010"]
    save(tmp_path, 12, keep_last=1)
    assert names(tmp_path) == ["step-000012"]


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "flipped": (lambda p: flip_a_bit(p / "model.safetensors"), ["model.safetensors"]),
    "cut": (lambda p: os.truncate(p / "trainer.tensors", 20), ["trainer.tensors", " 20 "]),
    "gone": (lambda p: (p / "trainer.json").unlink(), ["trainer.json"]),
    "no manifest": (lambda p: (p / "manifest.json").unlink(), ["manifest.json"]),
    "torn manifest": (lambda p: os.truncate(p / "manifest.json", 30), ["manifest.json"]),
    "other manifest": (lambda p: (p / "manifest.json").write_text("[]"), ["manifest.json"]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_and_named(tmp_path, damage):
    do, named = DAMAGES[damage]
    save(tmp_path, 5)
    do(save(tmp_path, 10))

    found = checkpoint.newest(tmp_path)

    assert found.step == 5
    (notice,) = found.notices
    assert all(name in notice for name in ["step-000010", *named])


def test_if_every_checkpoint_is_damaged_the_resume_is_refused(tmp_path):
    flip_a_bit(save(tmp_path, 5) / "model.safetensors")
    with refused(RunFolderError, "step-000005", "model.safetensors", code="run_folder.damaged"):
        checkpoint.newest(tmp_path)


def test_a_save_replaces_a_damaged_checkpoint_and_keeps_a_whole_one(tmp_path):
    flip_a_bit(save(tmp_path, 10, first=True) / "model.safetensors")
    path = save(tmp_path, 10, first=False)
    assert checkpoint.load(checkpoint.newest(tmp_path))[1] == {"first": False}

    before = (path / "manifest.json").stat().st_ino
    save(tmp_path, 10, first=False)
    assert (path / "manifest.json").stat().st_ino == before


def test_a_damaged_newer_checkpoint_does_not_count_as_one_to_keep(tmp_path):
    flip_a_bit(save(tmp_path, 10) / "model.safetensors")
    save(tmp_path, 8, keep_last=1)
    save(tmp_path, 9, keep_last=1)
    assert names(tmp_path) == ["step-000009", "step-000010"]
    assert checkpoint.newest(tmp_path).step == 9


def test_leftovers_of_an_interrupted_save_are_removed_by_the_next(tmp_path):
    save(tmp_path, 1)
    for leftover in (".unfinished-step-000002", ".unfinished-old-step-000000"):
        (tmp_path / "checkpoints" / leftover).mkdir()
        (tmp_path / "checkpoints" / leftover / "model.safetensors").write_bytes(b"half")
    assert checkpoint.newest(tmp_path).step == 1
    save(tmp_path, 2)
    assert names(tmp_path) == ["step-000001", "step-000002"]


def test_too_little_space_is_refused_before_anything_is_written(tmp_path):
    path = save(tmp_path, 1)
    os.truncate(path / "model.safetensors", 10**13)  # sparse: 10 TB long, without blocks
    with refused(RunFolderError, "15000000 MB", "step-000002", code="run_folder.unsaved"):
        save(tmp_path, 2)
    assert names(tmp_path) == ["step-000001"]


def test_a_refusing_disk_costs_only_the_new_checkpoint(tmp_path):
    save(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with refused(RunFolderError, "step-000002", code="run_folder.unsaved"):
            save(tmp_path, 2, size=5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["step-000001"]
    save(tmp_path, 2, size=5000)
    assert checkpoint.newest(tmp_path).step == 2


def test_the_only_checkpoint_outlives_a_failed_save(tmp_path):
    def full_disk(folder):
        raise OSError("No space left on device")

    save(tmp_path, 1, keep_last=1)
    with refused(RunFolderError, "step-000002", code="run_folder.unsaved"):
        checkpoint.save(tmp_path, 2, write_model=full_disk, tensors={}, state={}, keep_last=1)
    assert checkpoint.newest(tmp_path).step == 1


def test_on_a_full_disk_the_oldest_checkpoints_make_room(tmp_path):
    run = tmp_path / "disk"
    with small_disk(run, 600_000):
        notices = []
        for step in range(1, 7):  # 100 kB each
            saved = checkpoint.save(
                run, step, write_model=write_weights(step, 25_000), tensors={}, state={}, keep_last=6
            )
            notices += saved.notices
        kept = names(run)
        assert kept[-1] == "step-000006"
        assert 2 <= len(kept) < 6
        removed = [f"step-{step:06}" for step in range(1, 7 - len(kept))]
        assert [name for note in notices for name in removed if f"{name} was removed" in note] == removed
        (run / "filled").write_bytes(bytes(shutil.disk_usage(run).free))
        with refused(RunFolderError, "step-000007", code="run_folder.unsaved") as caught:
            checkpoint.save(run, 7, write_model=write_weights(7, 100_000), tensors={}, state={}, keep_last=6)
        assert checkpoint.is_full(caught.value)
        assert checkpoint.newest(run).step == 6  # never removed for a checkpoint that is not written yet


def test_a_checkpoint_that_cannot_be_removed_makes_no_room(tmp_path, monkeypatch):
    for step in (1, 2):
        save(tmp_path, step)
    monkeypatch.setattr(checkpoint, "_discard", lambda path: iter(["it could not be removed"]))
    assert checkpoint.make_room(tmp_path, 3) == []


def test_a_damaged_checkpoint_does_not_replace_an_older_one(tmp_path):
    for step in (1, 2):
        save(tmp_path, step)
    (tmp_path / "checkpoints" / "step-000002" / "model.safetensors").unlink()
    assert checkpoint.make_room(tmp_path, 3) == []
    assert names(tmp_path) == ["step-000001", "step-000002"]


def test_a_full_disk_costs_a_skipped_checkpoint_and_not_the_one_that_was_resumed(tmp_path):
    known = save(tmp_path, 30)
    flip_a_bit(save(tmp_path, 37) / "model.safetensors")
    assert "step-000037 was removed" in checkpoint.make_room(tmp_path, 40, known)[0]
    assert checkpoint.make_room(tmp_path, 40, known) == []
    assert names(tmp_path) == ["step-000030"]


def test_a_state_that_is_not_json_is_refused(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        save(tmp_path, 1, loss=float("nan"))
    assert names(tmp_path) == []


def save_until_killed(folder, first, report):
    step = first
    while True:
        save(folder, step, size=50_000)
        os.write(report, step.to_bytes(8, "little"))
        step += 1


@pytest.mark.parametrize(
    ("seed", "kills"),
    [(0, 8), pytest.param(1, 20, marks=pytest.mark.slow)],  # of the same kind as the eight, each a fork of this process
)
def test_sigkill_at_any_moment_never_costs_a_finished_checkpoint(tmp_path, seed, kills):
    """Children save as fast as they can and are killed at random; what a child reported as saved must be found."""
    rng = random.Random(seed)
    saved = -1
    leftovers = 0
    for _ in range(kills):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                save_until_killed(tmp_path, saved + 1, write_end)
            finally:  # an error must not go on as a second pytest
                os._exit(1)
        os.close(write_end)
        os.read(read_end, 8)
        time.sleep(rng.uniform(0, 0.1))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(read_end, "rb") as reports:
            reported = reports.read()
        last = int.from_bytes(reported[-8:], "little") if reported else saved + 1

        found = checkpoint.newest(tmp_path)

        assert found.step in (last, last + 1)
        assert found.notices == ()
        assert checkpoint.load(found)[0]["exp_avg"][0].item() == found.step / 3
        leftovers += any(name.startswith(".") for name in names(tmp_path))
        saved = found.step
    assert leftovers > 0  # else no kill fell into a save and the test proves nothing


def tiny(dtype=torch.float32, *, tied=False):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=11, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=16, tie_word_embeddings=tied, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(dtype)


def tokenizer():
    words = {word: i for i, word in enumerate(["<pad>", "<s>", "</s>", *"01234567"])}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="<pad>")), eos_token="</s>")


def files(folder):
    tokenizer().save_pretrained(folder / "start")
    return published_files(folder / "start")


def assert_same_bits(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_full_model_resumes_bit_by_bit_from_its_folder(tmp_path, dtype, tied):
    model, published = tiny(dtype, tied=tied), files(tmp_path)
    path = checkpoint.save(
        tmp_path, 1, write_model=lambda folder: write_model_folder(model, published, folder),
        tensors={}, state={}, keep_last=1,
    ).path  # fmt: skip

    assert checkpoint.newest(tmp_path).path == path
    assert_same_bits(AutoModelForCausalLM.from_pretrained(path, dtype=dtype).state_dict(), model.state_dict())
    assert AutoTokenizer.from_pretrained(path).eos_token == "</s>"
    assert not list(path.rglob("*.bin")) + list(path.rglob("*.pt"))


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks transformers
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_lora_model_is_saved_merged_and_as_a_separate_adapter(tmp_path, dtype):
    import peft  # with bitsandbytes, which takes a second: not while tests are collected

    settings = peft.LoraConfig(r=2, lora_alpha=4, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(tiny(dtype), settings)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    write_model_folder(model, files(tmp_path), tmp_path)

    assert_same_bits(model.state_dict(), before)
    resumed = peft.PeftModel.from_pretrained(tiny(dtype), tmp_path / "adapter", is_trainable=True)
    assert_same_bits(resumed.state_dict(), before)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    assert_same_bits(merged.state_dict(), model.merge_and_unload().state_dict())
    assert not any("lora" in name for name in load_file(tmp_path / "model.safetensors"))


def test_the_manifest_covers_every_file(tmp_path):
    path = save(tmp_path, 1)
    listed = json.loads((path / "manifest.json").read_text())["files"]
    assert sorted(listed) == ["model.safetensors", "trainer.json", "trainer.tensors"]
    assert all(len(entry["sha256"]) == 64 for entry in listed.values())


def test_a_damaged_checkpoint_that_the_run_has_passed_does_not_count_as_one_to_keep(tmp_path):
    known = save(tmp_path, 30)
    flip_a_bit(save(tmp_path, 37) / "model.safetensors")
    checkpoint.save(tmp_path, 40, write_model=write_weights(40), tensors={}, state={}, keep_last=2, known=known)
    assert names(tmp_path) == ["step-000030", "step-000040"]
