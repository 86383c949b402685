"""Damaged and hostile tables of captions, given to the readers of data sets and of predictions."""

import csv
import gzip
import io
import json
import random
import shutil
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow
import pyarrow.parquet

from hf_captioners.data import DataReport, load_captions
from hf_captioners.metrics.caption_files import read_captions

from .isolated import Attempt
from .mutators import ODD_VALUES, mutated, mutated_json

# Options of the data sets, by name.
OPTIONS: dict[str, dict[str, Any]] = {
    "iu_xray": {"protocol": "r2gen", "allow_partial": True, "max_views": 2},
    "by_columns": {"path": "parquet", "image_column": "photo", "caption_columns": ["alt"]},
}
TABLES = ("*.json", "*.tsv", "*.parquet", "*.tar")


def whole_tables(material: Any) -> dict[str, bytes]:
    """Return whole tables of the folder of images, by their names."""
    if "tables" not in material.kept:
        lines = (material.images / "metadata.jsonl").read_text().splitlines()[:4]
        rows = [json.loads(line) | {"id": number} for number, line in enumerate(lines)]
        flat = [{"file_name": row["file_name"], "caption": text} for row in rows for text in row["captions"][:2]]
        images = [{"id": row["id"], "file_name": row["file_name"]} for row in rows]
        annotations = [
            {"id": 10 * row["id"] + place, "image_id": row["id"], "caption": text}
            for row in rows
            for place, text in enumerate(row["captions"])
        ]
        stream = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), stream)
        material.kept["rows"] = rows
        material.kept["tables"] = {
            "metadata.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode(),
            "metadata.csv": separated(flat, ",").encode(),
            "captions.tsv": "".join("\t".join(row.values()) + "\n" for row in [dict.fromkeys(flat[0], "x"), *flat])
            .replace("x\tx", "file_name\tcaption", 1)
            .encode(),
            "metadata.json": json.dumps(rows).encode(),
            "annotations.json": json.dumps({"images": images, "annotations": annotations}).encode(),
            "metadata.parquet": stream.getvalue(),
            "captions.csv": separated(flat, ";").replace("\n", "\r\n").encode("utf-16"),
            "annotations.csv": separated(flat, ";").replace("A ", "Ä ").encode("cp1252"),
            "metadata.xlsx": sheet(flat),
            "captions.txt": "".join(f"{row['file_name']}#0\t{row['caption']}\n" for row in flat).encode(),
        }
    return material.kept["tables"]


def sheet(rows: list[dict[str, str]]) -> bytes:
    """Return rows as a spreadsheet."""
    book, stream = openpyxl.Workbook(), io.BytesIO()
    for cells in (list(rows[0]), *(list(row.values()) for row in rows)):
        book.active.append(cells)
    book.save(stream)
    return stream.getvalue()


