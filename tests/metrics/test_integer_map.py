import numpy as np

from hf_captioners.metrics.integer_map import IntegerMap


def test_finds_what_is_there_and_nothing_else():
    draw = np.random.default_rng(0)
    for size in (0, 1, 2, 7, 1000, 50_000):
        keys = draw.choice(10 * size + 1, size=size, replace=False).astype(np.int64) << 20
        wanted = np.arange(10 * size + 1, dtype=np.int64) << 20
        found = IntegerMap(keys).find(wanted)
        expected = np.full(len(wanted), -1)
        expected[keys >> 20] = np.arange(size)
        np.testing.assert_array_equal(found, expected)


def test_negative_and_huge_keys():
    keys = np.array([-1, 0, 2**62, -(2**63), 2**63 - 1], dtype=np.int64)
    np.testing.assert_array_equal(IntegerMap(keys).find(keys[::-1].copy()), [4, 3, 2, 1, 0])
