"""Hash table from 64-bit integers to positions with vectorised look-up."""

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # Fibonacci hashing: 2**64 divided by the golden ratio


class IntegerMap:
    """An immutable hash table that maps the key `keys[i]` to the position `i`.

    A binary search over millions of keys has a CPU cache miss at every step; open addressing has about one per key.
    Each probing step handles the whole array of keys.

    Args:
        keys: distinct integers.
    """

    def __init__(self, keys: Integers) -> None:
        bits = max(2, (2 * len(keys)).bit_length())
        self._shift = np.uint64(64 - bits)
        self._mask = (1 << bits) - 1
        self.keys = keys
        self._positions = np.full(1 << bits, -1, dtype=np.int32)
        waiting, slots = np.arange(len(keys), dtype=np.int32), self._slots(keys)
        while len(waiting):
            free = self._positions[slots] < 0
            self._positions[slots[free]] = waiting[free]
            lost = self._positions[slots] != waiting
            waiting, slots = waiting[lost], (slots[lost] + 1) & self._mask

    def __len__(self) -> int:
        return len(self.keys)

    def _slots(self, keys: Integers) -> Integers:
        return ((keys.view(np.uint64) * _MULTIPLIER) >> self._shift).view(np.int64)

    def find(self, keys: Integers) -> Integers:
        """Return the position of each key, or -1 for keys that are not in the map."""
        if not len(self.keys):
            return np.full(len(keys), -1, dtype=np.int64)
        slots = self._slots(keys)
        positions = self._positions[slots].astype(np.int64)
        wrong = np.flatnonzero((positions >= 0) & (self.keys[positions] != keys))
        slots = slots[wrong]
        while len(wrong):
            slots = (slots + 1) & self._mask
            positions[wrong] = next_positions = self._positions[slots].astype(np.int64)
            still = (next_positions >= 0) & (self.keys[next_positions] != keys[wrong])
            wrong, slots = wrong[still], slots[still]
        return positions


def distinct(values: Integers) -> Integers:
    """Return each value once, ascending; for millions of them faster than `numpy.unique`, which hashes them."""
    ordered = np.sort(values)
    return ordered[np.concatenate([ordered[:1] == ordered[:1], ordered[1:] != ordered[:-1]])]


def occur_in(keys: Integers, wanted: Integers) -> NDArray[np.bool_]:
    """Return a bool array: True for each of `wanted` that is among the sorted `keys`."""
    if not len(keys):
        return np.zeros(len(wanted), dtype=bool)
    return keys[np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)] == wanted
