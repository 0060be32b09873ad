"""Our prediction or training step, and ResNet-50 as a good user of PyTorch runs it; in turns.

    python benchmarks/steps.py predict --batches 1 8 32 --dtypes float32 bfloat16
    python benchmarks/steps.py train --batches 16
    python benchmarks/steps.py train --batches 256 --dtypes float16 --only eager "ours, graph"

A prediction goes from a batch of uint8 NHWC images in NumPy to class probabilities in NumPy. A
training step goes from the same images, on a GPU from a copy that is already there, to weights that
were updated once. Ours runs as it is by default and with the settings in `OURS`. The peers run
torchvision's ResNet-50 in channels_last (ONNX Runtime in its own layout); their "compile, replayed"
is `mode="reduce-overhead"`, ours a CUDA graph of the compiled network. For a prediction on a GPU,
PyTorch's contestants stage the images in pinned memory. All have the same weights, images and
threads, and the same setting of the allocator. Before anything is timed their answers are compared:
the probabilities, or the loss of the first step. In training, "kernels" is a floor, not a peer: see
`floor`.

With a GPU, all contestants use it (`CUDA_VISIBLE_DEVICES=` hides it), each in its process, which
gives back between its turns what it does not need: if the memory does not suffice for all, --only
chooses. Ctrl-C ends the rounds; those that are complete are printed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import itertools
import sys
import tempfile
from concurrent import futures
from pathlib import Path

import measure
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
BFLOAT16 = "ours, fused bfloat16"  # next to the float16 of all others
ENGINES, EIGHT = ("ONNX Runtime", "OpenVINO"), "8 bits"  # these run next to float32
OURS: dict[str, dict[str, dict]] = {  # by the job: what differs from the defaults
    "train": {"ours": {}},
    "predict": {"ours": {}},
}
PEERS = {
    "train": ["eager", "compile", "kernels"],
    "predict": [
        "eager",
        "compile",
        "ONNX Runtime",
        "OpenVINO",
        *(f"{name}, {EIGHT}" for name in ENGINES),
    ],
}
if GPU:
    graph, fused, engine = {"cuda_graph": True}, {"fused": True}, {"engine": "compile"}
    OURS["train"] |= {
        "ours, graph": graph,
        "ours, fused": fused,
        "ours, fused graph": graph | fused,
        BFLOAT16: fused | {"dtype": "bfloat16"},
        "ours, compile": {"compile": True},
    }
    OURS["predict"] |= {
        "ours, graph": graph,
        "ours, compile": engine,
        "ours, compile, replayed": graph | engine,
    }
    PEERS = {
        "train": ["eager", "graph", "compile", "kernels"],
        "predict": ["eager", "graph", "compile", "compile, replayed", "ONNX Runtime"],
    }
# how much answers may differ, as a share of the loss, or of the logits about their mean
TOLERANCES = {"float32": 1e-3, "tf32": 0.01, "float16": 0.02, "bfloat16": 0.1, EIGHT: 0.3}
DTYPES = list(TOLERANCES)[:-1] if GPU else ["float32", "bfloat16"]
started: dict = {}  # in a contestant's process: its work


# --- the contestants: each function returns the work, a function that returns an answer if asked --


def ours(args: argparse.Namespace, images: np.ndarray, numbers: np.ndarray):
    """Return the work of `rn50 run` and `rn50 predict`."""
    from rn50.autoconfig import resolve
    from rn50lib import checkpoint
    from rn50lib import distributed as comm
    from rn50lib.data import Batch
    from rn50lib.hardware import machine
    from rn50lib.run_setup import build_step

    asked = dict(
        loader="synthetic", backend="torch", image_shape=args.size, batch_size=len(images),
        dtype=args.dtype, threads=args.threads, num_classes=1000, n=1,
        only_inference=args.job == "predict",
    )  # fmt: skip
    config = resolve(asked | OURS[args.job][args.name], machine(), 1000).config
    net = config.to_network()
    step = build_step(config, net, comm.connect())
    arrays = checkpoint.load(args.weights, 0).arrays
    step.load({name: arrays[name] for name in net.arrays()})
    if args.job == "predict":
        return lambda answer=False: step.predict(images)
    batch = Batch(images, numbers, len(images))

    def train(answer=False):
        step.train_step(batch, 0.01)
        return step.pop_metrics()[0] / len(images) if answer else None

    return train


class Normalised(nn.Module):
    """ResNet-50 from uint8 NHWC images on, as a user would export it."""

    def __init__(self, weights: Path, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = resnet50(), dtype
        self.model.load_state_dict(torch.load(weights, weights_only=True))
        self.model.to(dtype, memory_format=torch.channels_last)
        self.register_buffer("mean", torch.tensor([123.675, 116.28, 103.53]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([58.395, 57.12, 57.375]).view(1, 3, 1, 1))

    def forward(self, images_NHWC: torch.Tensor) -> torch.Tensor:
        """Return the logits (N, 1000)."""
        x = (images_NHWC.permute(0, 3, 1, 2).float() - self.mean) / self.std
        return self.model(x.to(self.dtype, memory_format=torch.channels_last))


def torch_dtype(name: str) -> torch.dtype:
    """Return PyTorch's type of a precision; float32 and tf32 also set how it multiplies."""
    if GPU:
        torch.backends.cudnn.benchmark = True
        # not fp32_precision: torch.compile stops if these contradict it
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    return torch.float32 if name == "tf32" else getattr(torch, name)


