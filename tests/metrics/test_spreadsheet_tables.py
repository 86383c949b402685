"""Tables as spreadsheet programs and editors of Windows, Macs and DOS write them, in their exact layouts."""

import datetime
import random
import re
import zipfile

import pytest

from hf_captioners.data.report import DataReport
from hf_captioners.metrics import spreadsheets
from hf_captioners.metrics.annotation_files import FirstFault
from hf_captioners.metrics.caption_tables import table_rows
from hf_captioners.metrics.table_columns import caption_columns, file_column, header_of_rows
from hf_captioners.metrics.text_encoding import guessed_encoding, require_encoding

GERMAN = ["Ein Hund läuft über die Straße.", "Zwei Mädchen; eines lacht, eines schläft.", 'Er sagt "Grüß Gott".']
ROWS = [{"file_name": f"{number}.jpg", "caption": text} for number, text in enumerate(GERMAN)]


def read(path, **options):
    report = DataReport()
    rows = [row for _, row in table_rows(path, report, **options)]
    return rows, report


def quoted(text, separator):
    """A field as Excel writes it: in quotes only where it has a separator or quotes."""
    return f'"{text.replace(chr(34), chr(34) * 2)}"' if set(text) & {separator, '"'} else text


def table_of_excel(separator, encoding, rows=GERMAN, header=True):
    lines = [f"file_name{separator}caption"] if header else []
    lines += [f"{number}.jpg{separator}{quoted(text, separator)}" for number, text in enumerate(rows)]
    return "".join(f"{line}\r\n" for line in lines).encode(encoding)


# Name in Excel, in countries with a decimal comma: ending, separator, encoding.
EXCEL = {
    "CSV UTF-8": (".csv", ";", "utf-8-sig"),
    "CSV (MS-DOS)": (".csv", ";", "cp850"),
    "CSV": (".csv", ";", "cp1252"),
    "CSV (Macintosh)": (".csv", ";", "mac_roman"),
    "CSV of other countries": (".csv", ",", "cp1252"),
    "Unicode text": (".txt", "\t", "utf-16"),
    "Unicode text named .csv": (".csv", "\t", "utf-16"),
    "Unicode text named .tsv": (".tsv", "\t", "utf-16"),
    "bars": (".csv", "|", "utf-8"),
}


@pytest.mark.parametrize("name", EXCEL)
def test_excel(name, tmp_path):
    ending, separator, encoding = EXCEL[name]
    path = tmp_path / f"captions{ending}"
    path.write_bytes(table_of_excel(separator, encoding))
    rows, report = read(path)
    assert rows == ROWS and not report.problems
    guessed = encoding in ("cp1252", "cp850", "mac_roman")
    assert len(report.remarks) == guessed
    if guessed:
        assert f"read as {encoding}" in report.remarks[0] and "Straße" in report.remarks[0], "the guess can be checked"
        assert "`encoding='...'`" in report.remarks[0]


def test_a_named_encoding_is_not_guessed(tmp_path):
    path = tmp_path / "captions.csv"
    path.write_bytes("file_name;caption\r\na.jpg;Собака бежит по пляжу\r\n".encode("cp1251"))
    rows, report = read(path)
    assert not rows and "name its encoding: `encoding='...'`" in report.problems[0].message and not report.remarks
    rows, report = read(path, encoding="cp1251")
    assert rows == [{"file_name": "a.jpg", "caption": "Собака бежит по пляжу"}]
    assert not report.problems and not report.remarks
    with pytest.raises(ValueError, match=r"`encoding` is 'cp1525', expected .*Did you mean `cp125\d`"):
        read(path, encoding="cp1525")
    assert require_encoding("UTF-16") == "utf-16"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Un garçon à côté d'une élève", "cp1252"),
        ("Un niño pequeño está allí", "cp1252"),
        ("Pies biegnie wzdłuż plaży, dziewczyna się śmieje", "cp1250"),
        ("Küçük kız yağmurda koşuyor, şemsiyesi yeşil", "cp1254"),
    ],
)
def test_languages(text, encoding):
    line = f"a.jpg;{text}\r\n".encode(encoding)
    assert guessed_encoding([b"file_name;caption\r\n", line]) == encoding


