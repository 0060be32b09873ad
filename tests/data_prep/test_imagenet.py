"""ImageNet in all its forms, made small: the same folders and labels from each."""

import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from data_prep import imagenet
from rn50lib.errors import UserError
from tests.conftest import clean_environment

FIXTURES = Path(__file__).parent / "fixtures"

# The devkit's numbers are 1, 2, 3 in this order; the labels are the ranks of the sorted names.
WNIDS = ["n01440764", "n01443537", "n01443243"]
WORDS = ["tench, Tinca tinca", "goldfish, Carassius auratus", "a third, été"]
TRAIN_IMAGES = [3, 2, 4]
TRUTH = [3, 1, 2, 2, 1, 3, 3]


def train_image(wnid, number):
    return f"{wnid}_{number}.JPEG", f"train {wnid} {number}".encode() * (50 + number)


def val_image(number):
    return f"ILSVRC2012_val_{number:08}.JPEG", f"val {number}".encode() * (60 + number)


def expected():
    """{relative path: bytes} of the folders that every form must give."""
    files = {}
    for wnid, count in zip(WNIDS, TRAIN_IMAGES, strict=True):
        for number in range(count):
            name, data = train_image(wnid, number)
            files[f"train/{wnid}/{name}"] = data
    for number, truth in enumerate(TRUTH, start=1):
        name, data = val_image(number)
        files[f"val/{WNIDS[truth - 1]}/{name}"] = data
    order = sorted(range(3), key=lambda i: WNIDS[i])
    lines = [f"{label}\t{WNIDS[i]}\t{WORDS[i]}\n" for label, i in enumerate(order)]
    files["classes.txt"] = "".join(lines).encode()
    return files


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (".complete", ".made-from")
    }


def add(tar, name, data):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def inner_tar(wnid, count):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for number in range(count):
            add(tar, *train_image(wnid, number))
    return out.getvalue()


def make_devkit(path):
    truth = "".join(f"{number}\n" for number in TRUTH).encode()
    with tarfile.open(path, "w:gz") as tar:
        add(tar, "ILSVRC2012_devkit_t12/readme.txt", b"read me")
        meta = (FIXTURES / "meta.mat").read_bytes()
        add(tar, "ILSVRC2012_devkit_t12/data/meta.mat", meta)
        name = "ILSVRC2012_validation_ground_truth.txt"
        add(tar, f"ILSVRC2012_devkit_t12/data/{name}", truth)


def make_archives(folder):
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / "ILSVRC2012_img_train.tar", "w") as tar:
        for wnid, count in zip(WNIDS, TRAIN_IMAGES, strict=True):
            add(tar, f"{wnid}.tar", inner_tar(wnid, count))
    with tarfile.open(folder / "ILSVRC2012_img_val.tar", "w") as tar:
        for number in range(len(TRUTH), 0, -1):
            add(tar, *val_image(number))
    make_devkit(folder / "ILSVRC2012_devkit_t12.tar.gz")
    return folder


def make_tree(train, val, flat_val):
    for wnid, count in zip(WNIDS, TRAIN_IMAGES, strict=True):
        (train / wnid).mkdir(parents=True)
        for number in range(count):
            name, data = train_image(wnid, number)
            (train / wnid / name).write_bytes(data)
    for number, truth in enumerate(TRUTH, start=1):
        name, data = val_image(number)
        folder = val if flat_val else val / WNIDS[truth - 1]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def make_extracted(folder, flat_val):
    make_tree(folder / "train-jpeg", folder / "val-jpeg", flat_val)
    make_devkit(folder / "ILSVRC2012_devkit_t12.tar.gz")
    return folder


def make_extracted_with_unpacked_devkit(folder):
    make_tree(folder / "train", folder / "val", True)
    make_devkit(folder / "d.tar.gz")
    with tarfile.open(folder / "d.tar.gz") as tar:
        for name in tar.getnames():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(tar.extractfile(name).read())
    (folder / "d.tar.gz").unlink()
    return folder


def make_kaggle(folder):
    root = folder / "ILSVRC" / "Data" / "CLS-LOC"
    make_tree(root / "train", root / "val", True)
    mapping = "".join(f"{w} {t}\n" for w, t in zip(WNIDS, WORDS, strict=True))
    (folder / "LOC_synset_mapping.txt").write_text(mapping, encoding="utf-8")
    rows = ["ImageId,PredictionString\n"]
    for number, truth in enumerate(TRUTH, start=1):
        wnid = WNIDS[truth - 1]
        boxes = f"{wnid} 85 1 499 272 " * (1 + number % 2)
        rows.append(f"ILSVRC2012_val_{number:08},{boxes}\n")
    (folder / "LOC_val_solution.csv").write_text("".join(rows))
    return folder


