"""ImageNet in all its forms, on a small scale: the same folders and labels from each."""

import io
import os
import random
import tarfile
from pathlib import Path

import pytest
from scipy.io import savemat

from data_prep import imagenet
from data_prep.devkit import read_devkit
from data_prep.layouts import make_plan
from rn50lib.errors import UserError

pytestmark = pytest.mark.usefixtures("in_this_process")
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
    """Return {relative path: bytes} of the folders that every form must give."""
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


def inner_tar(wnid, count, encode=bytes):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for number in range(count):
            name, data = train_image(wnid, number)
            add(tar, name, encode(data))
    return out.getvalue()


def twice(name, data, size=None):
    """Return a tar with a member twice, or once with a negative size."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        add(tar, name, data)
        add(tar, name, data)
    if size is None:
        return out.getvalue()
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT) + out.getvalue()


def make_devkit(path):
    truth = "".join(f"{number}\n" for number in TRUTH).encode()
    with tarfile.open(path, "w:gz") as tar:
        add(tar, "ILSVRC2012_devkit_t12/readme.txt", b"read me")
        meta = (FIXTURES / "meta.mat").read_bytes()
        add(tar, "ILSVRC2012_devkit_t12/data/meta.mat", meta)
        name = "ILSVRC2012_validation_ground_truth.txt"
        add(tar, f"ILSVRC2012_devkit_t12/data/{name}", truth)


def make_archives(folder, encode=bytes):
    """Write archives in ImageNet's layout; `encode` turns the content of a file into an image."""
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / "ILSVRC2012_img_train.tar", "w") as tar:
        for wnid, count in zip(WNIDS, TRAIN_IMAGES, strict=True):
            add(tar, f"{wnid}.tar", inner_tar(wnid, count, encode))
    with tarfile.open(folder / "ILSVRC2012_img_val.tar", "w") as tar:
        for number in range(len(TRUTH), 0, -1):
            name, data = val_image(number)
            add(tar, name, encode(data))
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


def make_unpacked_devkit(folder):
    make_extracted(folder, flat_val=True)
    kit = folder / "ILSVRC2012_devkit_t12.tar.gz"
    with tarfile.open(kit) as tar:
        tar.extractall(folder)
    kit.unlink()
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


def run(*arguments):
    return imagenet.main([*map(str, arguments)])


