"""`rn50 workshop try`: correct scripts, and the same with changes removed.

The scripts in `scripts/` run on two ranks with their launchers, under the recorder. The expected
verdict follows from their text.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import workshop
from data_prep import tfrecord
from rn50lib.errors import UserError
from tests.support import leaving_nothing
from workshop.observe import run, verdict

SCRIPTS = Path(__file__).parent / "scripts"
KERAS_2 = {"TF_USE_LEGACY_KERAS": "1"}
CHANGES = ["start", "share", "rate", "average", "alike", "writes"]
HVD_RATE, HVD_WRITES = (" * hvd.size()", ""), ("if hvd.rank() == 0:", "if True:")
# one rank after the other: TensorFlow fails if two save the same checkpoint at once
TAPE_WRITES = "__import__('time').sleep(3 * hvd.rank())\nif True:"
HVD_OPTIMIZER = (
    "optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())\n"
)
# script, the changes that are missing then, the text that makes them, and what takes its place
CUTS = [
    ("horovod_pytorch", "share", "num_replicas=hvd.size(), rank=hvd.rank()",
     "num_replicas=1, rank=0, shuffle=False"),
    ("horovod_pytorch", "rate", *HVD_RATE),
    ("horovod_pytorch", "average", HVD_OPTIMIZER, ""),
    ("horovod_pytorch", "average", "=model.named_parameters())",
     "=model.named_parameters(), op=hvd.Sum)"),
    ("horovod_pytorch", "alike", "hvd.broadcast_parameters(", "dict("),
    ("horovod_pytorch", "writes", *HVD_WRITES),
    ("ddp", "start share average writes", 'init_process_group("gloo")',
     'init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())'),
    ("ddp", "share", "DistributedSampler(data)", "DistributedSampler(data, 1, 0)"),
    ("ddp", "average alike", "model = DistributedDataParallel(model)\n", ""),
    ("ddp", "writes", "if rank == 0:", "if True:"),
    ("by_hand", "average", "dist.all_reduce(parameter.grad)", "pass"),
    ("by_hand", "average", "        parameter.grad /= size\n", ""),
    ("by_hand", "share", "[rank::size]", ""),
    ("by_hand", "writes", "losses-{rank}", "losses"),
    ("horovod_tape", "share", "data.shard(hvd.size(), hvd.rank()).shuffle(256)", "data"),
    ("horovod_tape", "rate", *HVD_RATE),
    ("horovod_tape", "average", "tape = hvd.DistributedGradientTape(tape)", "pass"),
    ("horovod_tape", "alike", "hvd.broadcast_variables(model.variables, root_rank=0)", "pass"),
    ("horovod_tape", "writes", "if hvd.rank() == 0:", TAPE_WRITES),
]  # fmt: skip

NOISY = """
class Noisy(TensorDataset):
    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image + torch.rand(()), label
