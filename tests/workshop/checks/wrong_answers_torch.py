"""Answers on PyTorch's models, tensors and groups: wrong ones with their diagnosis, right ones in
another style."""

from __future__ import annotations

import functools

import numpy as np

# --- ex03.start -----------------------------------------------------------------------------------


def own_weights(model):
    model.eval()


def averaged(model):
    import torch.distributed as dist

    for tensor in model.state_dict().values():
        dist.all_reduce(tensor)
        tensor.copy_(tensor / dist.get_world_size())


def summed(model):
    import torch.distributed as dist

    for tensor in model.state_dict().values():
        dist.all_reduce(tensor)


def last_rank(model):
    import torch.distributed as dist

    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=dist.get_world_size() - 1)


def rank_0_alone(model):
    import torch.distributed as dist

    if dist.get_rank() == 0:
        for tensor in model.state_dict().values():
            dist.all_reduce(tensor)


def parameters_only(model):
    import torch
    import torch.distributed as dist

    with torch.no_grad():
        for tensor in model.parameters():
            dist.broadcast(tensor, src=0)


def weights_only(model):
    import torch.distributed as dist

    for name, tensor in model.state_dict().items():
        if name.endswith("weight"):
            dist.broadcast(tensor, src=0)


def new_parameters(model):
    import torch
    import torch.distributed as dist

    for layer in model:
        for name, parameter in list(layer.named_parameters()):
            new = parameter.detach().clone()
            dist.broadcast(new, src=0)
            setattr(layer, name, torch.nn.Parameter(new))


def by_all_reduce(model):
    import torch.distributed as dist

    for tensor in model.state_dict().values():
        if dist.get_rank():
            tensor.zero_()
        dist.all_reduce(tensor)


def as_objects(model):
    import torch.distributed as dist

    sent = [model.state_dict()]
    dist.broadcast_object_list(sent, src=0)
    model.load_state_dict(sent[0])


WRONG_STARTS = [
    ("ex03.start", own_weights, "rank 1 keeps its own weights"),
    ("ex03.start", parameters_only, "bn1.running_mean was not sent"),
    ("ex03.start", averaged, "the average of their weights"),
    ("ex03.start", summed, "the sum of their weights"),
    ("ex03.start", last_rank, "the last rank's weights"),
    ("ex03.start", rank_0_alone, "all wait for ever"),
    ("ex03.start", weights_only, "conv1.bias was not sent"),
    ("ex03.start", new_parameters, "has got new parameters"),
]
OTHER_STARTS = [("ex03.start", by_all_reduce), ("ex03.start", as_objects)]

# --- ex03.sums ------------------------------------------------------------------------------------


def total_of(sums):
    import torch.distributed as dist

    total = sums.clone()
    dist.all_reduce(total)
    return total


def metrics(loss, top1, top5, images):
    return {"loss": loss / images, "top1": 100 * top1 / images, "top5": 100 * top5 / images}


def right_metrics(sums):
    total = total_of(sums).tolist()
    return metrics(*total) if total[3] else dict.fromkeys(("loss", "top1", "top5"))


def mean_of_means(sums):
    import torch.distributed as dist

    means = total_of(sums[:3] / sums[3]) / dist.get_world_size()
    return metrics(*means.tolist(), 1)


def in_place(sums):
    import torch.distributed as dist

    dist.all_reduce(sums)
    return metrics(*sums.tolist()) if sums[3] else dict.fromkeys(("loss", "top1", "top5"))


def own_images(sums):
    return metrics(*sums.tolist()) if sums[3] else right_metrics(sums)


def divided_by_own(sums):
    return metrics(*total_of(sums)[:3], sums[3])


def as_fraction(sums):
    found = right_metrics(sums)
    return found | {n: found[n] and found[n] / 100 for n in ("top1", "top5")}


def crash_on_none(sums):
    return metrics(*total_of(sums).tolist())


def zero_for_none(sums):
    total = total_of(sums).tolist()
    return metrics(*total[:3], max(1.0, total[3]))


def nan_for_none(sums):
    return metrics(*total_of(sums))


def empty_rank_leaves(sums):
    return right_metrics(sums) if sums[3] else dict.fromkeys(("loss", "top1", "top5"))


def rank_0_answers(sums):
    import torch.distributed as dist

    found = right_metrics(sums)
    return found if dist.get_rank() == 0 else dict.fromkeys(found)


def nothing_returned(sums):
    right_metrics(sums)


def as_tensors(sums):
    total = total_of(sums)
    return metrics(*total) if total[3] else dict.fromkeys(("loss", "top1", "top5"))