@pytest.mark.parametrize(
    "make",
    [
        make_archives,
        lambda folder: make_extracted(folder, flat_val=True),
        lambda folder: make_extracted(folder, flat_val=False),
        make_unpacked_devkit,
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


# -- bad sources ---------------------------------------------------------------------------------


def member(name, size=1, kind=tarfile.REGTYPE):
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, "/etc/passwd"
    return info


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize(
    "bad",
    [
        member("../evil.JPEG"),
        member("/tmp/evil.JPEG"),
        member("folder/ILSVRC2012_val_00000001.JPEG"),
        member("..", 0),
        *(
            member("link.JPEG", 0, getattr(tarfile, f"{k}TYPE"))
            for k in ("SYM", "LNK", "CHR", "FIFO")
        ),
    ],
    ids=lambda info: f"{info.name} {info.type}",
)
def test_unsafe_members_are_refused(tmp_path, bad, inner):
    source = make_archives(tmp_path / "source")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(bad, io.BytesIO(b"x" * bad.size))
    path = source / "ILSVRC2012_img_val.tar"
    path.write_bytes(archive.getvalue())
    if inner:
        path.unlink()
        write_tar(source / "ILSVRC2012_img_train.tar", {f"{WNIDS[0]}.tar": archive.getvalue()})
    with pytest.raises(UserError, match="not one of ImageNet's archives") as caught:
        run(source, tmp_path / "out")
    assert repr(bad.name) in str(caught.value)
    assert not list(tmp_path.rglob("*evil*")) and not (tmp_path / "out").exists()


@pytest.mark.parametrize("archive", ["ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"])
@pytest.mark.parametrize("part", [0.2, 0.5, 0.8])
def test_cut_archives_are_refused(tmp_path, archive, part):
    source = make_archives(tmp_path / "source")
    data = (source / archive).read_bytes().rstrip(b"\0")
    (source / archive).write_bytes(data[: int(len(data) * part)])
    with pytest.raises(UserError, match=f"{archive}: this archive is damaged or cut short"):
        run(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def write_tar(path, files):
    mode = "w:gz" if path.suffix == ".gz" else "w"
    with tarfile.open(path, mode) as tar:
        for name, data in files.items():
            add(tar, name, data)


def mat_file(**variables):
    out = io.BytesIO()
    savemat(out, variables)
    return out.getvalue()


META = (FIXTURES / "meta.mat").read_bytes()
TRUTH_TEXT = "data/ILSVRC2012_validation_ground_truth.txt"
TRAIN_TAR, KIT = "ILSVRC2012_img_train.tar", "ILSVRC2012_devkit_t12.tar.gz"


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        (KIT, None, "img_val.tar: the archive does not give the classes of its images"),
        (KIT, b"\x1f\x8b broken", "ILSVRC2012_devkit_t12.tar.gz: this devkit is damaged"),
        (KIT, b"<html>", "file could not be opened successfully:); download it again"),
        (KIT, {TRUTH_TEXT: b"1\n"}, "meta.mat is not in this devkit"),
        (KIT, {"meta.mat": META, TRUTH_TEXT: b"77\n"}, "this devkit cannot be read (77)"),
        *(
            (KIT, {"meta.mat": meta, TRUTH_TEXT: b"1\n"}, f"cannot be read (meta.mat: {reason}")
            for meta, reason in (
                (b"", "MatReadError"),
                (b"x" * 500, "ValueError: Unknown mat file type"),
                (META[:700], ""),
                (mat_file(other=1.0), "KeyError: 'synsets'"),
                (mat_file(synsets=[1.0, 2.0]), "IndexError"),
            )
        ),
        (KIT, {"meta.mat": META, TRUTH_TEXT: b"1\n"}, "_00000007.JPEG' is not one of the 1 images"),
        (
            TRAIN_TAR,
            {"n99999999.tar": inner_tar("n99999999", 1)},
            "img_train.tar: the class n99999999 is not in the list of classes",
        ),
        (TRAIN_TAR, {"readme.txt": b"hello"}, "the member 'readme.txt' is not a class"),
        (TRAIN_TAR, twice(f"{WNIDS[0]}.tar", b""), f"'{WNIDS[0]}.tar' is not a class such as"),
        (TRAIN_TAR, twice("a.tar", b"", size=-1024), "img_train.tar: this archive is damaged"),
        (TRAIN_TAR, {f"{WNIDS[0]}.tar": twice("a.JPEG", b"")}, "'a.JPEG' is there twice"),
    ],
)
def test_bad_sources_get_one_line(tmp_path, name, files, message, error_of):
    source = make_archives(tmp_path / "source")
    (source / name).unlink()
    if isinstance(files, dict):
        write_tar(source / name, files)
    elif files:
        (source / name).write_bytes(files)
    assert message in error_of(imagenet.main, source, tmp_path / "out", "--jobs", "1")
    assert not (tmp_path / "out").exists()


def test_any_damage_to_a_devkit_is_one_error_or_harmless(tmp_path):
    (tmp_path / "devkit/data").mkdir(parents=True)
    (tmp_path / "devkit" / TRUTH_TEXT).write_bytes(b"1\n")
    rng, refused = random.Random(0), 0
    for _ in range(200):
        damaged = bytearray(META)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(META))] = rng.randrange(256)
        cut = rng.choice((len(META), rng.randrange(len(META))))
        (tmp_path / "devkit/data/meta.mat").write_bytes(damaged[:cut])
        try:
            read_devkit(tmp_path, None)
        except UserError as error:
            assert "devkit: this devkit cannot be read (" in str(error)
            refused += 1
    assert refused > 130


def test_what_is_left_out_is_counted(tmp_path, capsys):
    source = tmp_path / "source"
    for wnid, count in zip(WNIDS, TRAIN_IMAGES, strict=True):
        (source / "train" / wnid).mkdir(parents=True)
        for number in range(count):
            name, data = train_image(wnid, number)
            (source / "train" / wnid / name).write_bytes(data)
    first = source / "train" / WNIDS[0]
    (first / "gone.JPEG").symlink_to("/nowhere/gone.JPEG")
    (first / "._a.JPEG").touch()
    (source / "train" / "others").mkdir()
    imagenet.main([str(source), str(tmp_path / "out"), "--jobs", "1"])
    shown = capsys.readouterr().out
    assert "9 train and 0 val images" in shown
    for text in (
        "1 dangling link",
        "1 hidden file",
        "1 folder without the name of an ImageNet class",
    ):
        assert text in shown


