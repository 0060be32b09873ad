"""Scripts of the capstone, each the solution with one mistake."""

from __future__ import annotations

STEPS = "order[step * BATCH : (step + 1) * BATCH].chunk(size)[rank]"
PERM = "torch.randperm(len(labels))"
GLOB = 'sorted(Path(data, "train").glob("*/*.jpg"))'
DDP = "DistributedDataParallel(net)"
UPDATE = "            optimizer.step()"
RATE = "learning_rate(epoch + step / steps)"
CAPSTONES = [  # a line of the solution, its replacement, and the diagnosis
    (STEPS, "order[step * BATCH // size :][: BATCH // size]", "train on the same images"),
    (GLOB, 'sorted(Path(data).glob("*/*/*.jpg"))', "validation images were trained on"),
    (DDP, "net", "the ranks' weights differ after update 2"),
    ("    torch.manual_seed(0)\n", "    torch.manual_seed(rank)\n", DDP, "net",
     "the ranks begin with different weights"),
    (UPDATE, "            for weight in net.parameters():\n                weight.grad *= size\n"
     f"{UPDATE}", "summed over the ranks"),
    (UPDATE, "            for weight in net.parameters():\n                weight.grad /= size\n"
     f"{UPDATE}", "equal gradients that are not the mean"),
    ("steps = len(labels) // BATCH", "steps = len(labels) // BATCH - 1",
     "not 3 times 2 steps of 16"),
    (PERM, "torch.arange(len(labels))", "every epoch has the same order"),
    (PERM, "torch.randint(len(labels), (len(labels),))", "images are repeated"),
    ("order[step * BATCH : (step + 1) * BATCH]", "order.roll(-step * BATCH)[: 2 * BATCH]",
     "with 192 images in all, not 3 times"),
    ("resize((SIZE, SIZE)", "resize((32, 32)", "images of 32 × 32 pixels"),
    ("Resampling.BICUBIC", "Resampling.NEAREST", "the images are aliased"),
    (".float()", ".flip(1).float()", "do not match the files: averaged"),
    ("permute(0, 3, 1, 2)", "permute(0, 3, 2, 1)", "rows and columns of the images are exchanged"),
    ("(images - mean) / std", "(images / 255 - mean) / std", "they range from -2.12 to"),
    ("(images - mean) / std", "(images - mean) / std.flip(0)", "look at MEAN and STD"),
    ("(images - mean) / std", "(images - mean.flip(0)) / std.flip(0)", "do not match the files"),
    ("for channels in (16, 32, 64, 64)", "for channels in (8, 16, 32, 64)", "the network has"),
    ("lr=0.0, momentum=0.9", "lr=0.0", "is SGD with momentum 0 and weight decay 0"),
    ("momentum=0.9", "momentum=0.9, weight_decay=1e-4", "and weight decay 0.0001"),
    ("SGD(model.parameters(), lr=0.0, momentum=0.9)", "AdamW(model.parameters(), lr=0.0)",
     "the optimizer is AdamW"),
    (RATE, "learning_rate(epoch)", "the learning rate of step 1 is 0 instead of"),
    (RATE, f"size * {RATE}", "Don't scale the rates: PEAK already"),
    ("            optimizer.zero_grad()\n", "", "of a step include those of the step before"),
    ("    net.eval()\n", "", "validation runs in training mode"),
    ("[rank::size]", "", "a validation used 12 of the 12 images, in 24 rows"),
    ("100 * hits / count", "97.0", "and 97.00%"),
    ("100 * hits / count", "hits / count", "Top-1 is in percent"),
    ("    dist.all_reduce(sums)\n", "", "but the network's logits for all"),
    ('json.dumps(report)', '"{}"', "has no lists val_loss and val_top1"),
    ("model(images[chosen]), labels[chosen]", "model(images[chosen]), labels[chosen].roll(1)",
     "the network hardly learns"),
    ("    net.train()\n", "", "trained in evaluation mode"),
    ("100 * hits / count", 'float("nan")', "and nan%"),
    ("return loss / count", "return loss", "loss and top-1 of epoch 1"),
    (UPDATE, "            for weight in net.parameters():\n"
     f"                weight.grad.mul_(1e30)\n{UPDATE}", "the logits are not finite"),
    ("    steps = len(labels)", "    steps = len(nowhere)", "NameError"),
    ("    steps = len(labels)", "    __import__('os').abort()\n    steps = len(labels)",
     "was killed by signal 6 (SIGABRT)"),
    ("    steps = len(labels)", "    raise SystemExit(3)\n    steps = len(labels)", "calls exit"),
]  # fmt: skip
HOROVOD = [  # from the solution to the same script with Horovod
    ("import numpy as np\n", "import horovod.torch as hvd\nimport numpy as np\n"),
    ("from torch import distributed as dist\n", ""),
    ("from torch.nn.parallel import DistributedDataParallel\n", ""),
    ("    dist.all_reduce(sums)\n", "    sums = hvd.allreduce(sums, op=hvd.Sum)\n"),
    ('dist.init_process_group("gloo")', "hvd.init()"),
    ("dist.get_rank(), dist.get_world_size()", "hvd.rank(), hvd.size()"),
    ("    model = DistributedDataParallel(net)",
     "    hvd.broadcast_parameters(net.state_dict(), root_rank=0)\n    model = net"),
    ("momentum=0.9)\n", "momentum=0.9)\n    optimizer = hvd.DistributedOptimizer(optimizer)\n"),
    ("dist.broadcast(statistics, 0)", "hvd.broadcast_(statistics, root_rank=0)"),
    ("    dist.destroy_process_group()", ""),
]  # fmt: skip
