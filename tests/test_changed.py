"""Tests of changed files are found."""

import pytest

from tests.changed import tests_of as found_for


@pytest.mark.parametrize(
    ("changed", "expected", "other"),
    [
        ("hf_captioners/metrics/bleu.py", "tests/metrics/test_bleu.py", "tests/metrics/test_spice.py"),
        ("hf_captioners/training/trainer.py", "tests/training/test_trainer.py", "tests/metrics/test_bleu.py"),
        ("hf_captioners/training/evaluation_loop.py", "tests/training/test_resume.py", "tests/metrics/test_bleu.py"),
        ("modeling/layers_recurrent.py", "tests/modeling/test_aoanet.py", "tests/metrics/test_bleu.py"),
        ("tests/modeling/common_forward.py", "tests/modeling/test_eta.py", "tests/metrics/test_bleu.py"),
        ("tests/metrics/test_bleu.py", "tests/metrics/test_bleu.py", "tests/metrics/test_spice.py"),
    ],
)
def test_tests_of_a_file(changed, expected, other):
    found = found_for([changed, "README.md"])
    assert expected in found and other not in found, found


def test_a_file_without_tests():
    assert found_for(["docs/site.py", "README.md"]) == []
