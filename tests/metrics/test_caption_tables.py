"""Tables: whatever a caption holds comes back from every form that can hold it."""

import csv
import io
import json
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hf_captioners.data.report import DataReport
from hf_captioners.metrics.caption_tables import split_caption_line, table_rows

LETTERS = st.characters(exclude_categories=("Cs",), exclude_characters="\x00")
CAPTIONS = st.text(LETTERS, min_size=1, max_size=30).filter(lambda text: text.strip())
ONE_LINE = CAPTIONS.filter(lambda text: not set(text) & set("\r\n\t"))
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def rows_of(name, content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        report = DataReport()
        rows = list(table_rows(path, report))
        return rows, report.problems


@QUICK
@given(st.lists(CAPTIONS, min_size=1, max_size=6))
def test_jsonl(captions):
    content = "".join(json.dumps({"caption": text}, ensure_ascii=False) + "\n" for text in captions)
    rows, problems = rows_of("x.jsonl", content)
    assert [row["caption"] for _, row in rows] == captions and not problems
    assert [line for line, _ in rows] == list(range(1, len(captions) + 1))


@QUICK
@given(st.lists(CAPTIONS, min_size=1, max_size=6))
def test_csv_with_line_feeds_commas_and_quotes(captions):
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, quoting=csv.QUOTE_ALL)
    writer.writerow(["file_name", "caption"])
    writer.writerows([f"{number}.jpg", text] for number, text in enumerate(captions))
    rows, problems = rows_of("x.csv", "\ufeff" + stream.getvalue())
    assert [row for _, row in rows] == [{"file_name": f"{k}.jpg", "caption": text} for k, text in enumerate(captions)]
    assert not problems
    before = stream.getvalue().split("\n")
    assert all(before[line - 1].startswith(f'"{row["file_name"]}"') for line, row in rows), (
        "lines are where rows begin"
    )


@QUICK
@given(st.lists(ONE_LINE, min_size=1, max_size=6))
@example([" a space before it"])
def test_tsv_and_txt(captions):
    lines = [f"{number}.jpg\t{text}" for number, text in enumerate(captions)]
    expected = [{"file_name": f"{number}.jpg", "caption": text} for number, text in enumerate(captions)]
    rows, problems = rows_of("x.tsv", "\n".join(["file_name\tcaption", *lines]) + "\n")
    assert [row for _, row in rows] == expected and not problems
    rows, problems = rows_of(
        "x.txt", "".join(f"{number}.jpg#{k}\t{text}\n" for k, (number, text) in enumerate(enumerate(captions)))
    )
    assert [row for _, row in rows] == expected and not problems


@QUICK
@given(st.binary(max_size=200), st.sampled_from(["x.jsonl", "x.csv", "x.tsv", "x.txt"]))
def test_no_bytes_break_a_reader(content, name):
    """Rubbish is reported, row by row; the only error is that of UTF-16."""
    try:
        rows, problems = rows_of(name, content)
    except ValueError as error:
        assert "UTF-16" in str(error)
    else:
        assert len(rows) + len(problems) <= content.count(b"\n") + 1


def test_names_with_commas_and_hashes():
    assert split_caption_line("a#b.jpg#12\tx") == ("a#b.jpg", "x")
    assert split_caption_line('a.jpg,"He said ""no"", twice"') == ("a.jpg", 'He said "no", twice')
    assert split_caption_line("a, b.jpg\tx, y") == ("a, b.jpg", "x, y")
    assert split_caption_line("nothing") == ("nothing", None)
