"""The verbs of `rn50`, and the modules of their programs."""

VERBS = {
    "run": "train; anything you omit is chosen for this machine",
    "train": "run one worker in this process",
    "score": "validate a checkpoint: rn50 score PREFIX",
    "benchmark": "measure images per second by number of workers and batch size",
    "predict": "predict class probabilities: rn50 predict PREFIX a.jpg",
    "import": "turn torchvision or timm weights into a checkpoint",
    "export": "write a checkpoint as ONNX, or as weights for torchvision and timm",
    "plot": "draw loss and accuracy curves from report files",
    "compare": "compare reports, benchmarks and published figures",
    "scale": "predict speed, time and cost of training on more GPUs",
    "diagnose": "find out where a run's time goes, and which change would help most",
    "doctor": "report what this machine has, what is missing, and the remedies",
    "workshop": "build, check and run the notebooks",
}
MODULES = {  # which have a `main`, where they are not `rn50.VERB`
    "import": "rn50.import_weights",
    "scale": "rn50.scaling.command",
    "diagnose": "rn50.diagnose.command",
    "workshop": "workshop.course.commands",
}
