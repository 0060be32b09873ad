"""`PREFIX.crc`: a checksum for each record of a record file, because RecordIO itself has none.

im2rec writes it beside the three files that MXNet knows, which stay as MXNet writes them. It has a
line `offset <tab> CRC-32C` for each record; the checksum is that of the payload, which is the image
header and the image.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rn50lib.records.framing import RecordError

if TYPE_CHECKING:  # im2rec writes without waiting for NumPy's import
    import numpy as np


@functools.cache
def crc32c() -> Callable[[int, bytes], int]:
    """google-crc32c's ``extend(crc, data)``, imported only where checksums are needed."""
    import google_crc32c

    return google_crc32c.extend


def checksum_path(path_rec: str | os.PathLike) -> Path:
    """``data/train.crc`` for ``data/train.rec``."""
    return Path(os.path.splitext(os.fspath(path_rec))[0] + ".crc")


def checksum_remedy(path_rec: str | os.PathLike) -> str:
    """How to get checksums for the records as they are now, as the end of a message."""
    prefix = checksum_path(path_rec).with_suffix("")
    return f"`python -m data_prep.im2rec --checksums {prefix}` writes it anew"


def read_checksums(path_rec: str | os.PathLike) -> dict[int, int] | None:
    """Offset → checksum of each record; None where there is no checksum file.

    Raises RecordError, which says what is wrong and how to write it anew, for one that cannot be
    read.
    """
    from rn50lib.records.index import read_pairs

    path = checksum_path(path_rec)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"{path}: it cannot be read ({error.strerror})", path) from None
    pairs = read_pairs(data, "checksum file", "offset <tab> checksum")
    if isinstance(pairs, str):
        raise RecordError(f"{path}: {pairs}; {checksum_remedy(path_rec)}", path)
    return dict(pairs.tolist())


def checksums_at(path_rec: str | os.PathLike, offsets: np.ndarray) -> np.ndarray | None:
    """The checksums of the records at ``offsets``, int64 of the same shape; None without a file.

    Raises RecordError where the file cannot be read, or where it is that of another record file.
    """
    import numpy as np

    found = read_checksums(path_rec)
    if found is None:
        return None
    if len(found) != len(offsets) or found.keys() != set(offsets.tolist()):
        path = checksum_path(path_rec)
        raise RecordError(
            f"{path}: it does not belong to {path_rec}, which was written later or by another "
            f"program; {checksum_remedy(path_rec)}",
            path,
        )
    return np.array([found[offset] for offset in offsets.tolist()], np.int64)
