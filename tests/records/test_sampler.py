"""The order of images on each rank: exact partitions, and numbers that must never change."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rn50lib.data.sampler import epoch_order, image_seed, shard, stream_shard, validation_shard

sizes = st.integers(1, 7)
batches = st.integers(1, 9)


@given(st.integers(0, 500), st.integers(0, 2**32), st.integers(0, 90))
def test_epoch_order_is_a_reproducible_permutation(examples, seed, epoch):
    order = epoch_order(examples, seed, epoch)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(examples))
    assert order.tolist() == epoch_order(examples, seed, epoch).tolist()


def test_orders_of_epochs_and_seeds_differ():
    orders = {tuple(epoch_order(50, seed, epoch)) for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100


def test_every_position_is_equally_likely():
    """This detects a biased shuffle: 4,000 epochs of 5 images, 800 expected, σ = 25."""
    counts = np.zeros((5, 5))
    for epoch in range(4000):
        counts[np.arange(5), epoch_order(5, 1, epoch)] += 1
    assert np.abs(counts - 800).max() < 5 * 25.3


def test_the_order_never_changes():
    """A resumed run must continue in the same order under a different version of NumPy."""
    assert epoch_order(10, 0, 0).tolist() == [3, 2, 1, 8, 6, 0, 7, 4, 5, 9]
    assert epoch_order(10, 1, 2).tolist() == [5, 6, 9, 3, 2, 1, 0, 8, 4, 7]
    assert image_seed(1, 2, 3) == 7510213797696614745


@given(st.integers(0, 300), sizes, batches)
def test_shards_are_slices_of_the_global_batches(examples, size, batch):
    order = epoch_order(examples, 3, 4)
    shards = [shard(order, rank, size, batch) for rank in range(size)]
    steps = examples // (size * batch)
    assert {part.shape for part in shards} == {(steps, batch)}
    for step in range(steps):
        together = [i for part in shards for i in part[step]]
        assert together == order[step * size * batch : (step + 1) * size * batch].tolist()


@given(st.integers(1, 300), sizes, batches)
def test_validation_sees_every_image_once(examples, size, batch):
    seen = []
    steps = set()
    for rank in range(size):
        indices, valid = validation_shard(examples, rank, size, batch)
        assert indices.dtype == valid.dtype == np.int64
        assert indices.shape == (len(valid), batch)
        assert indices.min() >= 0
        assert indices.max() < examples
        steps.add(len(valid))
        for row, count in zip(indices, valid, strict=True):
            seen += row[:count].tolist()
    assert sorted(seen) == list(range(examples))
    assert steps == {-(-examples // (size * batch))}


@given(st.lists(st.integers(0, 40), min_size=1, max_size=9), st.integers(1, 12))
def test_streams_are_cut_without_gap_or_overlap(counts: list[int], size: int) -> None:
    read: dict[tuple[int, int], int] = {}
    lengths = []
    for rank in range(size):
        parts = stream_shard(np.array(counts), rank, size)
        assert parts.dtype == np.int64 and parts.shape[1:] == (3,)
        lengths.append(int(parts[:, 2].sum()))
        for number, skip, take in parts.tolist():
            assert take > 0 and skip + take <= counts[number]
            for record in range(skip, skip + take):
                read[number, record] = read.get((number, record), 0) + 1
    assert read == {(s, r): 1 for s, count in enumerate(counts) for r in range(count)}
    assert max(lengths) - min(lengths) <= 1


def test_image_seeds():
    seeds = {image_seed(s, e, i) for s in range(4) for e in range(20) for i in range(500)}
    assert len(seeds) == 4 * 20 * 500
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert image_seed(0, 1, 2) != image_seed(0, 2, 1)
    # The bits look like coins: each is set in half of the seeds, 40,000 throws, σ = 100.
    for bit in range(63):
        assert abs(sum(seed >> bit & 1 for seed in seeds) - 20_000) < 500


def test_the_mixer_is_splitmix64():
    """The value is the first output from state 0 of the authors' reference program."""
    from rn50lib.data.sampler import _mix

    assert _mix(0) == 0xE220A8397B1DCDAF