def make_parquet(folder, with_class_in_name=True):
    import pyarrow
    from pyarrow import parquet

    order = sorted(WNIDS)
    rows = {"train": [], "validation": []}
    for wnid, count in zip(WNIDS, TRAIN_IMAGES, strict=True):
        rows["train"] += [(*train_image(wnid, number), wnid) for number in range(count)]
    for number, truth in enumerate(TRUTH, start=1):
        rows["validation"].append((*val_image(number), WNIDS[truth - 1]))
    (folder / "data").mkdir(parents=True)
    for split, images in rows.items():
        random.Random(0).shuffle(images)
        for shard in range(2):
            part = images[shard::2]
            names = [f"{n[:-5]}_{w}.JPEG" if with_class_in_name else n for n, _, w in part]
            table = pyarrow.table(
                {
                    "image": [
                        {"bytes": data, "path": name}
                        for name, (_, data, _) in zip(names, part, strict=True)
                    ],
                    "label": [order.index(wnid) for _, _, wnid in part],
                }
            )
            parquet.write_table(table, folder / "data" / f"{split}-{shard:05}-of-00002.parquet")
    return folder


def run(*arguments):
    return imagenet.main([*map(str, arguments)])


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """Without --jobs, no worker processes: they would take most of the time of these tests."""
    monkeypatch.setattr(imagenet, "usable_cores", lambda: 0)


@pytest.mark.parametrize(
    "make",
    [
        make_archives,
        lambda folder: make_extracted(folder, flat_val=True),
        lambda folder: make_extracted(folder, flat_val=False),
        make_extracted_with_unpacked_devkit,
        make_kaggle,
    ],
    ids=["archives", "flat val", "class folders", "unpacked devkit", "kaggle"],
)
def test_every_form_gives_the_same(tmp_path, make, capsys):
    source = make(tmp_path / "source")
    assert run(source, tmp_path / "out", "--jobs", "2") == 0
    assert contents(tmp_path / "out") == expected()
    said = capsys.readouterr().out
    assert "9 train and 7 val images of 3 classes" in said
    assert run(source, tmp_path / "out") == 0
    assert "already complete" in capsys.readouterr().out
    assert sorted(os.listdir(tmp_path)) == ["out", "source"]


@pytest.mark.needs("pyarrow")
def test_parquet_shards_give_the_same(tmp_path):
    make_parquet(tmp_path / "named")
    make_parquet(tmp_path / "unnamed", with_class_in_name=False)
    mapping = "".join(f"{w} {t}\n" for w, t in zip(WNIDS, WORDS, strict=True))
    for name in ("named", "unnamed"):
        (tmp_path / name / "LOC_synset_mapping.txt").write_text(mapping, encoding="utf-8")
        assert run(tmp_path / name, tmp_path / f"{name}-out") == 0
        assert contents(tmp_path / f"{name}-out") == expected()


@pytest.mark.needs("pyarrow")
def test_parquet_shards_without_a_class_list(tmp_path):
    make_parquet(tmp_path / "named")
    assert run(tmp_path / "named", tmp_path / "out") == 0
    got, wanted = contents(tmp_path / "out"), expected()
    assert got.pop("classes.txt").decode() == "".join(
        f"{i}\t{wnid}\t\n" for i, wnid in enumerate(sorted(WNIDS))
    )
    del wanted["classes.txt"]
    assert got == wanted
    make_parquet(tmp_path / "unnamed", with_class_in_name=False)
    with pytest.raises(UserError, match="the names of its images do not say their classes"):
        run(tmp_path / "unnamed", tmp_path / "out2")


def test_parquet_without_pyarrow_is_said(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train-00000-of-00001.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match="`pip install pyarrow`"):
        run(tmp_path, tmp_path / "out")


