"""The examples in the docstrings of data, features and processors run."""

import doctest
import importlib
import inspect

import pytest
from datasets import config

EXAMPLES = {
    "hf_captioners.data.loading": ["load_captions"],
    "hf_captioners.data.card": ["dataset_card"],
    "hf_captioners.data.subsets": ["draw_subset"],
    "hf_captioners.features.extraction": ["GridExtractor"],
    "hf_captioners.features.feature_store": ["FeatureStore"],
    "hf_captioners.features.regions_column": ["with_regions"],
    "hf_captioners.processing.image_processing_captioning": ["CaptioningImageProcessor"],
    "hf_captioners.processing.processing_captioning": ["CaptioningProcessor"],
    "hf_captioners.processing.word_tokenizer": ["build_word_tokenizer"],
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in EXAMPLES.items() for name in names])
def test_example(module, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "cache")
    text = inspect.getdoc(getattr(importlib.import_module(module), name))
    test = doctest.DocTestParser().get_doctest(text, {}, name, module, 0)
    assert test.examples, f"{name} has no example"
    printed = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    assert runner.run(test, out=printed.append).failed == 0, "".join(printed)
