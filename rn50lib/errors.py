"""The exception that users are meant to read, and how every command ends on one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

TERMINATED = 143  # the exit status after SIGTERM: 128 + its number, as a shell says
PACKAGES = {  # module: what is installed to have it
    "PIL": "pillow",
    "google_crc32c": "google-crc32c",
    "matplotlib": "matplotlib",
    "psutil": "psutil",
    "safetensors": "safetensors",
    "tqdm": "tqdm",
}


class UserError(Exception):
    """Bad input: the message names the file, record or flag and says what to do about it.

    The command line prints it as one line, ``error: ...``, and exits with status 2.
    """


def status_of(work: Callable[[], int]) -> int:
    """Do it; returns its exit status, after one line on stderr where the user did something wrong
    or something is missing."""
    try:
        return work()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        package = PACKAGES.get((error.name or "").partition(".")[0])
        if package is None:
            raise
        print(
            f"error: this needs the package {package}, which is not installed: `make setup`"
            f" installs all that the workbook needs, `pip install {package}` this one",
            file=sys.stderr,
        )
        return 2
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "DefaultCPUAllocator" not in str(error):
            raise  # PyTorch on the CPU has no exception of its own for this
        message = (
            str(error).partition("DefaultCPUAllocator: ")[2] or str(error) or "allocation failed"
        )
        print(
            f"error: out of memory ({message.splitlines()[0]}): use a smaller -b or --image-shape",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `rn50 ... | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