def test_files_are_linked_and_copied_on_request(tmp_path):
    source = make_extracted(tmp_path / "source", flat_val=True)
    run(source, tmp_path / "linked")
    run(source, tmp_path / "copied", "--copy")
    relative = f"{WNIDS[0]}/{WNIDS[0]}_0.JPEG"
    inode = (source / "train-jpeg" / relative).stat().st_ino
    assert (tmp_path / "linked" / "train" / relative).stat().st_ino == inode
    assert (tmp_path / "copied" / "train" / relative).stat().st_ino != inode


def test_the_whole_sequence(tmp_path, capsys):
    """Archives → folders → records and shards → verify, as the notebook shows it."""
    from data_prep import im2rec, tfrecord, verify
    from tests.data_prep.test_verify import picture

    make_archives(tmp_path)
    for path in ("ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"):
        (tmp_path / path).unlink()
    with tarfile.open(tmp_path / "ILSVRC2012_img_train.tar", "w") as tar:
        for seed, (wnid, count) in enumerate(zip(WNIDS, TRAIN_IMAGES, strict=True)):
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w") as inside:
                for number in range(count):
                    add(inside, train_image(wnid, number)[0], picture(10 * seed + number))
            add(tar, f"{wnid}.tar", inner.getvalue())
    with tarfile.open(tmp_path / "ILSVRC2012_img_val.tar", "w") as tar:
        for number in range(1, len(TRUTH) + 1):
            add(tar, val_image(number)[0], picture(100 + number))
    out = tmp_path / "imagenet"
    assert run(tmp_path, out) == 0
    im2rec.ensure_records(out)
    tfrecord.main([str(out), "--quiet"])
    assert verify.main([str(out), "--quiet", "--jobs", "1"]) == 0
    said = capsys.readouterr().out
    assert "train: 9 images, as it should be" in said
    assert "0 errors, 0 warnings, 0 notes" in said


# -- what is wrong, and how it is said -----------------------------------------------------------