def separated(rows: list[dict[str, str]], separator: str) -> str:
    """Return rows as CSV."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]), delimiter=separator, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def changed_table(name: str, content: bytes, rng: random.Random, others: list[bytes]) -> tuple[bytes, str]:
    """Change bytes, or values of JSON, or put in odd lines."""
    kind = rng.random()
    if name.endswith(".json") and kind < 0.6:
        text, how = mutated_json(json.loads(content), rng)
        return text.encode("utf-8", "surrogatepass"), how
    if name.endswith(".jsonl") and kind < 0.6:
        lines = content.decode().splitlines()
        place = rng.randrange(len(lines))
        lines[place], how = mutated_json(json.loads(lines[place]), rng)
        return "\n".join(lines).encode("utf-8", "surrogatepass"), f"line {place + 1}: {how}"
    if name.endswith((".csv", ".tsv", ".txt")) and kind < 0.6:
        lines = content.decode("utf-16" if content.startswith(b"\xff\xfe") else "latin-1").splitlines()
        place = rng.randrange(len(lines))
        cells = lines[place].split("\t" if "\t" in lines[place] else ",")
        value = str(rng.choice(ODD_VALUES))
        cells[rng.randrange(len(cells))] = value
        lines[place] = rng.choice((",", "\t")).join(cells) if rng.random() < 0.8 else value
        return "\n".join(lines).encode("utf-8", "surrogatepass"), f"line {place + 1}: {value!r:.30}"
    return mutated(content, rng, others)


def attack_table(material: Any, rng: random.Random, folder: Path) -> Attempt:
    """Change a table, and read it as a data set, or as predictions."""
    kind = rng.random()
    if kind < 0.25:
        return attack_predictions(material, rng, folder)
    return attack_data_set(material, rng, folder) if kind < 0.55 else attack_folder(material, rng, folder)


def attack_predictions(material: Any, rng: random.Random, folder: Path) -> Attempt:
    """Change a file of captions that `score` reads."""
    tables = whole_tables(material)
    name = rng.choice([name for name in tables if not name.endswith((".parquet", ".xlsx"))])
    content, how = changed_table(name, tables[name], rng, list(tables.values()))
    path = folder / name
    if rng.random() < 0.3:
        path = folder / f"{name}.gz"
        with gzip.open(path, "wb", 1) as file:
            file.write(content)
            for _ in range(rng.choice((0, 0, 0, 300))):
                file.write(b" " * 2**20)
        content = path.read_bytes()
        if rng.random() < 0.5:
            content, more = mutated(content, rng)
            how = f"{how}; compressed, {more}"
    path.write_bytes(content)

    def read() -> None:
        for image, captions in read_captions(path).captions.items():
            assert captions and all(isinstance(text, str) for text in (image, *captions))

    return Attempt(f"{path.name} as predictions: {how}", read, (str(path),))


def attack_folder(material: Any, rng: random.Random, folder: Path) -> Attempt:
    """Change the table of a folder of images."""
    tables = whole_tables(material)
    name = rng.choice([*tables, "scene_001.txt"])
    for row in material.kept["rows"]:
        shutil.copy(material.images / row["file_name"], folder)
    if name == "scene_001.txt":  # captions beside the images
        for row in material.kept["rows"]:
            (folder / row["file_name"]).with_suffix(".txt").write_text("\n".join(row["captions"]))
        content, how = mutated((folder / name).read_bytes(), rng, list(tables.values()))
    else:
        content, how = changed_table(name, tables[name], rng, list(tables.values()))
    (folder / name).write_bytes(content)
    streaming = rng.random() < 0.2
    return Attempt(
        f"{name} of a folder{', streamed' if streaming else ''}: {how}",
        lambda: read_data_set("caption_folder", folder, streaming=streaming),
        (str(folder / name), str(folder)) if name == "scene_001.txt" else (str(folder / name),),
    )


def attack_data_set(material: Any, rng: random.Random, folder: Path) -> Attempt:
    """Change a table of a known data set in its own form."""
    name = rng.choice([path.name for path in sorted((material.root / "datasets").iterdir())])
    shutil.copytree(material.root / "datasets" / name, folder, dirs_exist_ok=True)
    tables = sorted(path for pattern in TABLES for path in folder.rglob(pattern)) or sorted(folder.rglob("*.jsonl"))
    path = rng.choice(tables)
    content, how = changed_table(path.name, path.read_bytes(), rng, list(whole_tables(material).values()))
    path.write_bytes(content)
    options = OPTIONS.get(name, {})
    # `datasets` joins the files of a folder, so images of a row are named by split and folder.
    names = (str(path), path.name, *([str(folder)] if name == "by_columns" else []))
    return Attempt(f"{path.name} of {name}: {how}", lambda: read_data_set(name, folder, **options), names)


def read_data_set(name: str, folder: Path, streaming: bool = False, **options: Any) -> None:
    """Read all rows of a data set and check them, and that every problem has its place."""
    report = DataReport()
    splits = load_captions(
        name,
        data_dir=folder,
        report=report,
        streaming=streaming,
        cache_dir=folder.parent / "cache" / folder.name,
        **options,
    )
    for rows in splits.values():
        for row in rows:
            assert all(isinstance(text, str) for text in (row["image_id"], *row["captions"]))
            for image in row["images"] if "images" in row else [row["image"]]:
                image.load()
    for problem in report.problems:
        assert problem.message and str(folder) in problem.file or name == "by_columns", problem
