"""Horovod's launcher without its check of the installation: `python -m rn50.horovodrun FLAGS`.

Before it starts anything, horovodrun imports PyTorch in a separate process to see whether Horovod
was built with Gloo. That takes seconds, and a worker without Gloo reports the same.
"""

from __future__ import annotations


def main() -> None:
    """Run horovodrun with the flags on the command line."""
    from horovod.runner import launch

    launch.gloo_built = lambda verbose=False: True
    launch.run_commandline()


if __name__ == "__main__":
    main()
