"""Wrong answers of ex05, each with a part of its diagnosis: see `wrong_answers`."""

from __future__ import annotations

import math

# --- ex05.bottleneck and ex05.exact, which need no DALI -------------------------------------------

RATES = {"in turn": 590.6, "overlapped": 1000, "cores": 6, "half the decoding": 1442.6}


def rates(**changes):
    return RATES | {name.replace("_", " "): value for name, value in changes.items()}


def own(images, rank, size):
    return (rank + 1) * images // size - rank * images // size


def dropped(images, rank, size, batch):
    return [batch] * (images // size // batch)


def all_rows(images, rank, size, batch):
    most = math.ceil(images / size)
    return [batch] * math.ceil(most / batch)


def as_many_as_needed(images, rank, size, batch):
    mine = own(images, rank, size)
    return [min(batch, mine - first) for first in range(0, mine, batch)]


def clamped(mine, images, rank, size, batch):
    steps = len(all_rows(images, rank, size, batch))
    return [max(0, min(batch, mine - s * batch)) for s in range(steps)]


def rounded_up(images, rank, size, batch):
    return clamped(math.ceil(images / size), images, rank, size, batch)


def rounded_down(images, rank, size, batch):
    return clamped(images // size, images, rank, size, batch)


def first_ranks_more(images, rank, size, batch):
    return clamped(images // size + (rank < images % size), images, rank, size, batch)


def all_the_images(images, rank, size, batch):
    return [min(batch, images - first) for first in range(0, images, batch)]


WRONG_05 = [
    ("ex05.bottleneck", rates(in_turn=1000), "1,000 is the loader alone"),
    ("ex05.bottleneck", rates(in_turn=1181), "the harmonic mean"),
    ("ex05.bottleneck", rates(in_turn=1221), "the mean of the two rates"),
    ("ex05.bottleneck", rates(overlapped=591), "wait for each other"),
    ("ex05.bottleneck", rates(overlapped=1442.6), "what nobody has made"),
    ("ex05.bottleneck", rates(overlapped=2442.6), "the two rates are added"),
    ("ex05.bottleneck", rates(cores=5), "5 cores make 1,250"),
    ("ex05.bottleneck", rates(cores=5.77), "no such number of cores"),
    ("ex05.bottleneck", rates(half_the_decoding=2000), "half of all the work"),
    ("ex05.bottleneck", rates(half_the_decoding=1667), "what the loader makes now"),
    ("ex05.bottleneck", rates(half_the_decoding=1300), "1300 is less than it is"),
    ("ex05.bottleneck", {"in turn": 590.6}, "no answer for 'overlapped'"),
    ("ex05.exact", dropped, "the pictures at the end are left out"),
    ("ex05.exact", all_rows, "every row counts (27 pictures"),
    ("ex05.exact", as_many_as_needed, "the ranks make 2, 2, 2, 3 batches"),
    ("ex05.exact", rounded_up, "28 rows count (27 pictures, 2 rank(s), batch 8): 1 picture(s) are "
     "counted twice"),
    ("ex05.exact", rounded_down, "1 picture(s) are left out"),
    ("ex05.exact", first_ranks_more, "rank 0 counts [8, 6] rows"),
    ("ex05.exact", all_the_images, "4 batches a rank"),
]  # fmt: skip


# --- ex05.graph, which needs DALI -----------------------------------------------------------------

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def graph(files, labels, rank, size, **changes):
    """The right graph with something changed."""
    from nvidia.dali import fn, types

    how = {
        "read": {"shard_id": rank, "num_shards": size, "random_shuffle": True},
        "decode": fn.decoders.image_random_crop,
        "crop": {"random_area": [0.05, 1.0], "random_aspect_ratio": [3 / 4, 4 / 3]},
        "resize": {"resize_x": 64, "resize_y": 64},
        "mean": [255 * m for m in MEAN], "std": [255 * s for s in STD],
        "mirror": fn.random.coin_flip, "dtype": types.FLOAT, "output_layout": "CHW",
    }  # fmt: skip
    how |= changes
    jpeg, label = fn.readers.file(files=files, labels=labels, **how["read"])
    decode = (
        getattr(fn.decoders, how["decode"]) if isinstance(how["decode"], str) else how["decode"]
    )
    pixels = decode(jpeg, **how["crop"])
    if how["resize"]:
        pixels = fn.resize(pixels, **how["resize"])
    pixels = fn.crop_mirror_normalize(
        pixels, mirror=how["mirror"](), dtype=how["dtype"], output_layout=how["output_layout"],
        mean=how["mean"], std=how["std"],
    )  # fmt: skip
    return pixels, label


def changed(**changes):
    return lambda *args: graph(*args, **changes)


def cropped(area=(0.05, 1.0), aspect=(3 / 4, 4 / 3), **more):
    return changed(crop={"random_area": list(area), "random_aspect_ratio": list(aspect)}, **more)


def dali_s_own_area(*args):
    return graph(*args, crop={})


def ranks_forgotten(*args):
    return graph(*args, read={"random_shuffle": True})


def not_shuffled(files, labels, rank, size):
    return graph(files, labels, rank, size, read={"shard_id": rank, "num_shards": size})


def whole_graph(files, labels, rank, size):
    from nvidia.dali import pipeline_def

    make = pipeline_def(lambda: graph(files, labels, rank, size))
    return make(batch_size=4, num_threads=1, device_id=None)


def coin(probability):
    from nvidia.dali import fn

    return fn.random.coin_flip(probability=probability)


def images_only(*args):
    return graph(*args)[0]


def bytes_only(*args):
    from nvidia.dali import types

    return graph(*args, dtype=types.UINT8, mean=[0.0], std=[1.0])


def on_a_gpu(*args):
    images, label = graph(*args)
    return images.gpu(), label


def labels_sorted(files, labels, rank, size):
    return graph(files, sorted(labels), rank, size)


def nothing_returned(*args):
    graph(*args)


def labels_reversed_in_place(files, labels, rank, size):
    nodes = graph(files, list(labels), rank, size)
    labels.reverse()
    return nodes


def without_a_number(*args):
    images, label = graph(*args)
    return images * float("nan"), label


def no_rows(*args):
    images, label = graph(*args)
    return images[:, 0:0], label


def colours_turned(*args):
    return graph(*args, mean=[255 * m for m in MEAN[::-1]], std=[255 * s for s in STD[::-1]])


def as_a_list(*args):
    return list(graph(*args))


def shuffled_by_hand(files, labels, rank, size):
    from nvidia.dali import fn, types

    jpeg, label = fn.readers.file(
        files=files, labels=labels, shard_id=rank, num_shards=size, random_shuffle=True,
        initial_fill=10_000, seed=3, pad_last_batch=True, name="reader",
    )  # fmt: skip
    pixels = fn.decoders.image(jpeg, output_type=types.RGB)
    pixels = fn.random_resized_crop(
        pixels, size=[64, 64], random_area=[0.05, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
    )
    pixels = fn.crop_mirror_normalize(
        pixels, mirror=fn.random.coin_flip(), mean=[255 * m for m in MEAN],
        std=[255 * s for s in STD], dtype=types.FLOAT,
    )  # fmt: skip
    return pixels, label


OTHER_GRAPHS = [("ex05.graph", as_a_list), ("ex05.graph", shuffled_by_hand)]
WRONG_GRAPHS = [
    ("ex05.graph", nothing_returned, "is a `return` missing?"),
    ("ex05.graph", labels_reversed_in_place, "`labels` is changed"),
    ("ex05.graph", without_a_number, "numbers are nan"),
    ("ex05.graph", no_rows, "a picture is (3, 0, 64)"),
    ("ex05.graph", colours_turned, "in the order of blue, green, red"),
    ("ex05.graph", changed(mirror=lambda: coin(0.2)), "% are mirrored"),
    ("ex05.graph", ranks_forgotten, "come on both ranks"),
    ("ex05.graph", not_shuffled, "in the order of the files"),
    ("ex05.graph", dali_s_own_area, "that is DALI's own area"),
    ("ex05.graph", cropped(area=(0.25, 1.0)), "25 to"),
    ("ex05.graph", cropped(area=(5, 100)), "random_area is in per cent"),
    ("ex05.graph", cropped(aspect=(0.5, 2.0)), "width over height of a crop"),
    ("ex05.graph", changed(decode="image", crop={}), "nothing is cropped"),
    ("ex05.graph", changed(mean=MEAN, std=STD), "mean and std are on the scale from 0 to 1"),
    ("ex05.graph", changed(std=STD), "std is on the scale from 0 to 1"),
    ("ex05.graph", changed(mean=MEAN), "mean is on the scale from 0 to 1"),
    ("ex05.graph", changed(mean=[0.0]), "the mean is not subtracted"),
    ("ex05.graph", changed(std=[1.0]), "not divided by std"),
    ("ex05.graph", changed(mean=[0.0], std=[1.0]), "nothing is normalised"),
    ("ex05.graph", changed(mean=[0.0], std=[255.0]), "reach from 0 to 1"),
    ("ex05.graph", changed(mean=[128.0], std=[64.0]), "the numbers reach from"),
    ("ex05.graph", changed(output_layout="HWC"), "the colours of a pixel lie together"),
    ("ex05.graph", changed(resize=None), "different sizes"),
    ("ex05.graph", changed(resize={"resize_x": 32, "resize_y": 32}), "a picture is (3, 32, 32)"),
    ("ex05.graph", changed(mirror=lambda: 0), "no picture is mirrored"),
    ("ex05.graph", bytes_only, "the pictures are uint8"),
    ("ex05.graph", labels_sorted, "another one's label"),
    ("ex05.graph", whole_graph, "a whole pipeline"),
    ("ex05.graph", images_only, "is no pair"),
    ("ex05.graph", on_a_gpu, "DALI refuses the graph"),
]  # fmt: skip
