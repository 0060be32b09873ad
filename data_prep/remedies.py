"""Commands against errors of rn50lib about stored data, by the key of `UserError.remedy`."""

from __future__ import annotations

import shlex
from pathlib import Path

from rn50lib.errors import REMEDIES


def verify(path: str = "DATA_ROOT") -> str:
    return f"{program('verify', path)} lists all damage"


def draw(root: str) -> str:
    return (
        f"{program('roadsigns', root)} draws the built-in data there; `rn50 run` without"
        " --data-root draws and uses it"
    )


def pack(prefix: str, folder: str) -> str:
    listing = program("im2rec", "--list", "--recursive", prefix, folder)
    return f"make it with {listing} and then {program('im2rec', '--pass-through', prefix, folder)}"


def pack_upright() -> str:
    """Return how to store images so that no EXIF block turns them."""
    return f"{program('im2rec')} without --pass-through does that"


def relist(path: str | Path, *flags: str) -> str:
    """Return how to write the `--index` or the `--checksums` of a record file."""
    prefix = Path(path).with_suffix("")
    commands = (f"{program('im2rec', f, prefix)} writes the {f.strip('-')} again" for f in flags)
    return "; ".join(commands)


def recover(path: str, flag: str) -> str:
    """Return what to do if a record file does not match its index or checksums."""
    return f"{verify(path)}; if the file is right, {relist(path, flag)}"


def write_shards(root: str = "") -> str:
    return f"{program('tfrecord', *filter(None, [root]))} writes shards that can be read"


def index_shards(folder: str) -> str:
    return f"{program('tfrecord', '--index', folder)} writes it"


def sort_imagenet() -> str:
    """Return how to sort ImageNet's validation images into class folders."""
    return f"for ImageNet's validation images, {program('imagenet')} does it"


def program(name: str, *words: object) -> str:
    """Return the command of a program for a message, in backquotes, as a shell takes it."""
    return f"`{shlex.join(['python', '-m', f'data_prep.{name}', *map(str, words)])}`"


REMEDIES |= {
    command.__name__: command
    for command in (verify, draw, pack, pack_upright, relist, recover, write_shards, index_shards,
                    sort_imagenet)
}  # fmt: skip
