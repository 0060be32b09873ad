"""The verbs of `rn50`, and the modules of those that are a separate program."""

VERBS = {
    "run": "train, with everything that you omit chosen for this machine",
    "train": "one worker of a run, in this process",
    "score": "validate a checkpoint: rn50 score PREFIX EPOCH",
    "benchmark": "images per second over numbers of workers and batch sizes",
    "predict": "class probabilities of images: rn50 predict PREFIX EPOCH a.jpg",
    "import": "weights of torchvision or timm as a checkpoint: rn50 import torchvision FILE",
    "export": "a checkpoint as an ONNX file or weights for torchvision and timm",
    "plot": "loss and accuracy curves from report files",
    "compare": "compare reports, benchmarks and published figures",
    "scale": "what a training would do on other numbers of GPUs, what it takes and costs",
    "diagnose": "where the time of a run goes, and which change would help most",
    "doctor": "what this machine has, what is missing and what to do about it",
    "workshop": "build, check and run the notebooks",
}
TOOLS = {  # verbs that are a separate program: the module of rn50 that has its `main`
    "score": "score",
    "benchmark": "benchmark.command",
    "predict": "predict",
    "import": "import_weights",
    "export": "export",
    "plot": "plot",
    "compare": "compare",
    "scale": "scaling.command",
    "doctor": "doctor",
    "diagnose": "diagnose.command",
}