def gathered(sums):
    import torch
    import torch.distributed as dist

    rows = [torch.zeros_like(sums) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, sums)
    total = torch.stack(rows).sum(0).tolist()
    return metrics(*total) if total[3] else dict.fromkeys(("loss", "top1", "top5"))


WRONG_SUMS = [
    ("ex03.sums", mean_of_means, "the mean of the ranks' means: top1 50"),
    ("ex03.sums", in_place, "`sums` is changed"),
    ("ex03.sums", own_images, "its own images only"),
    ("ex03.sums", divided_by_own, "divided by one rank's images"),
    ("ex03.sums", as_fraction, "top1 is a fraction"),
    ("ex03.sums", crash_on_none, "divide by zero"),
    ("ex03.sums", zero_for_none, "without any image it still gives a number"),
    ("ex03.sums", nan_for_none, "without any image it still gives a number"),
    ("ex03.sums", empty_rank_leaves, "all wait for ever"),
    ("ex03.sums", rank_0_answers, "rank 1 gets None"),
    ("ex03.sums", nothing_returned, "is a `return` missing?"),
]
OTHER_SUMS = [("ex03.sums", as_tensors), ("ex03.sums", gathered)]

# --- ex07.fold, ex07.likeliest --------------------------------------------------------------------


def on_layers(function):
    """An answer to ex07.fold from one on arrays, `(weight, norm, eps) -> (weight, bias)`."""

    @functools.wraps(function)
    def fold(conv, bn):
        import torch

        norm = {"gamma": bn.weight, "beta": bn.bias}
        norm |= {"running_mean": bn.running_mean, "running_var": bn.running_var}
        arrays = {name: tensor.detach().numpy() for name, tensor in norm.items()}
        weight, bias = function(conv.weight.detach().numpy(), arrays, bn.eps)
        layer = torch.nn.Conv2d(conv.in_channels, conv.out_channels, conv.kernel_size,
                                conv.stride, conv.padding, bias=bias is not None)  # fmt: skip
        layer.weight = torch.nn.Parameter(torch.as_tensor(weight))
        if bias is not None:
            layer.bias = torch.nn.Parameter(torch.as_tensor(bias))
        return layer

    return fold


def without_stride(conv, bn):
    import torch

    layer = torch.nn.Conv2d(conv.in_channels, conv.out_channels, conv.kernel_size).double()
    scale = bn.weight / torch.sqrt(bn.running_var + bn.eps)
    layer.weight.copy_(conv.weight * scale.view(-1, 1, 1, 1))
    layer.bias.copy_(bn.bias - bn.running_mean * scale)
    return layer


def into_the_old_one(conv, bn):
    import torch

    conv.weight.mul_((bn.weight / torch.sqrt(bn.running_var + bn.eps)).view(-1, 1, 1, 1))
    return conv


def both_layers(conv, bn):
    import torch

    return torch.nn.Sequential(conv, bn)


def nothing_folded(conv, bn):
    conv.weight * bn.weight.view(-1, 1, 1, 1)


def by_pytorch(conv, bn):
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    return fuse_conv_bn_eval(conv, bn)


def on_tensors(function):
    """An answer to ex07.likeliest from one on arrays."""

    @functools.wraps(function)
    def likeliest(logits, k):
        import torch

        with np.errstate(all="ignore"):
            found = function(logits.numpy(), k)
        if isinstance(found, np.ndarray):
            return torch.as_tensor(found)
        return [torch.as_tensor(np.ascontiguousarray(part)) for part in found]

    return likeliest


def over_the_wrong_axis(logits, k):
    import torch

    classes = torch.topk(logits, k).indices
    return classes, torch.softmax(logits, dim=0).gather(1, classes)


def largest_of_the_batch(logits, k):
    import torch

    power = torch.exp(logits - logits.max())
    return (power / power.sum(dim=1, keepdim=True)).topk(k)[::-1]


def by_sorting(logits, k):
    values, classes = logits.log_softmax(1).sort(dim=1, descending=True)
    return classes[:, :k], values[:, :k].exp()


WRONG_LAYERS = [
    ("ex07.fold", without_stride, "a picture of"),
    ("ex07.fold", into_the_old_one, "`conv` is changed"),
    ("ex07.fold", both_layers, "is a Sequential"),
    ("ex07.fold", nothing_folded, "is a `return` missing?"),
    ("ex07.likeliest", over_the_wrong_axis, "depends on the other pictures"),
    ("ex07.likeliest", largest_of_the_batch, "the largest logit of the whole batch"),
]
OTHER_LAYERS = [("ex07.fold", by_pytorch), ("ex07.likeliest", by_sorting)]
