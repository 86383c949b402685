"""The record of text files that a captioner wrote."""

import pytest

from hf_captioners.data.generated_captions import (
    RECORD_NAME,
    generated_digests,
    record_generated,
    require_captions_of_people,
    text_digest,
    unchanged_files,
)


def test_digests_are_of_the_words():
    """Line ends, empty lines and blanks around lines are changed by editors and version control."""
    assert text_digest("a dog\nb\n") == text_digest("  a dog \r\n\r\nb")
    assert text_digest("a dog") != text_digest("a  dog") and text_digest("a") != text_digest("a\na")


def test_a_file_is_recognised_until_its_words_change(tmp_path, image):
    image(tmp_path / "more" / "a.png")
    image(tmp_path / "b.png")
    text = tmp_path / "more" / "a.txt"
    text.write_text("a dog\n")
    (tmp_path / "b.txt").write_text("mine\n")
    require_captions_of_people(tmp_path)
    record_generated(tmp_path / "more", {"a.txt": text_digest("a dog")})
    assert list(unchanged_files(tmp_path)) == [text]
    with pytest.raises(ValueError, match=r"1 text file\(s\) of .* nobody changed them: .*a.txt. Correct them"):
        require_captions_of_people(tmp_path)
    require_captions_of_people(tmp_path, allowed=True)
    text.write_text("a dog\n\n", newline="\r\n")
    assert list(unchanged_files(tmp_path)) == [text]
    text.write_text("a wet dog")
    assert list(unchanged_files(tmp_path)) == []
    (tmp_path / "metadata.csv").write_text("file_name,caption\nb.png,mine\n")
    text.write_text("a dog")
    assert list(unchanged_files(tmp_path)) == []  # the table has the captions


def test_lines_that_were_cut_off_cost_only_themselves(tmp_path):
    record_generated(tmp_path, {"a.txt": "1"})
    path = tmp_path / RECORD_NAME
    path.write_bytes(path.read_bytes() + b'{"file": "b.tx')
    record_generated(tmp_path, {"c.txt": "2", "d\udcff.txt": "3"})
    path.write_bytes(path.read_bytes() + b"\xff\n[]\n" + b'{"file": 3}\n')
    record_generated(tmp_path, {"a.txt": "4"})
    assert generated_digests(tmp_path) == {"a.txt": {"1", "4"}, "c.txt": {"2"}, "d\udcff.txt": {"3"}}
    assert generated_digests(tmp_path / "nowhere") == {}
