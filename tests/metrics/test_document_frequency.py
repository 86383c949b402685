import numpy as np
import pytest

from hf_captioners.metrics import CiderD, DocumentFrequency

CAPTIONS = [["a dog runs", "a dog sits"], ["a cat"]]


def count_of(frequency, *words):
    """Return the number of documents with an n-gram, by the look-up that a score uses."""
    from hf_captioners.metrics.ngrams import ORDERS, NGramTable, split_captions

    table = NGramTable(split_captions([list(words)]), base=frequency.table)
    (gram,) = table.grams[table.grams % ORDERS == len(words) - 1]
    index = gram // ORDERS
    return int(frequency.counts[index]) if index < len(frequency.counts) else 0


def test_per_image_counts_an_image_once():
    frequency = DocumentFrequency.per_image(CAPTIONS)
    assert frequency.n_documents == 2
    assert [count_of(frequency, *gram.split()) for gram in ("a", "dog", "a dog", "cat", "bird")] == [2, 1, 1, 1, 0]


def test_per_caption_counts_each_caption():
    frequency = DocumentFrequency.per_caption([caption for captions in CAPTIONS for caption in captions])
    assert frequency.n_documents == 3
    assert [count_of(frequency, *gram.split()) for gram in ("a", "dog", "a dog")] == [3, 2, 2]


def test_end_token_is_counted():
    frequency = DocumentFrequency.per_image(CAPTIONS, end_token="<eos>")
    assert count_of(frequency, "<eos>") == 2
    assert count_of(frequency, "cat", "<eos>") == 1


@pytest.mark.parametrize("end_token", [None, "<eos>"])
def test_saved_and_loaded_gives_the_same_scores(tmp_path, score_sets, df_references, end_token):
    frequency = DocumentFrequency.per_image(df_references, end_token=end_token)
    frequency.save(tmp_path / "frequencies.npz")
    loaded = DocumentFrequency.load(tmp_path / "frequencies.npz")
    assert loaded.source == frequency.source
    np.testing.assert_array_equal(loaded.counts, frequency.counts)
    np.testing.assert_array_equal(loaded.table.keys, frequency.table.keys)
    assert loaded.table.words == frequency.table.words
    assert list(tmp_path.iterdir()) == [tmp_path / "frequencies.npz"]
    one = score_sets[0]
    expected = CiderD(one["references"], frequency).score(one["candidates"])
    np.testing.assert_allclose(CiderD(one["references"], loaded).score(one["candidates"]), expected, rtol=1e-12)


def test_saved_and_loaded_on_ids(tmp_path):
    frequency = DocumentFrequency.per_image([[np.array([1, 2, 0])], [[1, 0]]])
    frequency.save(tmp_path / "ids.npz")
    loaded = DocumentFrequency.load(tmp_path / "ids.npz")
    assert count_of(loaded, 1) == 2
    assert count_of(loaded, 1, 2) == 1


def test_other_files_are_refused(tmp_path):
    file = tmp_path / "other.npz"
    file.write_text("no")
    with pytest.raises(ValueError, match="not a file of document frequencies"):
        DocumentFrequency.load(file)
    np.savez(file, x=np.zeros(1))
    with pytest.raises(ValueError, match="not a file of document frequencies"):
        DocumentFrequency.load(file)