def test_what_is_utf8_elsewhere_is_damaged_not_guessed():
    assert guessed_encoding(["ä\n".encode(), b"\xe4 dog\n"]) is None
    assert guessed_encoding([b"\x8d\x9d\x81 a dog\n"]) is None, "no letters of any candidate"


def test_utf16_without_a_mark_and_a_damaged_end(tmp_path):
    path = tmp_path / "captions.txt"
    path.write_bytes(table_of_excel("\t", "utf-16-be"))
    rows, report = read(path)
    assert rows == ROWS and "utf-16-be" in report.remarks[0]
    path.write_bytes(table_of_excel("\t", "utf-16")[:-1])
    rows, report = read(path)
    assert rows == ROWS[:2] and "cannot be read as utf-16-le from here on" in report.problems[0].message


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators_without_a_header(ending, separator, tmp_path):
    path = tmp_path / f"captions{ending}"
    path.write_bytes(table_of_excel(separator, "utf-8", [text.replace('"', "") for text in GERMAN], header=False))
    rows, report = read(path)
    assert [row["file_name"] for row in rows] == ["0.jpg", "1.jpg", "2.jpg"]
    assert rows[0]["caption"] == GERMAN[0] and not report.problems
    assert report.remarks == [
        f"{path}: it has no header; its columns were read so: 1 as file_name, 2 as caption. Add a first line with the "
        "names of the columns, such as file_name and caption."
    ]


def test_plain_columns():
    split = [["1", "a.jpg", "A dog.", "train", "Ein Hund."], ["2", "b.PNG", "A cat.", "Test", "Eine Katze."]]
    assert header_of_rows(split) == ["column_1", "file_name", "caption_1", "split", "caption_2"]
    assert header_of_rows([["a.jpg", "b.jpg", "A dog."]]) is None, "two columns of images"
    assert header_of_rows([["a.jpg", "17"]]) is None, "no texts"
    assert header_of_rows([["a.jpg", "x"], ["b.jpg", "y", "z"], ["c.jpg"]]) is None, "rows of several lengths"


def test_columns_that_cannot_be_told_apart(tmp_path):
    path = tmp_path / "captions.csv"
    path.write_text("a.jpg;b.jpg;A dog.\n")
    with pytest.raises(ValueError, match="has no header, and its columns cannot be told apart: 'a.jpg', 'b.jpg'"):
        read(path)


def test_usual_names_in_any_case_and_numbered():
    assert file_column(("Nr", "File name", "Text")) == "File name"
    assert caption_columns(("Image", "Caption 1", "caption-2", "Captions")) == ("Captions",)
    assert caption_columns(("Image", "Caption 1", "caption-2", "score_3")) == ("Caption 1", "caption-2")
    assert caption_columns(("Bild", "Satz")) == ()


def test_lines_of_spreadsheets_that_are_no_rows(tmp_path):
    path = tmp_path / "captions.csv"
    path.write_text('sep=|\nfile_name|caption|\na.jpg|"A dog; a cat"|\n||\n||\n')
    rows, report = read(path)
    assert rows == [{"file_name": "a.jpg", "caption": "A dog; a cat"}] and not report.problems


def test_too_many_fields_name_the_separator(tmp_path):
    path = tmp_path / "captions.csv"
    path.write_text("file_name;caption\na.jpg;A dog\nb.jpg;A cat; asleep\n")
    _, report = read(path)
    assert "3 fields where the header has 2" in report.problems[0].message
    assert report.problems[0].message.endswith("Put captions with semicolons in double quotes.")