def spoil(folder, members, name="ILSVRC2012_img_val.tar"):
    """A validation archive with these members."""
    with tarfile.open(folder / name, "w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))


def member(name, size=1, kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, link
    return info


@pytest.mark.parametrize(
    "bad",
    [
        member("../evil.JPEG"),
        member("/tmp/evil.JPEG"),
        member("folder/ILSVRC2012_val_00000001.JPEG"),
        member("..", 0),
        member("ILSVRC2012_val_00000001.JPEG", 0, tarfile.SYMTYPE, "/etc/passwd"),
        member("ILSVRC2012_val_00000001.JPEG", 0, tarfile.LNKTYPE, "/etc/passwd"),
        member("ILSVRC2012_val_00000001.JPEG", 0, tarfile.CHRTYPE),
        member("ILSVRC2012_val_00000001.JPEG", 0, tarfile.FIFOTYPE),
    ],
    ids=lambda info: f"{info.name} {info.type}",
)
def test_members_that_are_no_plain_files_of_the_folder_are_refused(tmp_path, bad):
    source = make_archives(tmp_path / "source")
    spoil(source, [member("ILSVRC2012_val_00000002.JPEG"), bad])
    with pytest.raises(UserError, match="not one of ImageNet's archives") as caught:
        run(source, tmp_path / "out")
    assert repr(bad.name) in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["source"]


def test_bad_members_of_an_inner_archive_are_refused(tmp_path):
    source = make_archives(tmp_path / "source")
    spoil(source, [member("../evil.JPEG")], "inner.tar")
    inner = (source / "inner.tar").read_bytes()
    spoil(source, [], "ILSVRC2012_img_train.tar")
    with tarfile.open(source / "ILSVRC2012_img_train.tar", "w") as tar:
        add(tar, f"{WNIDS[0]}.tar", inner)
    with pytest.raises(UserError, match=r"'../evil\.JPEG' would be written to another folder"):
        run(source, tmp_path / "out")
    assert not list(tmp_path.rglob("evil.JPEG"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("archive", ["ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"])
@pytest.mark.parametrize("part", [0.2, 0.5, 0.8])
def test_archives_that_are_cut_short(tmp_path, archive, part):
    source = make_archives(tmp_path / "source")
    data = (source / archive).read_bytes().rstrip(b"\0")
    (source / archive).write_bytes(data[: int(len(data) * part)])
    with pytest.raises(UserError, match=f"{archive}: this archive is damaged or cut short"):
        run(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_missing_images_are_counted(tmp_path, capsys):
    source = make_archives(tmp_path / "source")
    with tarfile.open(source / "ILSVRC2012_img_train.tar", "w") as tar:
        add(tar, f"{WNIDS[0]}.tar", inner_tar(WNIDS[0], 2))
    assert run(source, tmp_path / "out") == 1
    assert "warning: train has 2 images, not 9" in capsys.readouterr().err


def test_md5(tmp_path, monkeypatch):
    import hashlib

    source = make_archives(tmp_path / "source")
    with pytest.raises(UserError, match=r"img_train\.tar: its md5 is .*, not 1d675b47d978889d74"):
        run(source, tmp_path / "out", "--md5")
    assert not (tmp_path / "out").exists()
    sums = {p.name: hashlib.md5(p.read_bytes()).hexdigest() for p in source.iterdir()}
    monkeypatch.setattr(imagenet, "MD5", sums)
    assert run(source, tmp_path / "out", "--md5") == 0


def spoil_no_devkit(source):
    (source / "ILSVRC2012_devkit_t12.tar.gz").unlink()
    return "img_val.tar: the archive does not say the classes of its images"


def spoil_damaged_devkit(source):
    path = source / "ILSVRC2012_devkit_t12.tar.gz"
    path.write_bytes(path.read_bytes()[:500])
    return "ILSVRC2012_devkit_t12.tar.gz: this devkit is damaged"


def spoil_devkit_without_meta(source):
    with tarfile.open(source / "ILSVRC2012_devkit_t12.tar.gz", "w:gz") as tar:
        add(tar, "data/ILSVRC2012_validation_ground_truth.txt", b"1\n")
    return "meta.mat is not in this devkit"


def spoil_truth(source):
    with tarfile.open(source / "ILSVRC2012_devkit_t12.tar.gz", "w:gz") as tar:
        add(tar, "data/meta.mat", (FIXTURES / "meta.mat").read_bytes())
        add(tar, "data/ILSVRC2012_validation_ground_truth.txt", b"1\n77\n")
    return "this devkit cannot be read (77)"


def spoil_short_truth(source):
    with tarfile.open(source / "ILSVRC2012_devkit_t12.tar.gz", "w:gz") as tar:
        add(tar, "data/meta.mat", (FIXTURES / "meta.mat").read_bytes())
        add(tar, "data/ILSVRC2012_validation_ground_truth.txt", b"1\n2\n")
    return "'ILSVRC2012_val_00000007.JPEG' is none of the 2 images of the devkit's list"


def spoil_strange_class(source):
    with tarfile.open(source / "ILSVRC2012_img_train.tar", "w") as tar:
        add(tar, "n99999999.tar", inner_tar("n99999999", 1))
    return "img_train.tar: the class n99999999 is not in the list of classes"


def spoil_strange_member(source):
    with tarfile.open(source / "ILSVRC2012_img_train.tar", "w") as tar:
        add(tar, "readme.txt", b"hello")
    return "img_train.tar: the member 'readme.txt' is no class"


def spoil_name(source):
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w") as tar:
        add(tar, "run me.sh", b"hello")
    with tarfile.open(source / "ILSVRC2012_img_train.tar", "w") as tar:
        add(tar, f"{WNIDS[0]}.tar", inner.getvalue())
    return "'run me.sh' is no name of an ImageNet image"


@pytest.mark.parametrize(
    "spoil_it", [value for name, value in sorted(globals().items()) if name.startswith("spoil_")]
)
def test_bad_sources_get_one_line(tmp_path, spoil_it, error_of):
    source = make_archives(tmp_path / "source")
    message = spoil_it(source)
    assert message in error_of(imagenet.main, source, tmp_path / "out", "--jobs", "1")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{t}/nowhere", "{t}/out"], "{t}/nowhere: there is no such folder"),
        (["{t}", "{t}/out"], "{t}: ImageNet is not here in any form known: ILSVRC2012_img_train"),
        (["{t}", "{t}/out", "--jobs", "0"], "--jobs 0: give at least one process"),
        (["{s}", "{t}"], "{t}: this is there already; name a new folder"),
        (["{s}", "{t}/out", "--devkit", "{t}/x"], "--devkit {t}/x: there is no such file"),
    ],
)
def test_bad_commands_get_one_line(tmp_path, arguments, message, error_of):
    places = {"t": tmp_path / "t", "s": make_archives(tmp_path / "source")}
    (tmp_path / "t").mkdir()
    error = error_of(imagenet.main, *(argument.format(**places) for argument in arguments))
    assert error.startswith(message.format(**places))


def test_too_little_room_is_said_before_the_work(tmp_path, monkeypatch):
    from data_prep import common

    source = make_archives(tmp_path / "source")
    free = os.statvfs(tmp_path)

    class Small:
        f_bavail, f_frsize = 1, free.f_frsize

    monkeypatch.setattr(common.os, "statvfs", lambda _: Small)
    with pytest.raises(UserError, match="unpacking archives needs .* are free"):
        run(source, tmp_path / "out")


def test_flat_val_without_a_list(tmp_path):
    source = make_extracted(tmp_path / "source", flat_val=True)
    (source / "ILSVRC2012_devkit_t12.tar.gz").unlink()
    with pytest.raises(UserError, match="val-jpeg: the images lie flat in this folder"):
        run(source, tmp_path / "out")


# -- interrupted runs ----------------------------------------------------------------------------


def test_an_interrupted_run_goes_on(tmp_path, monkeypatch, capsys):
    """The second of three classes cannot be read at first; the first is not written again."""
    source = make_archives(tmp_path / "source")
    good = (source / "ILSVRC2012_img_train.tar").read_bytes()
    status = (source / "ILSVRC2012_img_train.tar").stat()
    at = good.index(f"{WNIDS[2]}_3.JPEG".encode())
    (source / "ILSVRC2012_img_train.tar").write_bytes(good[:at] + b"../evil!" + good[at + 8 :])
    os.utime(source / "ILSVRC2012_img_train.tar", ns=(status.st_mtime_ns, status.st_mtime_ns))
    with pytest.raises(UserError):
        imagenet.main([str(source), str(tmp_path / "out"), "--jobs", "1"])
    part = tmp_path / "out.part" / "train"
    # of whole classes: one that was being written has a hidden folder
    before = {path: path.stat().st_ino for path in part.glob("[!.]*/*")}
    assert before
    (source / "ILSVRC2012_img_train.tar").write_bytes(good)
    os.utime(source / "ILSVRC2012_img_train.tar", ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert run(source, tmp_path / "out") == 0
    assert "going on where an interrupted run was" in capsys.readouterr().err
    assert contents(tmp_path / "out") == expected()
    for path, inode in before.items():
        assert (tmp_path / "out" / path.relative_to(tmp_path / "out.part")).stat().st_ino == inode


def test_a_class_that_a_power_cut_spoilt_is_written_again(tmp_path):
    source = make_archives(tmp_path / "source")
    run(source, tmp_path / "out")
    (tmp_path / "out" / ".complete").unlink()
    (tmp_path / "out").rename(tmp_path / "out.part")
    (tmp_path / "out.part" / "train" / WNIDS[0] / f"{WNIDS[0]}_0.JPEG").write_bytes(b"")
    (tmp_path / "out.part" / "val" / WNIDS[1] / "stray.JPEG").write_bytes(b"")
    assert run(source, tmp_path / "out") == 0
    assert contents(tmp_path / "out") == expected()


@pytest.mark.acceptance
def test_killed_at_20_random_moments(tmp_path):
    """kill -9 while unpacking: nothing is in place, or all; the next run gives the same bytes."""
    source = tmp_path / "source"
    make_archives(source)
    (source / "ILSVRC2012_devkit_t12.tar.gz").unlink()
    (source / "ILSVRC2012_img_val.tar").unlink()
    with tarfile.open(source / "ILSVRC2012_img_train.tar", "w") as tar:
        for number in range(60):
            add(tar, f"n{number:08}.tar", inner_tar(f"n{number:08}", 60))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "data_prep.imagenet", str(source), str(out), "--jobs", "2"]
    settings = {"env": clean_environment(), "stdout": subprocess.DEVNULL}
    start = time.monotonic()
    subprocess.run(command, check=True, **settings)
    whole = time.monotonic() - start
    good = contents(out)
    assert len(good) == 3601
    rng = random.Random(0)
    killed = 0
    for _ in range(20):
        shutil.rmtree(out)
        child = subprocess.Popen(command, **settings)
        time.sleep(rng.uniform(0, whole))
        child.kill()
        killed += child.wait(timeout=30) == -signal.SIGKILL
        if out.exists():
            assert contents(out) == good
        subprocess.run(command, check=True, **settings)
        assert contents(out) == good
        assert sorted(os.listdir(tmp_path)) == ["out", "source"]
    assert killed >= 10