data = Noisy(images, labels)
"""
DDP_NOISY = ("data = TensorDataset(images, labels)\n", NOISY)
DDP_ALONE = ("sampler=DistributedSampler(data)", "shuffle=True")
DDP_LAMBDA = ("data = Noisy(images, labels)\n", "data = Noisy(images, labels)\n"
              "data.transform = lambda image: image\n")  # fmt: skip
DDP_ONE_SHARD = ("DistributedSampler(data)", "DistributedSampler(data, 1, 0)")
DDP_ONE_ORDER = (
    "sampler=DistributedSampler(data)", "shuffle=True, generator=torch.Generator().manual_seed(0)"
)  # fmt: skip
DDP_BATCH = (
    "    optimizer.zero_grad()",
    "    images, labels = images[rank::size], labels[rank::size]\n    optimizer.zero_grad()",
)
HVD_SEED = ("manual_seed(hvd.rank())", "manual_seed(0)")
HVD_BROADCAST = ("hvd.broadcast_parameters(", "dict(")
HVD_FILE = ("sampler = Dist", "[p.data.fill_(0.1) for p in model.parameters()]\nsampler = Dist")
HVD_WARMUP = (
    "hvd.broadcast_parameters(",
    "warm_up = torch.optim.lr_scheduler.LambdaLR(\n"
    "    optimizer, lambda step: min(1, (step + 1) / (32 / hvd.size())))\n"
    "hvd.broadcast_parameters(",
)
HVD_STEP = ("    optimizer.step()", "    optimizer.step(); warm_up.step()")
BY_HAND_RATE = (
    "    optimizer.zero_grad()",
    "    optimizer.zero_grad(); optimizer.param_groups[0]['lr'] *= 1.1",
)
BY_HAND_ACCUMULATES = [  # an update after four batches of 8: those of all ranks together
    ("split(32 // size)", "split(8)"),
    ("for rows in order:\n    optimizer.zero_grad()", "for step, rows in enumerate(order, 1):"),
    ("    for parameter in", "    if step % (4 // size):\n        continue\n    for parameter in"),
    ("    optimizer.step()", "    optimizer.step()\n    optimizer.zero_grad()"),
]
BY_HAND_NOISY = ("model(images[rows])", "model(images[rows] + torch.rand(len(rows), 1))")
# script, edits, a change and what can be known of it
KNOWN = [
    ("ddp", [DDP_NOISY], "share", "seen"),
    ("ddp", [DDP_NOISY, DDP_ALONE], "share", "missing"),
    ("ddp", [DDP_NOISY, DDP_LAMBDA, DDP_ONE_SHARD], "share", "missing"),
    ("ddp", [DDP_NOISY, DDP_ONE_ORDER, DDP_BATCH], "share", "not seen"),
    ("ddp", [("lr=0.001 * size", "lr=0.001")], "rate", "not seen"),  # no linear rule for AdamW
    ("ddp", [("AdamW", "SGD"), ("lr=0.001 * size", "lr=0.001")], "rate", "missing"),
    ("horovod_pytorch", [HVD_SEED], "alike", "seen"),
    ("horovod_pytorch", [HVD_SEED, HVD_BROADCAST], "alike", "missing"),
    ("horovod_pytorch", [HVD_BROADCAST, HVD_FILE], "alike", "seen"),
    ("by_hand", [BY_HAND_NOISY, ("[rank::size]", ""), ("seed(1234)", "seed(rank)")],
     "share", "not seen"),
    ("by_hand", [BY_HAND_NOISY], "share", "not seen"),
    ("horovod_pytorch", [HVD_WARMUP, HVD_STEP], "rate", "not seen"),
    ("by_hand", [BY_HAND_RATE, ("split(32 // size)", "split(32)")], "rate", "not seen"),
]  # fmt: skip


LOOP = (  # one look at a batch, which is no epoch, and two epochs
    "for images, labels in loader:",
    "next(iter(loader))\nfor images, labels in (batch for epoch in range(2) for batch in loader):",
)
SET_EPOCH = ("for batch in loader)", "for batch in (loader.sampler.set_epoch(epoch), loader)[1])")
LONG = pytest.mark.acceptance
DDP_NAMES = verdict.DDP_NAMES


def attempt(path: Path, single: bool = True) -> verdict.Result:
    return workshop.try_script(path, single=single, env=KERAS_2, seconds=60)


def edited(folder: Path, name: str, *edits: tuple[str, str]) -> Path:
    """A copy of a script in `folder`, with its text changed."""
    text = (SCRIPTS / f"{name}.py").read_text()
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    path = folder / f"{name}.py"
    path.write_text(text)
    return path


def statuses(result: verdict.Result) -> dict[str, str]:
    return {row.change: row.status for row in result.rows}


@pytest.mark.slow
@pytest.mark.needs("horovod")
def test_correct_script_has_every_change_and_leaves_no_files(tmp_path: Path) -> None:
    path = edited(tmp_path, "horovod_pytorch")
    (tmp_path / "model.pt").write_text("trained for a week")
    command = [sys.executable, "-m", "rn50", "workshop", "try", path.name]
    done = subprocess.run(
        [*command, "-n", "2", "--seconds", "60", "--", "--ignored", "1"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _, *rows = done.stdout.splitlines()
    evidence = {
        "one device per rank": "ranks 0 to 1 of 2",
        "share the samples": "40 samples on each rank, none of them on more than one",
        "scale the learning rate": "0.02 on 2 ranks, 0.01 on one",
        "average the gradients": "averaged, in 5 of 5 updates",
        "same initial weights": "differed at first, and were equal",
        "rank 0 writes": "rank 0 wrote model.pt",
    }
    for row, (change, text) in zip(rows, evidence.items(), strict=True):
        assert row.startswith(f"✓ {change} ") and " seen " in row and text in row
    assert (tmp_path / "model.pt").read_text() == "trained for a week"
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([path.name, "model.pt"])


WRITER = """
import os, pathlib, subprocess
for name in ("many", "many/deep", "elsewhere", "elsewhere/inner"):
    folder = pathlib.Path(name)
    assert len(list(folder.iterdir())) >= 2, name
    (folder / "small").write_text("other")
    (folder / "gone").unlink()
    subprocess.run(["touch", folder / "by-a-program"], check=True)
