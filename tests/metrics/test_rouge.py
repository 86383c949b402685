import numpy as np

from hf_captioners.metrics import rouge_l


def test_figures_of_the_original(score_sets):
    for one in score_sets:
        scores = rouge_l(one["candidates"], one["references"])
        expected = one["expected"]["rouge_l"]
        np.testing.assert_allclose(scores, expected["per_image"], rtol=0, atol=1e-9, err_msg=one["set"])
        assert abs(scores.mean() - expected["corpus"]) < 1e-9


def test_longest_common_subsequence_agrees_with_the_textbook():
    draw = np.random.default_rng(0)
    for _ in range(200):
        first, second = (" ".join(draw.choice(list("abcd"), size=draw.integers(1, 90))) for _ in range(2))
        length = textbook_length(first.split(), second.split())
        precision, recall = length / len(first.split()), length / len(second.split())
        expected = (1 + 1.44) * precision * recall / (recall + 1.44 * precision) if length else 0.0
        assert abs(rouge_l([first], [[second]])[0] - expected) < 1e-12


def textbook_length(first, second):
    table = np.zeros((len(first) + 1, len(second) + 1), dtype=int)
    for i, word in enumerate(first, 1):
        for j, other in enumerate(second, 1):
            table[i, j] = table[i - 1, j - 1] + 1 if word == other else max(table[i - 1, j], table[i, j - 1])
    return table[-1, -1]
