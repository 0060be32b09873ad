"""Wrong answers of ex06, each with a part of its diagnosis: see `wrong_answers`."""

from __future__ import annotations

from rn50lib.optim import loss_scale_update

# --- ex06.memory ----------------------------------------------------------------------------------


def megabytes(fixed, each, of="float16", unit=1.0, images=(1, 96)):
    """The right answer with one format changed, by bytes a parameter and an activation."""
    right = {"float32": (12, 4), "float16": (14, 2)} | {of: (fixed, each)}
    return {
        name: [unit * (p * 25.6 + a * 21.5 * n) for n in images] for name, (p, a) in right.items()
    }


# --- ex06.scaler ----------------------------------------------------------------------------------


def upside_down(scale, good_steps, finite, growth_steps):
    return loss_scale_update(scale, good_steps, not finite, growth_steps)


def skips_only(scale, good_steps, finite, growth_steps):
    return loss_scale_update(scale, good_steps, finite, growth_steps) if finite else (scale, 0)


def forgets_to_begin_again(scale, good_steps, finite, growth_steps):
    new, good = loss_scale_update(scale, good_steps, finite, growth_steps)
    return new, good if finite else good_steps


def grows_on(scale, good_steps, finite, growth_steps):
    new, good = loss_scale_update(scale, good_steps, finite, growth_steps)
    return new, good_steps + 1 if finite else 0


def late(scale, good_steps, finite, growth_steps):
    return loss_scale_update(scale, good_steps, finite, growth_steps + 1)


def every_step(scale, good_steps, finite, growth_steps):
    return loss_scale_update(scale, good_steps, finite, 1)


def never_grows(scale, good_steps, finite, growth_steps):
    return (scale, good_steps + 1) if finite else (max(1.0, scale / 2), 0)


def bottomless(scale, good_steps, finite, growth_steps):
    return loss_scale_update(scale, good_steps, finite, growth_steps) if finite else (scale / 2, 0)


def endless(scale, good_steps, finite, growth_steps):
    if finite and good_steps + 1 >= growth_steps:
        return scale * 2, 0
    return loss_scale_update(scale, good_steps, finite, growth_steps)


def scale_only(*args):
    return loss_scale_update(*args)[0]


def turned_round(*args):
    return loss_scale_update(*args)[::-1]


def by_tens(scale, good_steps, finite, growth_steps):
    new, good = loss_scale_update(scale, good_steps, finite, growth_steps)
    return (10 * scale if new > scale else new), good


# --- ex06.layout ----------------------------------------------------------------------------------


