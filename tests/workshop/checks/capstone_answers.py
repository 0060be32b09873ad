"""Scripts of the capstone, each the solution with one mistake."""

from __future__ import annotations

GLOB, PERM = 'folder.glob("*/*.jpg")', "torch.randperm(len(labels))"
CAPSTONES = [  # a line of the solution, its replacement, and the diagnosis
    (GLOB, 'folder.parent.glob("*/*/*.jpg")', "validation images were trained on"),
    (f"{PERM}.split(BATCH)", f"{PERM}[BATCH:].split(BATCH)",
     "training used 132 images in all"),
    (f"{PERM}.split(BATCH)", "torch.arange(BATCH, len(labels)).split(BATCH)",
     "not 3 times 60; 16 were never used"),
    (PERM, "torch.randint(len(labels), (len(labels),))", "images are repeated"),
    (f"{PERM}.split(BATCH)", f"{PERM}.split(2 * BATCH)", "a step trains on 32 images"),
    ("resize((SIZE, SIZE)", "resize((32, 32)", "images of 32 × 32 pixels"),
    (".float()", ".flip(1).float()", "do not match the files"),
    ("(images - mean) / std", "images / 255", "do not match the files"),
    ("for channels in (16, 32, 64, 64)", "for channels in (8, 16, 32, 64)", "the network has"),
    ("learning_rate(epoch + step / steps)", "learning_rate(epoch)",
     "the learning rate is 0 in the whole first epoch"),
    ("    net.eval()\n", "", "validates in training mode"),
    ("    net.eval()\n", "    net.eval()\n    images, labels = images[:20], labels[:20]\n",
     "a validation used 20 of the 24 images"),
    ("100 * hits / len(labels)", "97.0", "is reported as 97.00%"),
    ("images.split(4 * BATCH)])\n    net.train()\n    hits = (logits.argmax(1) == labels).sum()",
     "images.split(BATCH)])\n    net.train()\n    right = (logits.argmax(1) == labels).float()\n"
     "    means = torch.stack([part.mean() for part in right.split(BATCH)])\n"
     "    hits = (means.mean() * len(labels))", "the mean over batches"),
    ('json.dumps(report)', '"{}"', "has no lists val_loss and val_top1"),
    ("net(images[chosen]), labels[chosen]", "net(images[chosen]), labels[chosen].roll(1)",
     "the network hardly learns"),
    ("    net.train()\n", "", "trained in evaluation mode"),
    ("100 * hits / len(labels)", 'float("nan")', "top-1 of epoch 1 is reported as nan"),
    ('report["val_top1"].append(top1)', "pass", "val_top1 of 3 numbers"),
    ("F.cross_entropy(logits, labels).item()", "F.cross_entropy(logits, labels, reduction='sum')"
     ".item()", "the validation loss of epoch 1"),
    ("            optimizer.step()", "            for weight in net.parameters():\n"
     "                weight.grad.mul_(1e30)\n            optimizer.step()",
     "the logits are not finite"),
    ("    steps = -(-len(labels) // BATCH)", "    steps = len(nowhere)", "NameError"),
]  # fmt: skip
