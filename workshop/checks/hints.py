"""Three hints for each exercise: a nudge, a way, and nearly the answer."""

from __future__ import annotations

HINTS = {
    "ex01.frame": (
        "Begin with a payload without the magic: 8 bytes in front, zeros behind. "
        "struct.pack(\"<II\", …) writes two little-endian numbers of 32 bits.",
        "For the escape, walk over the offsets 0, 4, 8 … of the payload and note each one where "
        "payload[i:i + 4] == MAGIC. Each of them ends a part, and the next one begins 4 bytes "
        "later.",
        "The parts are the pieces between the cuts. A single part has cflag 0; else "
        "the first has 1, the last 3, those between 2. Every part is framed as "
        "struct.pack(\"<II\", 0xCED7230A, cflag << 29 | len(part)) + part + bytes(-len(part) % 4).",
    ),
    "ex01.crc": (
        "Write the four pieces in the order of the table, each with struct.pack and its letter: "
        "Q is a uint64, I a uint32, and < makes both little-endian.",
        "The first checksum is that of the 8 bytes which hold the length, not that of the number.",
        "masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32. The record is "
        "size + masked(crc32c(size)) + data + masked(crc32c(data)), each checksum as \"<I\".",
    ),
    "ex01.index": (
        "You need not look at the data: the first 8 bytes of a record say how long it is.",
        "A record takes 8 + 4 + length + 4 bytes. The next one starts right behind it.",
        "while offset < len(shard): (length,) = struct.unpack_from(\"<Q\", shard, offset); append "
        "(offset, length + 16); offset += length + 16.",
    ),
    "ex01.leak": (
        "Call split on some pictures of your own making, and write an assert for each of the three "
        "promises. Give some objects more than one picture.",
        "The objects of the two halves: {object_of(name) for name in train}. Two sets have nothing "
        "in common where a & b is empty. For the third promise compare sorted(train + val) with "
        "sorted(names).",
        "names = [f\"{i:03d}_{k}.jpg\" for i in range(40) for k in \"abc\"]; train, val = "
        "split(names); assert train and val; assert sorted(train + val) == sorted(names); assert "
        "not {n[:3] for n in train} & {n[:3] for n in val}.",
    ),
    "ex02.stride": (
        "Only the first block of a stage makes its picture smaller, and the first stage does not, "
        "because the max-pooling before it already has.",
        "In v1.5 the 3×3 convolution halves the picture, and the shortcut halves it too: both ends "
        "of the addition must have the same size.",
        "stride = 2 if stage > 0 and index == 0 else 1; the four numbers are 1, stride, 1 and, "
        "where index is 0, stride again, else None.",
    ),
    "ex02.work": (
        "A 1×1 convolution multiplies in × out channels at every pixel of its output. In v1 the "
        "first one of the block works on the small picture; on which one does it work in v1.5?",
        "On the large one, which has 4 times the pixels. What is *added* is therefore 3 times what "
        "it was, and the other two convolutions do what they did before.",
        "All three come to the same number: 256 · 128 · 28² = 25.7 million. So 3 blocks × 3 × 25.7 "
        "million are added to 3,858 million: divide, and take it as per cent.",
    ),
    "ex02.schedule": (
        "Begin with the rate without warm-up and decay: proportional to the global batch, and "
        "recipe.lr at recipe.lr_batch. Then add one of the two after the other.",
        "In the warm-up the rate is a straight line from 0 to the scaled one. For the decay count "
        "how many epochs of lr_step_epochs have been reached: progress >= epoch.",
        "peak = recipe.lr * global_batch / recipe.lr_batch; if progress < recipe.warmup_epochs: "
        "return peak * progress / recipe.warmup_epochs; else return peak * recipe.lr_factor ** "
        "(the number of epochs reached).",
    ),
    "ex02.decay": (
        "Print the names and look at their last parts: which of them belong to a convolution or to "
        "the fully-connected layer, and are no bias?",
        "The kind of a parameter is what stands behind the last dot: weight, gamma, beta or bias. "
        "The name of the layer in front of it tells less: not every batch norm is called bn1.",
        "decayed = [name for name in names if name.rpartition(\".\")[2] == \"weight\"]; all others "
        "go into the second list, in their order.",
    ),
    "ex02.tune": (
        "First find the largest rate that does not blow up along the steep direction, for which "
        "the formula is given. Then look at the shallow one: how far does it get in 60 steps?",
        "Momentum helps the shallow direction, but what was gained is also not forgotten: with 0.9 "
        "the steps overshoot for too long. Try values between 0.6 and 0.85.",
        "In the long run the best pair is momentum = ((√100 − 1) / (√100 + 1))² and lr = "
        "(2 / (√1 + √100))², about 0.67 and 0.033. In 60 steps slightly more momentum with a "
        "slightly smaller rate gets further: go a few hundredths up, a few thousandths down.",
    ),
    "ex03.shard": (
        "Draw the order as a long row, cut it into global batches of size · batch, and colour what "
        "rank 0 takes in each of them.",
        "The number of steps is the same for all: len(order) // (size * batch). What is left over "
        "at the end is dropped.",
        "steps = len(order) // (size * batch); order[:steps * size * batch].reshape(steps, size, "
        "batch) has an axis for the ranks: take [:, rank].",
    ),
    "ex03.start": (
        "Somebody has to say what the weights are, and everybody else has to listen. Which rank is "
        "it in this course?",
        "A message needs all ranks: they all call dist.broadcast, rank 0 too. With an `if` around "
        "it, those who call wait for those who do not.",
        "model.parameters() lacks the running statistics; model.state_dict() has every tensor. For "
        "each of its values(): dist.broadcast(tensor, src=0).",
    ),
    "ex03.sums": (
        "Take two ranks with 32 and 8 images, and compute by hand what the broken function says "
        "and what is right. Where do they part?",
        "A mean over all images is (sum over all) / (number of all). Add up first, over all ranks, "
        "and divide once, at the end.",
        "total = sums.clone(); dist.all_reduce(total) leaves the four sums over all ranks in it, "
        "on every rank. Then loss = total[0] / total[3], and top1 = 100 · total[1] / total[3].",
    ),
    "ex03.ring": (
        "The gradients are cut into n chunks, and in each step a worker sends one chunk.",
        "It takes n − 1 steps until one chunk is complete everywhere in turn, and n − 1 more until "
        "all have all chunks.",
        "2 · (n − 1) steps of 1/n of the gradients each: 2 (n − 1) / n.",
    ),
    "ex03.recipe": (
        "`rn50 workshop try` runs any script so, and prints a row for each change. Begin with the "
        "one that the check names, and leave the others as they are.",
        "Start Horovod, share the order, multiply the rate, wrap the optimizer, send rank 0's "
        "weights before the first step, and let rank 0 alone write. Every rank makes all of these "
        "calls but the last.",
        "hvd.init(); lr=0.02 * hvd.size(); hvd.DistributedOptimizer(optimizer, "
        "net.named_parameters()); hvd.broadcast_parameters(net.state_dict(), root_rank=0); order = "
        "order[hvd.rank() :: hvd.size()]; if hvd.rank() == 0: in front of torch.save.",
    ),
    "ex04.hunt": (
        "Go through recipe 1 point by point: the device, the pictures of each rank, the learning "
        "rate, the averaging, the start, the checkpoints, the number of steps. Which line does it?",
        "Two mistakes have nothing to do with ranks: one is in what the loss is given, one is a "
        "number that NumPy draws while TensorFlow builds a graph, which happens once.",
        "Look at: the rank that chooses a GPU; Softmax before a loss that does its own; the rate; "
        "the seed of the flips; np.random in augment; steps_per_epoch; the slice `chosen`; who "
        "saves.",
    ),
    "ex04.order": (
        "Throw away early what a rank does not need, and do expensive work late: a stage only sees "
        "what the stages before it have let through.",
        "Shuffling moves records, which are small as JPEGs; a decoded picture is 150 kB and more. "
        "So shuffle comes before map. Batching puts pictures of one size together: after map.",
        "The names of the files come first and are shared out at once; interleave opens them; the "
        "very last stage reads ahead.",
    ),
    "ex04.feed": (
        "tf.data.Dataset.from_tensor_slices((images, labels)) gives one picture after the other; "
        "everything else is a method of that: shard, shuffle, map, batch, take, prefetch.",
        "shard(size, rank) first. It gives some ranks one picture more, so take the same number of "
        "batches on all of them: len(labels) // (size * batch).",
        ".shard(size, rank).shuffle(len(labels), seed=seed).map(lambda image, label: "
        "(tf.cast(image, tf.float32) / 255, label)).batch(batch, drop_remainder=True)"
        ".take(steps).prefetch(tf.data.AUTOTUNE)",
    ),
    "ex04.recipe": (
        "Begin with one rank and no shuffling: tf.data.TFRecordDataset(shards) gives the records, "
        "and map turns each into a picture and a label. Then share, shuffle, batch, read ahead.",
        "The names of the files are a dataset too: from_tensor_slices(shards).shard(size, rank). "
        "interleave(tf.data.TFRecordDataset) opens them. Shuffle records, with a buffer as large "
        "as there is room for, before they are decoded.",
        "tf.io.parse_single_example(record, {\"img_raw\": tf.io.FixedLenFeature([], tf.string)}); "
        "tf.io.decode_raw(example[\"img_raw\"], tf.uint8), reshaped to (height, width, 3); "
        "divided by 255; then batch(batch, drop_remainder=True) and prefetch(tf.data.AUTOTUNE).",
    ),
    "ex05.bottleneck": (
        "How many pictures per second do four cores make, if each of them needs 3.2 + 0.8 ms for "
        "one? Begin with this number, the loader alone.",
        "In turn, a picture takes the loader's time and then the device's: 1/a + 1/b seconds. "
        "Overlapped, the slower one decides. Where the loader becomes faster than the device, the "
        "device is the slower one.",
        "The loader alone: 4 / 0.004 = 1,000. In turn 1 / (1/1000 + 1/1442.6); overlapped "
        "min(1000, 1442.6); cores 1442.6 · 0.004, rounded up; at last min(4 / 0.0024, 1442.6).",
    ),
    "ex05.graph": (
        "Begin with the reader, which returns two things: jpeg, label = "
        "fn.readers.file(files=files, labels=labels, …). Who am I, and how many are we: shard_id "
        "and num_shards. Each operator then takes what the one before it gave.",
        "DALI's own smallest crop is 8 % and not 5 %, so pass both lists. The mean of bytes is 255 "
        "times that of numbers from 0 to 1, and so is their std.",
        "jpeg, label = fn.readers.file(files=files, labels=labels, shard_id=rank, num_shards=size, "
        "random_shuffle=True); part = fn.decoders.image_random_crop(jpeg, random_area=[0.05, 1.0], "
        "random_aspect_ratio=[3 / 4, 4 / 3]); small = fn.resize(part, resize_x=64, resize_y=64); "
        "images = fn.crop_mirror_normalize(small, mean=[255 * 0.485, …], std=[255 * 0.229, …], "
        "mirror=fn.random.coin_flip(), dtype=types.FLOAT, output_layout=\"CHW\").",
    ),
    "ex05.exact": (
        "First: how many pictures are this rank's own? Then: how many batches do all ranks make? "
        "Only then look at a single batch.",
        "The number of batches follows from the rank with the most pictures, images / size rounded "
        "up, and it is rounded up again. In Python -(-a // b) rounds a / b up.",
        "mine = (rank + 1) * images // size - rank * images // size. Batch number s begins at row "
        "s * batch, so mine - s * batch of its rows count, at most batch.",
    ),
    "ex06.memory": (
        "Two parts: what is there whatever the batch is, and what is there once for every image.",
        "Whatever the batch is: 3 arrays of 4 bytes for each parameter, and in float16 a copy of 2 "
        "bytes more. For every image: 4 or 2 bytes for each activation.",
        "float32: 12 · 25.6 + 4 · 21.5 · n; float16: 14 · 25.6 + 2 · 21.5 · n. Millions of numbers "
        "times bytes are MB.",
    ),
    "ex06.scaler": (
        "There are three cases, one for each row of the table. Begin with the one where something "
        "was not finite, and return from it at once.",
        "The step that is just over counts too: compare good_steps + 1 with growth_steps. max and "
        "min hold the scale between 1 and 2**24.",
        "if not finite: return max(scale / 2, 1.0), 0. If good_steps + 1 < growth_steps: return "
        "scale, good_steps + 1. Else: return min(scale * 2, 2.0**24), 0.",
    ),
    "ex06.step": (
        "Look at the table row by row. Does the step go too far, or not far enough, and by which "
        "factor? Who of all these calls moves the weights?",
        "Clipping compares the length of the gradients with 1. Which gradients should it see, the "
        "scaled ones or the real ones? And what is in the gradients when the second step begins?",
        "optimizer.zero_grad() first; unscale_ before clip_grad_norm_; and optimizer.step() goes, "
        "because scaler.step(optimizer) calls it where that is right.",
    ),
    "ex06.layout": (
        "Write the four letters in the order of the memory. The stride of the last one is 1; go "
        "from there to the left.",
        "In NHWC a pixel takes c numbers, and so its neighbour in the row lies c further on. A row "
        "has w pixels, a picture has h rows. Round c up before anything else.",
        "c = -(-c // multiple) * multiple. NCHW: c * h * w, h * w, w, 1. NHWC: h * w * c, 1, "
        "w * c, c.",
    ),
    "ex07.percentile": (
        "Sort the values. How many of them must not be exceeded, if per_cent per cent of all are "
        "asked for? That may be no whole number.",
        "Of n values it is the one with the rank n * per_cent / 100, rounded up with math.ceil. "
        "Ranks count from 1, places of a list from 0.",
        "return sorted(seconds)[max(0, math.ceil(len(seconds) * per_cent / 100) - 1)].",
    ),
    "ex07.fold": (
        "Compute the factor gamma / std first, one number for each channel out. Both results need "
        "it.",
        "std is torch.sqrt(bn.running_var + bn.eps). The channels out are the first axis of the "
        "weight, so the factor must become a column: factor.view(-1, 1, 1, 1).",
        "factor = bn.weight / torch.sqrt(bn.running_var + bn.eps). Make a torch.nn.Conv2d like "
        "conv, with a bias: folded.weight.copy_(conv.weight * factor.view(-1, 1, 1, 1)) and "
        "folded.bias.copy_(bn.bias - bn.running_mean * factor).",
    ),
    "ex07.likeliest": (
        "Print the probabilities of the batch of one. Over what were they made to add up to 1? "
        "Then look at the order in which argsort puts its numbers.",
        "The sum goes over the classes: dim=1, with keepdim=True so that it can divide. Of an "
        "ascending order the likeliest is the last one: argsort(dim=1, descending=True)[:, :k].",
        "torch.exp(1000) is infinite. Softmax does not change when a number is subtracted from all "
        "logits of a picture; torch.softmax(logits, dim=1) does that, and torch.topk sorts.",
    ),
    "ex08.rate": (
        "Do it by hand for the example: which images count, and how long did they take?",
        "Leave out the first ones of both lists with [warmup:]. Then no mean of rates is needed: "
        "a rate is all images over all seconds.",
        "took = sum(seconds[warmup:]); return sum(images[warmup:]) / took if took else None.",
    ),
    "ex08.ring": (
        "First one message: how many bytes does it carry with n workers, and how long is it under "
        "way with its latency? Then count the messages that follow each other.",
        "A message carries 100 MB / n. There are 2 (n − 1) of them, one after the other, since all "
        "workers send at the same time.",
        "2 · (n − 1) · (0.020 + 8 / n) milliseconds, because 100 MB take 8 ms.",
    ),
    "ex08.overlap": (
        "Draw a line for the compute and one below it for the wire, and put the buckets of the "
        "example on the wire.",
        "Keep in mind when the wire is free again. A bucket begins at the later of two times: when "
        "it is ready, and when the wire is free.",
        "free = 0.0; for each bucket: free = max(free, ready[i]) + takes[i]; at the end return "
        "compute / max(compute, free).",
    ),
    "ex08.capstone": (
        "Go through the table of rules line by line, and hold each against the script: which "
        "files, which order, where an epoch ends, what the rate is given, in which mode it "
        "validates, and of what the mean is taken. Then time: what is done for every pixel, every "
        "step, every epoch, and need not be?",
        "The glob takes DATA/val too; nothing is shuffled; range() leaves the last pictures out; "
        "learning_rate is given whole epochs; net.eval() is missing; means of batches are "
        "averaged. For the time: decode each picture once and keep the pixels, as one array of "
        "normalised numbers made by NumPy or PyTorch; compute in float32; do not run the network "
        "a second time to count hits.",
        "Load all pictures before the first epoch: np.asarray(image) for each, np.stack, "
        "torch.from_numpy, permute(0, 3, 1, 2), minus MEAN, over STD. image.draft(\"RGB\", (128, "
        "128)) lets the JPEG decoder do a part of the resizing, and a ThreadPoolExecutor uses all "
        "cores for it. An epoch is torch.randperm(len(labels)).split(BATCH).",
    ),
}  # fmt: skip
