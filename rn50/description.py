"""A run in words: its values with their reasons, and its arithmetic."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from rn50 import launch
from rn50.autoconfig import Given, built_in_root, prepare
from rn50.parser import read_file, read_values
from rn50lib import recipe as recipes
from rn50lib.config import FLAGS, Resolved, TrainConfig, flag_name, flags_of, scoped, text_of
from rn50lib.hardware import machine


def describe(resolved: Resolved) -> str:
    """Return the values of a run with the reason for each, and the arithmetic, as lines."""
    config, lines = resolved.config, list(resolved.caps)
    hidden = {"data_root", "data_nthreads"} if config.loader == "synthetic" else set()
    hidden |= {"comm"} if config.comm == "local" else set()
    if config.only_inference:
        passes = {"num_epochs"} if config.num_epochs > 1 else set()
        hidden |= {n for n, flag in FLAGS.items() if flag.group == "recipe"} - {"recipe"} - passes
    values = config.to_dict()  # those that are not the default
    shown = [name for name in scoped("shown") if name in values]
    shown += [n for n in scoped("trick") if values[n] not in ((), getattr(recipes.REFERENCE, n))]
    for name in shown:
        if name in hidden:
            continue
        flag, *text = flags_of({name: values[name]})
        lines.append(f"  {flag:16} {' '.join(text)}  ({resolved.reasons.get(name, 'given')})")
    if config.dtype == "float16" and not machine().gpus:
        lines.append("  float16 on a processor shows what float16 does, not how fast it is")
    if config.compile and config.trains and config.n > 1 and config.comm == "horovod":
        lines.append("  --compile: the backward pass gives Horovod every gradient at its end, so"
                     " the whole exchange is exposed; --comm ddp overlaps it")  # fmt: skip
    if config.loader == "synthetic":
        lines.append("  synthetic images (100 batches, or --num-examples): accuracy means nothing")
    elif scores_random_weights(config):
        lines.append("  no checkpoint: the weights are random and accuracy means nothing; `rn50"
                     " score PREFIX` validates a trained model")  # fmt: skip
    lines.append(f"  {arithmetic(config)}")
    if config.trains and not config.benchmark_iters:
        lines += [f"  {line}" for line in schedule_remarks(config)]
    return "\n".join(lines)


def scores_random_weights(config: TrainConfig) -> bool:
    """Return True if a run validates the random weights that training would start from."""
    starts = config.load_epoch is not None or config.resume or config.init_from
    timed = config.no_metrics or config.test_io or config.step is not None
    return config.only_inference and not (starts or timed)


def arithmetic(config: TrainConfig) -> str:
    """Return the global batch and, in training, the learning rate, worked out in one line."""
    images = config.effective_batch_size
    factors = f"{config.n} x {config.batch_size}"
    if config.grad_accum_steps > 1:
        factors += f" x {config.grad_accum_steps} batches per update"
    line = f"global batch {factors} = {images}"
    if not config.trains:
        return line
    peak = config.lr * images / config.lr_batch
    line += f"; learning rate {config.lr:g} x {images} / {config.lr_batch} = {peak:g}"
    if config.lr_schedule != "step":
        line += f", {config.lr_schedule} to 0 at epoch {config.num_epochs}"
    return line


def schedule_remarks(config: TrainConfig) -> list[str]:
    """Return a remark if the run ends before its warm-up or its first decay."""
    epochs, first = config.num_epochs, min(config.lr_step_epochs, default=0)
    if epochs < config.warmup_epochs:
        what = f"inside its warm-up of {config.warmup_epochs:g}: the rate stays below its peak"
    elif epochs <= first:
        what = f"before its first decay at {first:g}: the accuracy will be lower"
    else:
        return []
    return [f"the run ends after epoch {epochs}, {what}"]


# --- --dry-run and --print config -----------------------------------------------------------------


def check_data(given: Given, config: TrainConfig) -> None:
    """Print what a run here would leave out of its data set. Raise UserError if it cannot run."""
    from rn50lib.data.sampler import BatchSampler
    from rn50lib.run_setup import check_traced, open_sources, print_sources

    root = Path(config.data_root).absolute()
    drawn = root == built_in_root() and not root.exists()  # by a run
    if config.loader != "synthetic" and not drawn:
        config = replace(config, data_root=given.get("data_root") or config.data_root)
        sources = open_sources(config)
        print_sources(sources, every=False)
        if config.trace:
            batches = BatchSampler(config, sources["train"], "train", size=config.n)
            check_traced(config, batches.stream_steps())


def as_config_file(given: Given) -> list[str]:
    """Return a complete run as the lines of a file for --config; each value with its reason."""
    import yaml

    remarks: list[str] = []
    resolved = prepare(given, remarks=remarks)
    lines = [f"# {' '.join(text.split())}" for text in (*remarks, *resolved.caps)]
    for name, value in resolved.to_dict().items():
        reason = " ".join(resolved.reasons.get(name, "").split())
        text = yaml.safe_dump([value], default_flow_style=True, width=2**30, allow_unicode=True)
        lines.append(f"{name}: {text.strip()[1:-1]}" + (f"  # {reason}" if reason else ""))
    return lines


def as_recipe(given: Given, preset: Path | None = None) -> list[str]:
    """Return everything that decides the accuracy of a run, and where it comes from, as a table."""
    config = prepare(given, remarks=[]).config
    base, crop = recipes.RECIPES[config.recipe], config.augmentation
    more = ("dtype", "n", "macrobatch_size", "num_layers", "optimizer", "val_resize")
    names = [name for name in FLAGS if name in vars(base) or name in more]
    rows = [
        (flag_name(n), text_of(getattr(config, n)), FLAGS[n].help)
        for n in names if getattr(config, n) is not None
    ]  # fmt: skip
    fixed = {
        "share of the training images that are mirrored": (crop.flip,),
        "width / height of a training crop, from and to": crop.aspect,
        "mean of red, green and blue": recipes.MEAN,
        "standard deviation of red, green and blue": recipes.STD,
    }
    rows += [("", ",".join(f"{x:.4g}" for x in xs), words) for words, xs in fixed.items()]
    published = {n: v for n, v in vars(base).items() if n in FLAGS and n != "batch_size"}
    source, expected = base.source, base.expected
    if preset:  # its file begins with comments
        lines = [line[2:].partition(":") for line in preset.read_text().splitlines()]
        about = {key: text.strip() for key, _, text in lines}
        source, expected = about["source"], about["expected"]
        published |= {"macrobatch_size": None} | read_values(read_file(preset), str(preset))
        if published["lr_schedule"] != "step":
            published["lr_step_epochs"] = ()
    changed = [
        flag_name(n) for n in names if getattr(config, n) != published.get(n, getattr(config, n))
    ]
    if changed:
        expected = f"not published with these values of {', '.join(changed)}"
    return [
        f"recipe {preset.stem if preset else base.name}: {source}",
        f"expected: {expected}",
        *(f"  {name:21} {text:17} {words}" for name, text, words in rows),
    ]


def command_line(resolved: Resolved) -> str:
    """Return the command that starts the workers of a run."""
    worker = [*launch.program("train"), *flags_of(resolved.to_dict())]
    return shlex.join(launch.launcher_command(resolved.config, worker))