def captured(function):
    """Return a function of no arguments that replays a call of `function` as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()

    def replay(keep=function):  # a graph does not keep the weights that it reads
        graph.replay()
        return result

    return replay


def resnet50() -> nn.Module:
    """Return torchvision's ResNet-50, which is v1.5."""
    return measure.import_torchvision().models.resnet50()


def predictor(args: argparse.Namespace, images: np.ndarray):
    """Return the prediction of PyTorch."""
    whole = Normalised(args.weights, torch_dtype(args.dtype)).eval().to(DEVICE)
    compiled = args.name.startswith("compile")
    if compiled and not GPU:  # as PyTorch's manual advises for processors
        torch._inductor.config.freezing = True
    mode = "reduce-overhead" if "replayed" in args.name else None  # PyTorch's own CUDA graphs
    function = torch.compile(whole, mode=mode) if compiled else whole
    stored = torch.from_numpy(images)
    pinned = torch.empty_like(stored, pin_memory=GPU)
    if args.name == "graph":
        static = torch.empty_like(stored, device="cuda")
        with torch.no_grad():
            replay = captured(lambda: whole(static).float().softmax(1))

    @torch.no_grad() if compiled else torch.inference_mode()
    def predict(answer=False):
        on_device = pinned.copy_(stored).to("cuda", non_blocking=True) if GPU else stored
        return function(on_device).float().softmax(1).cpu().numpy()

    @torch.inference_mode()
    def predict_by_graph(answer=False):
        static.copy_(pinned.copy_(stored), non_blocking=True)
        return replay().cpu().numpy()

    return predict_by_graph if args.name == "graph" else predict


def onnx_predictor(args: argparse.Namespace, images: np.ndarray):
    """Return the prediction of ONNX Runtime or OpenVINO."""
    whole = Normalised(args.weights, torch.float32).eval()
    program = torch.onnx.export(whole, (torch.from_numpy(images),), dynamo=True, verbose=False,
                                input_names=["images"])  # fmt: skip
    content = program.model_proto.SerializeToString()
    if EIGHT in args.name:
        content = in_8_bits(content, images)
    if "OpenVINO" in args.name:
        import openvino

        precision = "f32" if args.dtype == "float32" else "bf16"
        settings = {"INFERENCE_NUM_THREADS": args.threads, "PERFORMANCE_HINT": "LATENCY",
                    "INFERENCE_PRECISION_HINT": precision}  # fmt: skip
        core = openvino.Core()
        network = core.compile_model(core.read_model(content), "CPU", settings)
        return lambda answer=False: torch.from_numpy(network(images)[0]).softmax(1).numpy()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    provider = "CUDAExecutionProvider" if GPU else "CPUExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        raise RuntimeError("this ONNX Runtime cannot use a GPU: `pip install onnxruntime-gpu`")
    session = onnxruntime.InferenceSession(content, options, providers=[provider])

    def predict(answer=False):
        return torch.from_numpy(session.run(None, {"images": images})[0]).softmax(1).numpy()

    return predict


