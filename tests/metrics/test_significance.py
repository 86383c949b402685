import numpy as np
import pytest

from hf_captioners.metrics import compare_systems


def test_a_clear_difference_and_none():
    draw = np.random.default_rng(1)
    base = draw.random(500)
    better = compare_systems((base + 0.05 + 0.01 * draw.random(500)).tolist(), base.tolist())
    assert better.significant and better.p_value < 0.001
    assert better.low < better.difference < better.high
    same = compare_systems(base.tolist(), base.tolist())
    assert not same.significant and same.p_value == 1.0


def test_false_alarms_are_rare():
    """Two systems of equal quality differ significantly in about one of twenty sets."""
    draw = np.random.default_rng(2)
    alarms = sum(
        compare_systems(*draw.random((2, 100)).tolist(), n_samples=500, seed=seed).significant for seed in range(200)
    )
    assert 2 <= alarms <= 22


def test_equal_seeds_give_equal_results():
    first, second = np.random.default_rng(3).random((2, 50)).tolist()
    assert compare_systems(first, second) == compare_systems(first, second)
    swapped = compare_systems(second, first)
    assert swapped.difference == pytest.approx(-compare_systems(first, second).difference)


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="2 scores of the first system and 3 of the second"):
        compare_systems([1, 2], [1, 2, 3])