open("to-large", "ab").write(b"other")
os.truncate("large", 3)
"""


def snapshot(folder: Path) -> dict[str, object]:
    """Return everything in a folder: contents, modes and times, also of link targets."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()
        found[str(path)] = (state.st_mode, state.st_mtime_ns, content)
    return found


def test_no_write_reaches_the_folder(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for name in (here / "many", here / "many" / "deep", there, there / "inner"):
        name.mkdir(parents=True)
        for file in ("small", "gone"):
            (name / file).write_text("yours")
    (here / "large").write_bytes(b"x" * 2**20)
    for name, to in (("loop", "."), ("elsewhere", there), ("to-large", "large"), ("gone", "no")):
        (here / name).symlink_to(to)
    os.mkfifo(here / "pipe")  # not copied
    path = here / "train.py"
    path.write_text(WRITER)
    before = snapshot(tmp_path)
    workshop.try_script(path, launcher="python", single=False)
    assert snapshot(tmp_path) == before


@pytest.mark.acceptance
def test_sigterm_ends_the_script(tmp_path: Path) -> None:
    begun, path = tmp_path / "begun", tmp_path / "slow.py"
    path.write_text(f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "rn50", "workshop", "try", path, "--launcher", "python"]
    with leaving_nothing(), subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        limit = time.monotonic() + 60
        while not begun.exists() and time.monotonic() < limit:
            time.sleep(0.1)
        process.terminate()
        assert process.wait(30) == 130


@pytest.mark.parametrize(
    ("word", "there"),
    [("/a/b/c.py", "/copy/c.py"), ("/a/b/../c.py", "/a/c.py"), ("../data", "/a/data"),
     ("data", "data"), ("--out=/a/b/out", "--out=/copy/out"), ("/mnt/a/b/c", "/mnt/a/b/c"),
     ("--data=/mnt/a/b", "--data=/mnt/a/b")],
)  # fmt: skip
def test_paths_lead_into_the_copy_or_out_of_the_folder(word: str, there: str) -> None:
    assert run.in_copy(word, Path("/a/b"), Path("/copy")) == there


def test_the_original_of_a_script_never_runs(tmp_path: Path) -> None:
    """What it writes next to itself would replace your files."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to("mine")
    (tmp_path / "mine" / "train.py").touch()
    there = run.in_copy(f"{tmp_path}/link/train.py", tmp_path / "mine", Path("/copy"))
    assert there == "/copy/train.py"
    with pytest.raises(UserError, match="mine/train.py is not in .*/tests, of which `try` makes a"):
        workshop.try_script(tmp_path / "mine" / "train.py", folder=Path(__file__).parents[2])


def test_a_notebook_is_no_script(tmp_path: Path) -> None:
    (tmp_path / "train.ipynb").write_text("{}")
    with pytest.raises(UserError, match="train.ipynb is a notebook"):
        workshop.try_script(tmp_path / "train.ipynb")


def test_a_folder_with_too_much_data_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "BYTES", 2**20)
    (tmp_path / "env").mkdir()  # not copied
    (tmp_path / "env" / "pyvenv.cfg").write_bytes(b"x" * 2**21)
    (tmp_path / "train.py").write_text("")
    workshop.try_script(tmp_path / "train.py", launcher="python", single=False)
    (tmp_path / "data").write_bytes(b"x" * 2**21)
    with pytest.raises(UserError, match="GiB to copy"):
        workshop.try_script(tmp_path / "train.py", launcher="python", single=False)


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_a_line_that_a_stopped_rank_left_unfinished_does_not_count(tmp_path: Path) -> None:
    half = """
import os, time
with open(f"{os.environ['RN50_TRY']}/{os.getpid()}.jsonl", "a") as events:
    events.write('{"kind": "upda')
time.sleep(600)
"""
    script = edited(tmp_path, "by_hand")
    script.write_text(script.read_text() + half)
    result = workshop.try_script(script, single=False, seconds=3)
    assert {result[change].status for change in ("start", "average", "writes")} == {"seen"}


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_all_missing_changes_are_found_together(tmp_path: Path) -> None:
    """A temporary file without a name does not count."""
    unnamed = "import tempfile\ntempfile.TemporaryFile()\nif True:"
    edits = [("DistributedSampler(data)", "DistributedSampler(data, 1, 0)")]
    edits += [("if rank == 0:", unnamed), ("model = DistributedDataParallel(model)\n", "")]
    result = attempt(edited(tmp_path, "ddp", *edits), single=False)
    assert result.missing == ["share", "average", "alike", "writes"]
    assert result["start"].status == "seen"
    assert result["rate"].status == "not seen"
    assert "the same 40 samples" in result["share"].evidence
    assert "several ranks wrote model.pt" in result["writes"].evidence
    assert "✗ average the gradients" in str(result)


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    "edits, share, writes",
    [
        ([("DistributedSampler(data)", "DistributedSampler(data, shuffle=False)")],
         "; the sampler has shuffle=False and keeps the order of the data", DDP_NAMES),
        ([("model.state_dict()", "model.module.state_dict()")],
         "; set_epoch was not called before the first epoch: without it, all are alike",
         "rank 0 wrote model.pt"),
        ([("for images, labels", "loader.sampler.set_epoch(0)\nfor images, labels")],
         "; set_epoch was called, but no second epoch was run", DDP_NAMES),
        pytest.param([LOOP], "; each epoch has the same order: call sampler.set_epoch(epoch)"
                     " before it", DDP_NAMES, marks=LONG),
        pytest.param([LOOP, SET_EPOCH], "; each rank took its own shard", DDP_NAMES, marks=LONG),
    ],
)  # fmt: skip
def test_orders_and_ddp_s_names_are_remarks(
    tmp_path: Path, edits: list[tuple[str, str]], share: str, writes: str
) -> None:
    result = attempt(edited(tmp_path, "ddp", *edits), single=False)
    assert not result.missing
    assert result["share"].evidence.endswith(share)
    assert result["writes"].evidence.endswith(writes)


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    "joins",
    [
        "dist.device_mesh.init_device_mesh('cpu', (2,))",
        pytest.param("dist.distributed_c10d.init_process_group('gloo')", marks=LONG),
    ],
    ids=["by a device mesh", "by an imported function"],
)
def test_a_group_is_seen_however_it_was_joined(tmp_path: Path, joins: str) -> None:
    script = edited(tmp_path, "ddp", ('dist.init_process_group("gloo")', joins))
    assert attempt(script, single=False)["start"].status == "seen"


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_all_batches_of_an_update_count(tmp_path: Path) -> None:
    result = attempt(edited(tmp_path, "by_hand", *BY_HAND_ACCUMULATES))
    assert result["share"].status == result["rate"].status == "seen", str(result)
    assert result["share"].evidence.startswith("80 samples on each rank, none of them")
    assert "takes as many samples as on one rank" in result["rate"].evidence


CHECKPOINTED = """
from torch.utils.checkpoint import checkpoint
class Net(torch.nn.Sequential):
    def forward(self, x):
        return checkpoint(torch.nn.Sequential(*self[1:]), self[0](x), use_reentrant=True)
model = Net("""
FAILS = """
try:
    torch.ones(()).backward()
except RuntimeError:
    pass
for rows in order:"""


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_recomputed_activations_are_no_samples(tmp_path: Path) -> None:
    """Reentrant checkpointing starts a backward pass inside another; one before has failed."""
    edits = [("model = torch.nn.Sequential(", CHECKPOINTED), ("for rows in order:", FAILS)]
    edits += [("*self[1:]", "*list(self)[1:]")]
    result = attempt(edited(tmp_path, "by_hand", *edits), single=False)
    assert result["share"].evidence.startswith("80 samples on each rank, none"), str(result)


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_fsdp_is_not_supported_and_the_rows_say_so(tmp_path: Path) -> None:
    """They do as soon as it is known: the script runs for an hour more."""
    shard = "__import__('torch.distributed.fsdp').distributed.fsdp.fully_shard(model)"
    edits = [("DistributedDataParallel(model)", shard), ("if rank == 0:", "if True:"),
             ('"model.pt"', 'f"model-{rank}.pt"'),
             ("dist.destroy_process_group()", "__import__('time').sleep(3600)")]  # fmt: skip
    path, begin = edited(tmp_path, "ddp", *edits), time.monotonic()
    result = workshop.try_script(path, single=False, seconds=1)
    assert time.monotonic() - begin < run.LIMIT_S
    assert not result.missing, str(result)
    for change in ("share", "rate", "average", "alike"):
        assert result[change].status == "not seen"
        assert result[change].evidence.startswith("FSDP is not supported:")


SPAWNED = """
import torch.multiprocessing

def work(rank, text):
    exec(text, {"rank": rank})

if __name__ == "__main__":
    torch.multiprocessing.spawn(work, (open("by_hand.py").read(),), 2)
"""
MEET = ('group("gloo")', 'group("gloo", "file:///proc/self/cwd/meet", rank=rank, world_size=2)')
ABORTS = (
    "dist.destroy_process_group()",
    "if rank == 1:\n    import os\n    os.abort()",
)  # as Gloo can


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_seeds_of_spawned_ranks_differ_in_the_run_with_different_seeds(tmp_path: Path) -> None:
    """They have no rank until they join the group, after the recorder's start."""
    edited(tmp_path, "by_hand", MEET, ABORTS)
    (tmp_path / "spawned.py").write_text(SPAWNED)
    result = attempt(tmp_path / "spawned.py")
    assert result.launcher == "python" and not result.missing, str(result)
    assert result["alike"].status == "not seen"
    assert "with different seeds, they differed" in result["alike"].evidence


@pytest.mark.acceptance
@pytest.mark.needs("horovod", "torch")
@pytest.mark.parametrize("name, edits, change, status", KNOWN)
def test_what_hides_a_change_or_looks_like_one(
    tmp_path: Path, name: str, edits: list[tuple[str, str]], change: str, status: str
) -> None:
    result = attempt(edited(tmp_path, name, *edits))
    assert result[change].status == status, str(result)


SLICES = [
    ('sorted(folder.glob("*/*.jpg"))',
     'sorted(folder.glob("*/*.jpg"))[dist.get_rank() :: dist.get_world_size()]'),
    ("sampler = DistributedSampler(photos)", "sampler = None"),
    ("sampler=sampler", "shuffle=True"), ("loader.sampler.set_epoch(epoch)", "pass"),
]  # fmt: skip

ONE_OF_ONE = ("DistributedSampler(photos)", "DistributedSampler(photos, 1, 0)")
NO_SHARDS = (", shard_id=rank, num_shards=ranks", "")
DALI_SLICES = (
    "path=shards, index_path=index",
    "path=shards[rank::ranks], index_path=index[rank::ranks]",
)


@pytest.mark.slow
@pytest.mark.needs("horovod", "torch", "dali")
@pytest.mark.parametrize(
    "rung, edits, status",
    [
        pytest.param("2_ddp", [], "seen", id="a sampler", marks=LONG),
        pytest.param("2_horovod", [], "seen", id="Horovod's sampler", marks=LONG),
        pytest.param("2_ddp", SLICES, "not seen", id="slices", marks=LONG),
        pytest.param("2_ddp", SLICES[1:], "missing", id="all images", marks=LONG),
        pytest.param("2_ddp", [ONE_OF_ONE], "missing", id="a sampler for one rank"),
        pytest.param("2_ddp", [SLICES[0], ONE_OF_ONE], "not seen", id="its slices", marks=LONG),
        pytest.param("3_dali_ddp", [], "seen", id="DDP's shards", marks=LONG),
        pytest.param("3_dali_horovod", [], "seen", id="shards", marks=LONG),
        pytest.param("3_dali_horovod", [NO_SHARDS], "missing", id="no shards", marks=LONG),
        pytest.param(
            "3_dali_horovod", [NO_SHARDS, DALI_SLICES], "not seen", id="a reader of slices",
            marks=LONG,
        ),
    ],
)  # fmt: skip
def test_random_crops_do_not_hide_who_reads_what(
    repository: Path, roadsigns_small, tmp_path: Path, rung: str, edits: list, status: str
) -> None:
    text = (repository / "exercises" / "ladder" / f"{rung}.py").read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "train.py").write_text(text)
    data = roadsigns_small.folder
    if rung.startswith("3"):
        data = tfrecord.convert(data, tmp_path / "shards", quiet=True)
    flags = ("--data", data, "--image-size", 32, "--batch-size", 2,
             "--steps", 3, "--warm-up", 0)  # fmt: skip
    result = workshop.try_script(tmp_path / "train.py", *flags, single=False, reseed=False, steps=3)
    assert result["share"].status == status, str(result)
    assert set(result.missing) <= {"share"}, str(result)


def test_ranks_that_use_one_gpu_are_found() -> None:
    def judged(*devices: str) -> tuple[str, str]:
        ranks = [
            verdict.Rank([{"kind": "start", "by": "Horovod", "place": [rank, 2]},
                          {"kind": "update", "device": device}])
            for rank, device in enumerate(devices)
        ]  # fmt: skip
        return verdict.start(ranks, 2)

    status, text = judged("cuda:0 of all", "cuda:0 of all")
    assert status == "missing" and text.endswith("several ranks use one device: cuda:0 of all")
    assert judged("cuda:0 of all", "cuda:1 of all")[0] == "seen"
    assert judged("cuda:0 of 0", "cuda:0 of 1")[0] == "seen"
    assert judged("cpu of all", "cpu of all")[0] == "seen"


ALL_OF_IT = [1, 0, "{'path': 'images'}"]  # what DALI's reader was asked for: the shards, its own


@pytest.mark.parametrize(
    ("shards", "shuffled", "common", "status"),
    [
        ([[[2, 0, ""]], [[2, 1, ""]]], [[], []], 0, "seen"),
        # one more reader, of all files: the ranks take their shards of the other one
        ([[[2, 0, ""], ALL_OF_IT], [[2, 1, ""], ALL_OF_IT]], [[], []], 3, "not seen"),
        ([[ALL_OF_IT], [ALL_OF_IT]], [[], []], 0, "missing"),
        ([[[1, 0, "{'path': 'a'}"]], [[1, 0, "{'path': 'b'}"]]], [[], []], 0, "not seen"),
        ([[], []], [[["data", "one"]], [["data", "other"]]], 0, "missing"),
        ([[], []], [[["data", "one"]], [["data", "one"]]], 0, "not seen"),
        ([[], []], [[["mine", "one"]], [["yours", "other"]]], 0, "not seen"),
    ],
)
def test_shards_and_shuffles_tell_what_random_crops_hide(
    shards: list, shuffled: list, common: int, status: str
) -> None:
    """Each rank feeds images of which few or none are on the other, as after random crops."""
    fed = [[f"{rank * (i >= common)} {i}" for i in range(100)] for rank in range(2)]
    ranks = [
        verdict.Rank([{"kind": "update", "inputs": fed[rank], "shards": shards[rank],
                       "shuffled": shuffled[rank]}])
        for rank in range(2)
    ]  # fmt: skip
    assert verdict.share(ranks, [])[0] == status


@pytest.mark.parametrize(
    ("two", "one", "samples", "status"),
    [
        ([[0.02], [0.02]], [0.01], 8, "seen"),
        ([[0.01], [0.01]], [0.01], 8, "missing"),
        ([[0.04], [0.04]], [0.01], 8, "missing"),  # scaled twice
        ([[0.014], [0.014]], [0.01], 8, "seen"),  # with the root
        ([[0.02], [0.02]], [0.01], 6, "seen"),  # the ranks' shards are shorter than a batch
        ([[0.04], [0.04]], [0.01], 6, "missing"),
        ([[0.01], [0.01]], [0.01], 4, "seen"),  # the same samples in an update as on one rank
        ([[0.01], [0.02]], [0.01], 8, "missing"),  # the ranks differ
        ([[0.01, 0.02], [0.01, 0.02]], [0.01, 0.01], 8, "not seen"),  # it is still rising
        ([[0.02], [0.02]], [], 8, "not seen"),
    ],
)
def test_rate_is_compared_with_that_of_one_rank(
    two: list[list[float]], one: list[float], samples: int, status: str
) -> None:
    def rank(rates: list[float], count: int) -> verdict.Rank:
        inputs = [str(i) for i in range(count)]
        update = {"kind": "update", "inputs": inputs, "optimizer": optimizer}
        return verdict.Rank([{**update, "rate": rate} for rate in rates])

    for optimizer in ("SGD", "AdamW", "RMSprop"):  # the linear rule is for SGD
        alone = [rank(one, 8)] if one else []
        found, text = verdict.rate([rank(rates, samples) for rates in two], alone)
        unruled = optimizer != "SGD" and "while each update" in text
        assert found == ("not seen" if unruled else status)


@pytest.mark.parametrize(
    ("given", "local", "status", "evidence"),
    [
        ([[2, 1], [2, 1]], [[1, 2], [3, 0]], "seen", "averaged, in 1 of 1 updates"),
        ([[0.2, 0.1], [0.2, 0.1]], [[1, 2], [3, 0]], "seen", "averaged"),  # and clipped
        ([[4, 2], [4, 2]], [[1, 2], [3, 0]], "missing", "summed, not averaged"),
        ([[1, 2], [3, 0]], [[1, 2], [3, 0]], "missing", "updated with its own gradients"),
        ([[1, 2], [1, 2]], [[1, 2], [1, 2]], "not seen", "equal on all ranks"),
        ([[1, 0.5], [1, 0.5]], [[1, 2], [3, 0]], "missing", "divided twice: the update got 1/2"),
        ([[1, 2], [1, 2]], [[1, 2], [3, 0]], "missing", "one rank's gradients, in 1 updates"),
        ([[1, 1], [1, 1]], [[1, 2], [3, 0]], "not seen", "not the mean"),  # each value clipped
        ([[2, 1], [2, 1]], [None, None], "not seen", "could not be compared"),
        (
            [[float("inf"), 1], [float("inf"), 1]],
            [[1, 2], [3, 0]],
            "not seen",
            "could not be compared",
        ),
        ([[0, 0], [0, 0]], [[0, 0], [0, 0]], "not seen", "all gradients were zero"),
    ],
)
def test_the_gradients_of_an_update_are_compared_with_each_rank_s_own(
    given: list, local: list, status: str, evidence: str
) -> None:
    ranks = [
        verdict.Rank([{"kind": "start", "by": "Horovod", "place": [rank, 2]},
                      {"kind": "update", "given": [given[rank]], "local": [local[rank]]}])
        for rank in range(2)
    ]  # fmt: skip
    found, text = verdict.average(ranks)
    assert found == status and evidence in text


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize("code, said", [
    ("label = 1/0", ["label = 1/0", "ZeroDivisionError"]),
    pytest.param("dist.init_process_group('gloo')\nlabel = 1/0", ["label = 1/0"], marks=LONG),
    pytest.param("raise SystemExit('no images')", [" | no images"], marks=LONG),
    pytest.param(
        "import os\nprint('far', flush=True)\nos.abort()", [" | far", "SIGABRT"], marks=LONG
    ),
])  # fmt: skip
def test_a_script_that_fails_shows_why(tmp_path: Path, code: str, said: list[str]) -> None:
    path = tmp_path / "broken.py"
    imported = "import torch.distributed as dist\n" if code.startswith("dist.") else ""
    path.write_text(imported + code)
    command = [sys.executable, "-m", "rn50", "workshop", "try", str(path), "--launcher", "torchrun"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert all(text in done.stderr for text in said), done.stderr
    assert done.stderr.rstrip().endswith("error: broken.py failed on 2 ranks")
    assert done.stdout == ""


@pytest.mark.parametrize(
    "text, launcher",
    [
        ("import horovod.torch as hvd, torch.distributed", "horovodrun"),
        ("from horovod import torch", "horovodrun"),
        ("import torch.distributed as dist", "torchrun"),
        ("from torch import nn, distributed as dist", "torchrun"),
        ("import torch\ntorch.distributed.init_process_group()", "torchrun"),
        ("from torch.nn.parallel import DistributedDataParallel", "torchrun"),
        ("import torch.distributed, torch.multiprocessing as mp\nmp.spawn(work)", "python"),
        (
            "from torch.multiprocessing import Process\nProcess(target=work).start()\n"
            "torch.distributed.init_process_group('gloo', timeout=timedelta(1), rank=rank)",
            "python",
        ),
        (
            "from torch.multiprocessing import Process\nProcess(target=load).start()\n"
            "torch.distributed.init_process_group('gloo')",
            "torchrun",
        ),
        ("import torch\nfrom accelerate import Accelerator", "torchrun"),
        ("from lightning.fabric import Fabric", "torchrun"),
        ("import tensorflow as tf", "horovodrun"),
        ("import transformers", "torchrun"),
    ],
)
def test_the_launcher_follows_the_imports(tmp_path: Path, text: str, launcher: str) -> None:
    (tmp_path / "script.py").write_text(text)
    assert run.choose_launcher(tmp_path / "script.py") == launcher
    (tmp_path / "package" / "inner").mkdir(parents=True)
    (tmp_path / "package" / "inner" / "train.py").write_text(text)
    (tmp_path / "thin.py").write_text("from package.inner.train import main\nmain()\n")
    found = run.choose_launcher(tmp_path / "thin.py")
    assert found == ("torchrun" if launcher == "python" else launcher)


@pytest.mark.parametrize(
    "words, said",
    [
        (["gone.py"], "no such script: gone.py"),
        (["-n", "1", __file__], "-n 1: there must be at least 2 ranks"),
        (["-n", "999", __file__], "-n 999: this machine has "),
        ([__file__, "--launcher", "slurm"], "--launcher: invalid choice: 'slurm'"),
        ([__file__, "--epochs", "1"], "--epochs: the script's own follow `--`"),
        ([__file__, "--steps", "0"], "'0' must be at least 1"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], said: str, rn50: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    status, _, err = rn50(tmp_path, "workshop", "try", *words)
    assert status == 2
    assert said in err and len(err.splitlines()) == 1


def test_equal_weights_prove_a_broadcast_only_with_different_seeds() -> None:
    updates = [{"kind": "update", "rank": rank, "hash": "same"} for rank in (0, 1)]
    ranks = verdict.by_rank(updates)
    status, evidence = verdict.alike(ranks, None)
    assert status == "not seen" and "perhaps by equal seeds" in evidence
    assert verdict.alike(ranks, lambda: updates)[0] == "seen"


@pytest.mark.acceptance
@pytest.mark.needs("horovod", "torch", "tensorflow", "tf_keras")
@pytest.mark.parametrize("name", [path.stem for path in sorted(SCRIPTS.glob("*.py"))])
def test_correct_scripts_are_not_accused(tmp_path: Path, name: str) -> None:
    result = attempt(edited(tmp_path, name))
    expected = dict.fromkeys(CHANGES, "seen")
    if name == "by_hand":
        expected["alike"] = "not seen"  # equal seeds may be intended
    assert statuses(result) == expected, str(result)


@pytest.mark.acceptance
@pytest.mark.needs("horovod", "tensorflow")
def test_a_tape_gets_the_variables_within_those_of_keras_3(tmp_path: Path) -> None:
    """Horovod takes no others."""
    edits = [
        (old, old.replace(name, f"[v.value for v in {name}]"))
        for name, old in (
            ("model.trainable_variables", "(value, model.trainable_variables)"),
            ("model.variables", "(model.variables"),
        )
    ]
    result = workshop.try_script(edited(tmp_path, "horovod_tape", *edits), seconds=60)
    assert statuses(result) == dict.fromkeys(CHANGES, "seen"), str(result)


@pytest.mark.acceptance
@pytest.mark.needs("horovod", "torch", "tensorflow", "tf_keras")
@pytest.mark.parametrize("name, changes, old, new", CUTS, ids=lambda text: text[:24])
def test_every_removed_change_is_found(
    tmp_path: Path, name: str, changes: str, old: str, new: str
) -> None:
    result = attempt(edited(tmp_path, name, (old, new)), single=changes == "rate")
    assert result.missing == changes.split(), str(result)
