"""Studies of IU X-ray, read from any of the three distributed formats."""

from __future__ import annotations

import re
import tarfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_captioners.metrics.annotation_files import read_json
from hf_captioners.metrics.caption_tables import row_fault
from hf_captioners.metrics.separated_tables import separated_rows

from .report import DataReport, ProblemKind

SECTIONS = ("findings", "impression", "indication", "comparison")
UID = re.compile(r"^(?:CXR)?(\d{1,18})(?:_|$)")  # that fits into 64 bits


@dataclass
class Study:
    """Examination of a patient: images and the radiologist's report.

    Attributes:
        study_id: its id in the source.
        file: the file that contains it.
        line: line or entry there.
        sections: the texts by section (`SECTIONS`); empty if there is none.
        report: the whole report if the source does not separate sections.
        mesh: MeSH terms.
        images: file names of the views.
        projections: `Frontal` or `Lateral` of each image if the source states it; otherwise empty.
        split: the split that the source states.
    """

    study_id: str
    file: str
    line: int | None
    sections: dict[str, str] = field(default_factory=dict)
    report: str | None = None
    mesh: str = ""
    images: list[str] = field(default_factory=list)
    projections: list[str] = field(default_factory=list)
    split: str | None = None

    def text(self, sections: tuple[str, ...]) -> str:
        """Return the report text: the given sections, where present, joined by a space."""
        if self.report is not None:
            return self.report.strip()
        return " ".join(self.sections[name].strip() for name in sections if self.sections.get(name, "").strip())

    def frontal_first(self) -> None:
        """Order the views: first frontal, first lateral, then the others; unchanged without projections."""
        if self.projections:
            pairs = list(zip(self.images, self.projections, strict=True))
            leaders = [next((p for p in pairs if p[1] == kind), None) for kind in ("Frontal", "Lateral")]
            ordered = [pair for pair in leaders if pair] + [pair for pair in pairs if pair not in leaders]
            self.images, self.projections = [list(column) for column in zip(*ordered, strict=True)]


def r2gen_studies(path: Path, report: DataReport) -> Iterator[Study]:
    """Read R2Gen's `annotation.json`, or a file in its format, with any number of images and ids of any format.

    The part of an entry is its own `split`, or else the key of its list, because some copies have damaged keys.

    Raises:
        ValueError: the file has a different structure.
    """
    content = read_json(path)
    if not isinstance(content, dict) or not all(isinstance(part, list) for part in content.values()):
        raise ValueError(
            f'{path} is not in R2Gen\'s format: expected {{"train": [...], "val": [...], "test": [...]}}.'
        )
    number = 0
    for key, entries in content.items():
        for entry in entries:
            number += 1
            if fault := _r2gen_fault(entry):
                report.add(ProblemKind.MALFORMED_ROW, path, number, f"entry {number}: {fault}")
                continue
            images = [entry["image_path"]] if isinstance(entry["image_path"], str) else entry["image_path"]
            split = str(entry.get("split") or key).strip() or key
            yield Study(str(entry["id"]), str(path), number, report=entry["report"], images=images, split=split)


def _r2gen_fault(entry: Any) -> str | None:
    """Return why an entry of R2Gen's file is not used; None if it is used."""
    if not isinstance(entry, dict):
        return f"expected an object, found {entry!r:.80}"
    if missing := [name for name in ("id", "report", "image_path") if name not in entry]:
        return f"it lacks {', '.join(missing)}"
    if not isinstance(entry["report"], str):
        return f"expected a text as `report`, found {entry['report']!r:.80}"
    images = entry["image_path"]
    if not isinstance(images, str) and not (
        isinstance(images, list) and all(isinstance(image, str) for image in images)
    ):
        return f"expected names of files as `image_path`, found {images!r:.80}"
    return row_fault(entry)


def csv_studies(reports: Path, projections: Path, report: DataReport) -> Iterator[Study]:
    """Read `indiana_reports.csv` with `indiana_projections.csv`.

    Raises:
        ValueError: a column is missing.
    """
    images: dict[str, list[tuple[str, str]]] = {}
    for line, row in separated_rows(projections, report, ","):
        _need(row, ("uid", "filename", "projection"), projections, line)
        images.setdefault(row["uid"], []).append((row["filename"], row["projection"]))
    for line, row in separated_rows(reports, report, ","):
        _need(row, ("uid", "findings", "impression"), reports, line)
        views = images.pop(row["uid"], [])
        yield Study(
            f"CXR{row['uid']}",
            str(reports),
            line,
            sections={name: row.get(name, "") for name in SECTIONS},
            mesh=row.get("MeSH", ""),
            images=[name for name, _ in views],
            projections=[projection for _, projection in views],
        )
    for uid in images:
        report.add(ProblemKind.IMAGE_WITHOUT_CAPTION, projections, None, f"study {uid} has images and no report")


def xml_studies(source: Path, report: DataReport) -> Iterator[Study]:
    """Read the reports of the National Library of Medicine, a folder of XML files or the original `.tgz`."""
    for name, content in _xml_files(source):
        try:
            yield _xml_study(ElementTree.fromstring(content), name)
        except (ElementTree.ParseError, ValueError) as error:
            report.add(ProblemKind.MALFORMED_ROW, name, None, str(error))


def _xml_files(source: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the XML report files, by ascending study number."""
    if source.is_dir():
        for path in sorted(source.rglob("*.xml"), key=lambda path: _number(path.name)):
            yield str(path), path.read_bytes()
        return
    with tarfile.open(source) as archive:
        members = [member for member in archive if member.isfile() and member.name.endswith(".xml")]
        for member in sorted(members, key=lambda member: _number(Path(member.name).name)):
            stream = archive.extractfile(member)
            assert stream is not None, "a file"
            yield f"{source}/{member.name}", stream.read()


def _number(name: str) -> tuple[int, str]:
    match = re.search(r"\d+", name)
    return (int(match[0]) if match else -1, name)


def _xml_study(root: ElementTree.Element, name: str) -> Study:
    identity = root.find("uId")
    if identity is None or not identity.get("id"):
        raise ValueError('this XML has no <uId id="CXR...">')
    # By label: the order of the sections varies, and some studies lack one.
    texts = {(node.get("Label") or "").lower(): (node.text or "").strip() for node in root.iter("AbstractText")}
    mesh = [(node.text or "").strip() for node in root.findall("MeSH/major")]
    return Study(
        str(identity.get("id")),
        name,
        None,
        sections={section: texts.get(section, "") for section in SECTIONS},
        mesh=";".join(mesh),
        images=[f"{node.get('id')}.png" for node in root.iter("parentImage") if node.get("id")],
    )


def uid_of(study_id: str) -> int | None:
    """Return the number of a study from an id of any format (`CXR1234_IM-0001-0001`, `CXR1_1_IM-0001`, `1`)."""
    match = UID.match(study_id)
    return int(match[1]) if match else None


def _need(row: dict[str, str], columns: tuple[str, ...], path: Path, line: int) -> None:
    missing = [column for column in columns if column not in row]
    if missing:
        raise ValueError(f"{path}:{line} has no column {', '.join(missing)}; it has {', '.join(row)}.")