def test_lines_of_names_with_semicolons(tmp_path):
    path = tmp_path / "captions.txt"
    path.write_text("a.jpg;A dog, a cat\nb; c.jpg,Two dogs\n")
    rows, _ = read(path)
    assert rows == [
        {"file_name": "a.jpg", "caption": "A dog, a cat"},
        {"file_name": "b; c.jpg", "caption": "Two dogs"},
    ]


@pytest.fixture
def book():
    openpyxl = pytest.importorskip("openpyxl", reason="reading .xlsx needs openpyxl")
    return openpyxl.Workbook()


def test_sheets(book, tmp_path):
    book.create_sheet("notes").append(["not read"])
    sheet = book.worksheets[0]
    for row in (["File name", "Caption", "Year", "Day"], ["a.jpg", GERMAN[0], 1999, datetime.date(2020, 1, 2)]):
        sheet.append(row)
    sheet.append([])
    sheet.append(["b.jpg", GERMAN[2], None, None])
    path = tmp_path / "captions.xlsx"
    book.save(path)
    report = DataReport()
    rows = dict(table_rows(path, report))
    assert rows == {
        2: {"File name": "a.jpg", "Caption": GERMAN[0], "Year": 1999, "Day": "2020-01-02 00:00:00"},
        4: {"File name": "b.jpg", "Caption": GERMAN[2], "Year": None, "Day": None},
    }
    assert report.remarks == [f"{path}: it has 2 sheets, of which 'Sheet' was read."]


def test_a_sheet_without_a_header(book, tmp_path):
    for number, text in enumerate(GERMAN):
        book.active.append([f"{number}.jpg", text])
    book.save(tmp_path / "captions.xlsx")
    rows, report = read(tmp_path / "captions.xlsx")
    assert rows == ROWS and "1 as file_name, 2 as caption" in report.remarks[0]


def test_what_is_no_sheet(book, tmp_path, monkeypatch):
    path = tmp_path / "captions.xlsx"
    book.save(path)
    with pytest.raises(ValueError, match="has no values in its sheets"):
        read(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="cannot be read as a spreadsheet: .*Save it again"):
        read(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as parts:
        parts.writestr("xl/worksheets/sheet1.xml", b" " * 2**20)
    monkeypatch.setattr(spreadsheets, "EXPANDED_FLOOR", 2**10)
    with pytest.raises(ValueError, match="decompresses to 1,048,576 bytes, expected .* at most"):
        read(path)
    path.with_suffix(".xls").write_bytes(b"")
    with pytest.raises(ValueError, match=re.escape("captions.xls is not a readable table") + ".*Save it as .xlsx"):
        read(path.with_suffix(".xls"))


def test_damaged_sheets_raise_one_kind_of_error(book, tmp_path):
    for number in range(30):
        book.active.append([f"{number}.jpg", f"A dog {number}"])
    path = tmp_path / "captions.xlsx"
    book.save(path)
    whole = path.read_bytes()
    refused = 0
    for seed in range(100):
        generator = random.Random(seed)
        content = bytearray(whole)
        for _ in range(generator.choice((1, 3, 20))):
            content[generator.randrange(len(content))] = generator.randrange(256)
        path.write_bytes(content)
        try:
            read(path)
        except ValueError:
            refused += 1
    assert refused > 20


def test_the_first_fault_has_advice_for_files_without_an_option(tmp_path, caplog):
    path = tmp_path / "captions.csv"
    path.write_bytes(table_of_excel(";", "cp1252"))
    assert len(list(table_rows(path, FirstFault()))) == 3
    assert "read as cp1252" in caplog.text and "save it as UTF-8" in caplog.text and "encoding=" not in caplog.text


def test_openpyxl_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    (tmp_path / "captions.xlsx").write_bytes(b"")
    with pytest.raises(ImportError, match=r"needs openpyxl: pip install 'hf-captioners\[excel\]'"):
        read(tmp_path / "captions.xlsx")