def placed(shape, order, multiple):
    n, c, h, w = shape
    c = -(-c // multiple) * multiple
    return (c * h * w, h * w, w, 1) if order == "NCHW" else (c * h * w, 1, w * c, c)


def order_of_memory(shape, order, multiple):
    n, c, h, w = placed(shape, order, multiple)
    return (n, c, h, w) if order == "NCHW" else (n, h, w, c)


def orders_exchanged(shape, order, multiple):
    return placed(shape, "NHWC" if order == "NCHW" else "NCHW", multiple)


def not_padded(shape, order, multiple):
    return placed(shape, order, 1)


def one_more(shape, order, multiple):
    n, c, h, w = shape
    return placed((n, c // multiple * multiple + multiple, h, w), order, 1)


def rounded_down(shape, order, multiple):
    n, c, h, w = shape
    return placed((n, max(1, c // multiple * multiple), h, w), order, 1)


def rest_added(shape, order, multiple):
    n, c, h, w = shape
    return placed((n, c + c % multiple, h, w), order, 1)


def bytes_of_float32(shape, order, multiple):
    return [4 * stride for stride in placed(shape, order, multiple)]


def always_nchw(shape, order, multiple):
    return placed(shape, "NCHW", multiple)


WRONG_06 = [
    ("ex06.memory", megabytes(6, 2), "everything is halved"),
    ("ex06.memory", megabytes(12, 2), "12 bytes, as in float32"),
    ("ex06.memory", megabytes(10, 2), "in 16 bits only"),
    ("ex06.memory", megabytes(14, 4), "the activations of float16 take 4 bytes"),
    ("ex06.memory", megabytes(14, 2, images=(1, 1)), "96 images take as much as one"),
    ("ex06.memory", megabytes(14, 2, unit=0.001), "these are GB"),
    ("ex06.memory", megabytes(14, 2, unit=1e6 / 2**20), "these are MiB"),
    ("ex06.memory", {"float32": [393.2, 37747], "float16": [401.4, 38534]}, "96 times as much"),
    ("ex06.memory", {"float32": 393, "float16": 401}, "two numbers are asked for"),
    ("ex06.memory", megabytes(16, 4, of="float32"), "float32, batch 1: 495.6 MB is more"),
    ("ex06.scaler", upside_down, "finite means that all is well"),
    ("ex06.scaler", skips_only, "the next step will overflow too"),
    ("ex06.scaler", forgets_to_begin_again, "does not end the row of good steps"),
    ("ex06.scaler", grows_on, "from then on every step doubles"),
    ("ex06.scaler", late, "one step late"),
    ("ex06.scaler", every_step, "every good step doubles"),
    ("ex06.scaler", never_grows, "one step late, or never"),
    ("ex06.scaler", bottomless, "falls below 1"),
    ("ex06.scaler", endless, "grows beyond 2^24"),
    ("ex06.scaler", scale_only, "what comes back is 1024.0"),
    ("ex06.scaler", turned_round, "the two are exchanged"),
    ("ex06.scaler", by_tens, "loss_scale_update(1024, 2, True, 3) gives (10240, 0)"),
    ("ex06.layout", order_of_memory, "in the order of the memory"),
    ("ex06.layout", orders_exchanged, "the two orders are exchanged"),
    ("ex06.layout", not_padded, "the channels are not padded"),
    ("ex06.layout", one_more, "a multiple of 8 already"),
    ("ex06.layout", rounded_down, "is rounded down"),
    ("ex06.layout", rest_added, "the rest of the division"),
    ("ex06.layout", bytes_of_float32, "these are bytes"),
    ("ex06.layout", always_nchw, "strides((2, 3, 4, 5), 'NHWC', 1) gives (60, 20, 5, 1)"),
]


# --- ex06.step, which needs PyTorch ---------------------------------------------------------------


def steps(*calls, loss_of=None, length=1.0):
    """A training step of these calls, by name."""

    def step(model, images, targets, optimizer, scaler):
        import torch

        mean = torch.nn.functional.mse_loss
        loss = (loss_of or mean)(model(images), targets)
        doing = {
            "empty": optimizer.zero_grad,
            "backward": lambda: scaler.scale(loss).backward(),
            "scale": lambda: scaler.scale(loss),
            "plain": loss.backward,
            "unscale": lambda: scaler.unscale_(optimizer),
            "clip": lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), length),
            "step": lambda: scaler.step(optimizer),
            "own step": optimizer.step,
            "update": scaler.update,
            "halve": lambda: scaler.update(scaler.get_scale() / 2),
        }
        for call in calls:
            doing[call]()

    return step


def summed(outputs, targets):
    return ((outputs - targets) ** 2).sum()


def halved(outputs, targets):
    return ((outputs - targets) ** 2).mean() / 2


def scales_the_pictures(model, images, targets, optimizer, scaler):
    images *= 0.5
    RIGHT_STEP(model, images, targets, optimizer, scaler)


def spoils_the_weights(model, images, targets, optimizer, scaler):
    RIGHT_STEP(model, images, targets, optimizer, scaler)
    model.weight.data /= 0 * images.abs().max().clamp(max=1)


def in_another_style(model, images, targets, optimizer, scaler):
    import torch

    model.zero_grad(set_to_none=False)
    images = images.clone()
    images *= 1.0
    scaler.scale((model(images) - targets).pow(2).mean()).backward()
    scaler.unscale_(optimizer)
    norm = torch.cat([p.grad.ravel() for p in model.parameters()]).norm()
    for parameter in model.parameters():
        parameter.grad /= norm.clamp(min=1.0)
    scaler.step(optimizer)
    scaler.update()
    return float(norm)


BEGIN = ("empty", "backward")
RIGHT = (*BEGIN, "unscale", "clip", "step", "update")
RIGHT_STEP = steps(*RIGHT)
OTHER_STEPS = [
    ("ex06.step", steps("backward", "unscale", "clip", "step", "update", "empty")),
    ("ex06.step", in_another_style),
]
WRONG_STEPS = [
    ("ex06.step", steps("backward", "clip", "unscale", "step", "own step", "update"),
     "clipped while they are still scaled, and two steps are taken"),
    ("ex06.step", steps(*BEGIN, "unscale", "clip", "step", "own step", "update"), "taken twice"),
    ("ex06.step", steps(*BEGIN, "clip", "unscale", "step", "update"), "the weights hardly move"),
    ("ex06.step", steps(*BEGIN, "own step"), "the scale is never undone"),
    ("ex06.step", steps(*BEGIN, "clip", "own step"), "a step as long as large ones"),
    ("ex06.step", steps("empty", "scale", "plain", "unscale", "clip", "step", "update"),
     "the loss had none"),
    ("ex06.step", steps(*BEGIN, "unscale", "step", "update"), "large gradients are not clipped"),
    ("ex06.step", steps(*BEGIN, "unscale", "clip", "own step", "update"), "so are the weights now"),
    ("ex06.step", steps("backward", "unscale", "clip", "step", "update"), "they add up"),
    ("ex06.step", steps(*BEGIN, "unscale", "clip", "update"), "the weights do not move"),
    ("ex06.step", steps(*BEGIN, "unscale", "clip", "step"), "the scale is what it was"),
    ("ex06.step", steps(*BEGIN, "unscale", "clip", "step", "halve"), "enough to double it"),
    ("ex06.step", steps(*RIGHT, loss_of=summed), "the loss is a sum over the batch"),
    ("ex06.step", steps(*RIGHT, loss_of=halved), "half as long as it should be"),
    ("ex06.step", steps(*RIGHT, length=0.5), "large gradient: the weights are"),
    ("ex06.step", scales_the_pictures, "`images` is changed"),
    ("ex06.step", spoils_the_weights, "the weights are inf"),
]  # fmt: skip