def in_8_bits(content: bytes, images: np.ndarray) -> bytes:
    """Return an ONNX file with 8-bit weights and activations, whose ranges `images` set."""
    from onnxruntime import quantization
    from onnxruntime.quantization import shape_inference

    class Images(quantization.CalibrationDataReader):
        left = iter([{"images": images}])

        def get_next(self):
            return next(self.left, None)

    with tempfile.TemporaryDirectory() as folder:
        file, small = Path(folder, "file.onnx"), Path(folder, "small.onnx")
        file.write_bytes(content)
        shape_inference.quant_pre_process(str(file), str(file))  # it folds batch norms
        unsigned = {"activation_type": quantization.QuantType.QUInt8}  # on x86 twice as fast
        quantization.quantize_static(str(file), str(small), Images(), per_channel=True, **unsigned)
        return small.read_bytes()


def trainer(args: argparse.Namespace, images: np.ndarray, numbers: np.ndarray):
    """Return a training step of PyTorch: autocast, a loss scale for float16, a fused optimizer."""
    dtype = torch_dtype(args.dtype)
    whole = Normalised(args.weights, torch.float32).train().to(DEVICE)
    labels, pixels = torch.from_numpy(numbers).to(DEVICE), torch.from_numpy(images).to(DEVICE)
    optimizer = torch.optim.SGD(
        whole.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True
    )
    # at 2^16, the default, the first step may overflow, and PyTorch's fused SGD then leaves the
    # momentum as the memory was: NaN in all weights, on which a GPU may compute faster
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**10, enabled=dtype == torch.float16)
    by_graph = args.name == "graph"

    def loss_of(images: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, dtype, dtype != torch.float32, cache_enabled=not by_graph):
            return F.cross_entropy(whole(images), labels)

    function = torch.compile(loss_of) if args.name == "compile" else loss_of

    def step():
        loss = function(pixels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    if by_graph:
        first = step()
        replay = captured(step)
        answers = iter((first,))  # the first answer is that of the first step
        return lambda answer=False: next(answers).item() if answer else replay()
    return lambda answer=False: step().item() if answer else step()


def floor(args: argparse.Namespace, images: np.ndarray):
    """Return what a training step cannot do without: its convolutions, memory traffic and update.

    Every convolution runs forward and backward, for its weights and (except the first) its input.
    Batch norm, ReLU and the addition, fused as far as possible, pass over each convolution's output
    eight times: read for the statistics, read and written to normalise, and on the way back two
    tensors read for the sums and again for the gradient, which is written. Four copies move as
    many bytes.
    """
    model, dtype = resnet50().to(DEVICE), torch_dtype(args.dtype)
    kernels: list = []

    def note(conv: nn.Conv2d, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        x, weight, gradient = (
            t.detach().to(dtype, memory_format=torch.channels_last)
            for t in (inputs[0], conv.weight, torch.ones_like(output))
        )
        sizes = conv.stride, conv.padding, conv.dilation
        wanted = [len(kernels) > 0, True, False]

        def kernel() -> None:
            y = torch.convolution(x, weight, None, *sizes, False, (0, 0), 1)
            for _ in range(4):
                gradient.copy_(y)
            torch.ops.aten.convolution_backward(
                gradient, x, weight, None, *sizes, False, (0, 0), 1, wanted
            )

        kernels.append(kernel)

    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(note)
    with torch.no_grad():
        model(torch.from_numpy(images).to(DEVICE).permute(0, 3, 1, 2).float())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def step(answer=False) -> float:
        with torch.no_grad():
            for kernel in kernels:
                kernel()
        optimizer.step()
        return float("nan")

    return step


def get_ready(name: str) -> None:
    """Import what a contestant needs, and make its GPU's context: in all processes at once."""
    if name in OURS["train"] | OURS["predict"]:
        from rn50 import autoconfig  # noqa: F401
        from rn50lib import run_setup  # noqa: F401
        from rn50lib.torch import train_step  # noqa: F401
    else:
        measure.import_torchvision()
    torch.zeros(1, device=DEVICE)


def start(args: argparse.Namespace, name: str, weights: Path, batch: int, dtype: str):
    """Make the work of a contestant, for `turn`, in its process; return its first answer."""
    args.name, args.weights, args.dtype = name, weights, dtype
    started.clear()
    free_memory()
    if "compile" in name:  # or a second batch size would compile for any
        torch.compiler.reset()
    torch.set_num_threads(args.threads)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (batch, args.size, args.size, 3), np.uint8)
    numbers = rng.integers(0, 1000, batch)
    if name in OURS[args.job]:
        started["work"] = ours(args, images, numbers)
    elif name == "kernels":
        started["work"] = floor(args, images)
    elif args.job == "train":
        started["work"] = trainer(args, images, numbers)
    else:
        make = onnx_predictor if name.startswith(ENGINES) else predictor
        started["work"] = make(args, images)
    answer = np.asarray(started["work"](answer=True), np.float64)
    free_memory()
    return answer


def free_memory() -> None:
    """Give the GPU's memory that nothing uses to the other contestants."""
    gc.collect()
    if GPU:
        torch.cuda.empty_cache()


def turn_of(process: futures.ProcessPoolExecutor, args: argparse.Namespace) -> float:
    """Let a contestant work in its process; return the seconds of one call."""
    return process.submit(turn, args.seconds, args.cpu).result()


def turn(seconds: float, cpu: bool) -> float:
    """Return the seconds of one call, from as many as fill `seconds`; a GPU has finished them."""
    wait = torch.cuda.synchronize if GPU else None
    if GPU:
        started["work"]()  # allocates again what it gave back
    # the first fetches into the caches what another contestant has pushed out of them
    calls = max(2, round(seconds / measure.timed(started["work"], cpu=False, wait=wait)))
    took = measure.timed(started["work"], cpu, calls, wait)
    free_memory()
    return took


# --- the comparison -------------------------------------------------------------------------------


def make_weights(folder: Path, size: int) -> tuple[Path, Path]:
    """Make random weights with fitting statistics of batch norm.

    Returns a state dict for the peers, and the prefix of a checkpoint as `rn50 import` makes it.
    """
    from rn50.import_weights import import_weights

    torch.manual_seed(0)
    model = resnet50()
    for name, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the mean of all batches so far
            if name.endswith("bn3"):  # as in a trained network, which amplifies no rounding
                nn.init.constant_(module.weight, 0.2)
    with torch.no_grad():
        model((torch.rand(8, 3, size, size) - 0.45) / 0.226)
    file, prefix = folder / "weights.pth", folder / "weights"
    torch.save(model.state_dict(), file)
    import_weights(file, str(prefix), scored={})  # here: a process takes seconds to start
    return file, prefix


def check_agreement(wanted: np.ndarray, found: np.ndarray, dtype: str) -> None:
    """Raise ValueError if a contestant's answer is not ours."""
    if wanted.ndim:  # probabilities: the logits but for a constant
        wanted, found = (x - x.mean(-1, keepdims=True) for x in (np.log(wanted), np.log(found)))
    off = float(np.linalg.norm(wanted - found) / np.linalg.norm(wanted))
    if not off <= TOLERANCES[dtype]:
        raise ValueError(f"its answers differ from ours by {off:.2g} of their size")


def compare(
    args: argparse.Namespace, weights: tuple[Path, Path], batch: int, dtype: str,
    processes: dict[str, futures.ProcessPoolExecutor],
) -> bool:  # fmt: skip
    """Compare one batch size in one precision; return True if all answers agreed."""
    from rn50lib.hardware import machine

    where = torch.cuda.get_device_name() if GPU else f"{args.threads} threads"
    what = f"{args.job}, {args.size} px, batch {batch}, {dtype}, {where}"
    if dtype == "bfloat16" and not GPU and not machine().bfloat16:
        print(f"{what}: left out: this processor only emulates bfloat16")
        return True
    print(what, flush=True)
    own, agreed, answers, work, starting = OURS[args.job], True, {}, {}, {}
    # a compiled training step takes a minute to start: first of the processor, while others start
    slow = [name for name in processes if args.job == "train" and "compile" in name]
    for name in sorted(processes, key=lambda name: name not in slow):
        if dtype == "bfloat16" and name == "ONNX Runtime":  # it has no such convolutions for x86
            continue
        if EIGHT in name and dtype != "float32":
            continue
        if name == BFLOAT16 and dtype != "float16":
            continue
        file = weights[name in own]
        starting[name] = processes[name].submit(start, args, name, file, batch, dtype)
        if name not in slow:  # it times cuDNN's kernels while nothing but compilers runs
            futures.wait([starting[name]])
    for name in filter(starting.get, processes):  # ours first
        try:
            answers[name] = starting[name].result()
            if name != "kernels":
                own_dtype = EIGHT if EIGHT in name else own.get(name, {}).get("dtype", dtype)
                check_agreement(answers["ours"], answers[name], own_dtype)
        except Exception as error:
            if name == "ours":
                raise
            reason = str(error).strip() or type(error).__name__
            print(f"{name}: left out: {reason.splitlines()[0]}", flush=True)
            agreed = agreed and not isinstance(error, ValueError)
            continue
        work[name] = functools.partial(turn_of, processes[name], args)
    seconds = measure.run_rounds(work, args.rounds)
    pairs = [(ours, peer) for ours in own for peer in PEERS[args.job]]
    pairs += [(way, "ours") for way in own if way != "ours"]  # what each way gains
    pairs += [("ours, fused graph", "ours, compile"), (BFLOAT16, "ours, fused")]
    pairs += [(f"{name}, {EIGHT}", name) for name in ENGINES]
    measure.print_table(seconds, pairs, what, batch)
    return agreed


def main() -> None:
    """Run the comparison."""
    parser = measure.arguments(__doc__)
    parser.add_argument("job", choices=("train", "predict"))
    parser.add_argument("--size", type=int, default=224)
    usual = {"predict": [1, 16, 256] if GPU else [1, 8, 32], "train": [256] if GPU else [16]}
    parser.add_argument("--batches", type=int, nargs="+", help=f"default: {usual}")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--threads", type=int, default=len(measure.CORES))
    parser.add_argument("--seconds", type=float, default=1.0, help="of work in each turn")
    parser.add_argument("--cpu", action="store_true", help="compare processor seconds")
    args = parser.parse_args()
    measure.set_environment(args.threads)
    batches = args.batches or usual[args.job]
    names = measure.chosen([*OURS[args.job], *PEERS[args.job]], args)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        processes = {
            name: stack.enter_context(measure.new_process())
            for name in dict.fromkeys(["ours", *names])
        }
        stack.callback(measure.end_processes)
        for name, process in processes.items():
            process.submit(get_ready, name)
        weights = make_weights(Path(folder), args.size)
        agreed = [
            compare(args, weights, batch, dtype, processes)
            for batch, dtype in itertools.product(batches, args.dtypes)
        ]
    if not all(agreed):
        sys.exit("error: answers differ: see the lines `left out`")


if __name__ == "__main__":
    main()