def test_class_folders_without_images_are_refused(tmp_path, error_of):
    for wnid in WNIDS:  # as Tiny ImageNet's
        (tmp_path / "tiny" / "train" / wnid / "images").mkdir(parents=True)
    error = error_of(imagenet.main, str(tmp_path / "tiny"), str(tmp_path / "out"))
    assert error.startswith("train: its class folders hold no image; left out: 3 folders inside")


def test_a_split_that_is_unpacked_next_to_an_archive_is_not_left_out(tmp_path, error_of):
    make_archives(tmp_path)
    (tmp_path / "ILSVRC2012_img_val.tar").unlink()
    (tmp_path / "val" / WNIDS[0]).mkdir(parents=True)
    error = error_of(imagenet.main, str(tmp_path), str(tmp_path / "out"))
    assert error.startswith(f"{tmp_path}/val: val is unpacked here, and the other split is an")


def test_names_and_counts_of_images_are_checked(tmp_path, error_of, capsys):
    source = make_archives(tmp_path / "source")
    write_tar(source / "inner.tar", {"run me.sh": b"hello"})
    inner = (source / "inner.tar").read_bytes()
    write_tar(source / TRAIN_TAR, {f"{WNIDS[0]}.tar": inner})
    error = error_of(imagenet.main, source, tmp_path / "out")
    assert "'run me.sh' is not a name of ImageNet" in error
    write_tar(source / TRAIN_TAR, {f"{WNIDS[0]}.tar": inner_tar(WNIDS[0], 2)})
    for _ in range(2):
        assert run(source, tmp_path / "out") == 1
        assert "warning: train has 2 images, not 9" in capsys.readouterr().err


def test_class_folders_that_were_completed_are_not_taken_for_done(tmp_path, error_of):
    source, out = make_extracted(tmp_path / "source", flat_val=True), tmp_path / "out"
    late = next(source.glob("train*/*/*.JPEG"))
    late.rename(tmp_path / late.name)
    assert run(source, out) == 1
    (tmp_path / late.name).rename(late)
    assert "this is there already" in error_of(imagenet.main, source, out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{t}/nowhere", "{t}/out"], "{t}/nowhere: there is no such folder"),
        (["{t}", "{t}/out"], "{t}: ImageNet is not here in any form known: ILSVRC2012_img_train"),
        (["{s}", "{t}"], "{t}: this is there already; name a new folder"),
        (["{s}", "{t}/out", "--devkit", "{t}/x"], "--devkit {t}/x: there is no such file"),
        (["{f}", "{t}/out"], "{f}/val: the images are in one flat folder, and nothing gives"),
    ],
)
def test_bad_commands_get_one_line(tmp_path, arguments, message, error_of):
    places = {n: tmp_path / n for n in "tsf"}
    places["t"].mkdir()
    make_archives(places["s"])
    make_tree(places["f"] / "train", places["f"] / "val", flat_val=True)
    error = error_of(imagenet.main, *(argument.format(**places) for argument in arguments))
    assert error.startswith(message.format(**places))


# -- interrupted runs ----------------------------------------------------------------------------


def test_room_is_needed_on_another_disk_only(tmp_path):
    """Where the images cannot be linked."""
    make_kaggle(tmp_path)
    images = [path.stat().st_size for path in tmp_path.rglob("*.JPEG")]
    plan = make_plan(tmp_path)
    assert plan.needs(tmp_path) == 0 and plan.needs(Path("/dev/shm")) == sum(images) > 0


def test_interrupted_run_continues(tmp_path, capsys):
    """The last of three classes cannot be read at first; the others are not written again."""
    source, out = make_archives(tmp_path / "source"), tmp_path / "out"
    archive = source / TRAIN_TAR
    good, status = archive.read_bytes(), archive.stat()
    bad = good.replace(f"{WNIDS[2]}_3.JPEG".encode(), b"../evil!".ljust(16))
    for data in (bad, good):
        archive.write_bytes(data)
        os.utime(archive, ns=(status.st_mtime_ns, status.st_mtime_ns))
        if data is bad:
            with pytest.raises(UserError):
                run(source, out, "--jobs", "1")
            before = {p: p.stat().st_ino for p in (tmp_path / "out.part/train").glob("[!.]*/*")}
            assert before
    assert run(source, out) == 0
    assert "continuing an interrupted run" in capsys.readouterr().err
    assert contents(out) == expected()
    for path, inode in before.items():
        assert (out / path.relative_to(tmp_path / "out.part")).stat().st_ino == inode
