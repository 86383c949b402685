"""`iu_xray`: chest X-rays with reports (Demner-Fushman et al., JAMIA 2016), with named protocols.

Files read from `data_dir` (the first found, or `reports`):

- `annotation.json`: R2Gen's file (Chen et al., EMNLP 2020), findings only.
- `indiana_reports.csv` with `indiana_projections.csv`.
- `NLMCXR_reports.tgz`, or a folder `ecgen-radiology` of XML files, as distributed by the National Library of Medicine.

Images are searched in `image_dir`, or in `data_dir` and its usual folders. A row has all views of a study in
`images`, frontal first if the source states it; with `max_views=1` it has one image in `image`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from datasets import Features, List, Value

from .images import first_file
from .iu_xray_cleaning import clean_report, without_marks
from .iu_xray_studies import SECTIONS, Study, csv_studies, r2gen_studies, uid_of, xml_studies
from .reader import Annotations, CaptionReader, SourceCard
from .report import DataReport, ProblemKind
from .schema import CaptionRow

R2GEN_COUNTS = {"train": 2069, "validation": 296, "test": 590}
R2GEN_SPLITS = {"train": "train", "val": "validation", "validation": "validation", "test": "test"}
VISUALGPT_TRAIN = 2770
SOURCES = ("annotation.json", "indiana_reports.csv", "NLMCXR_reports.tgz", "ecgen-radiology")
IMAGE_FOLDERS = ("", "images", "images/images_normalized", "images_normalized", "NLMCXR_png")
NO_TEXT, FEW_VIEWS = "study without the sections asked for", "study with fewer views than asked for"
STUDY_FEATURES = Features(
    {
        "uid": Value("int64"),
        "file_names": List(Value("string")),
        "projections": List(Value("string")),
        "mesh": Value("string"),
        **{section: Value("string") for section in SECTIONS},
    }
)


@dataclass(kw_only=True)
class IuXray(CaptionReader):
    """Reader of IU X-ray.

    Attributes:
        protocol: `r2gen`: the 2,069 / 296 / 590 studies of `annotation.json`; `visualgpt`: 2,770 training reports as
            in that paper, drawn by seed and study because its list was never published, a third of the
            others for validation and two thirds for test; `all-as-test`: every study, in `test`.
        reports: file or folder of the reports, relative to `data_dir`; None finds one.
        sections: the sections of the reference: `findings`, `impression` or both (files in R2Gen's format have one
            text, which is used unchanged).
        clean: return R2Gen's token strings, see `iu_xray_cleaning.clean_report`.
        keep_marks: keep the marks XXXX of removed words, which published references contain.
        min_views: leave out studies with fewer images.
        max_views: keep at most this many images per study (frontal first); None keeps all; 1 returns `image`.
        seed: seed of the split of `visualgpt`.
        allow_partial: accept splits with fewer studies than the protocol has.
        image_dir: folder of the images.
        with_images: False loads reports only.
    """

    name: ClassVar[str] = "iu_xray"
    card: ClassVar[SourceCard] = SourceCard(
        "Chest X-rays with reports, de-identified (removed words read XXXX). The split `visualgpt` is drawn by seed: "
        "the list of that paper was never published.",
        "Demner-Fushman et al. Preparing a collection of radiology examinations for distribution and retrieval. "
        "JAMIA 23, 2016.",
        "public for research (NLM Open-i)",
        "https://openi.nlm.nih.gov",
    )
    generation: ClassVar[Mapping[str, int]] = {"max_new_tokens": 60, "num_beams": 3}  # as R2Gen decodes

    protocol: Literal["r2gen", "visualgpt", "all-as-test"] = "r2gen"
    reports: str | Path | None = None
    sections: Sequence[str] = ("findings",)
    clean: bool = False
    keep_marks: bool = True
    min_views: int = 1
    max_views: int | None = None
    seed: int = 0
    allow_partial: bool = False
    image_dir: str | Path | None = None
    with_images: bool = True

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.protocol not in ("r2gen", "visualgpt", "all-as-test"):
            raise ValueError(f"`protocol` is {self.protocol!r}; expected r2gen, visualgpt or all-as-test.")
        unknown = sorted(set(self.sections) - set(SECTIONS))
        if unknown or isinstance(self.sections, str) or not self.sections:
            raise ValueError(f"`sections` is {self.sections!r}; expected a list of some of {', '.join(SECTIONS)}.")
        if self.max_views is not None and self.max_views < max(1, self.min_views):
            raise ValueError(f"`max_views` is {self.max_views}; expected at least `min_views` ({self.min_views}).")

    def source(self) -> Path:
        """Return the file or folder of the reports."""
        if self.reports is not None:
            places = [self.folder / self.reports]
        else:
            names = SOURCES[:1] if self.protocol == "r2gen" else (*SOURCES[1:], SOURCES[0])
            places = [self.folder / f"{name}{end}" for name in names for end in ("", ".gz")]
        path = next((place for place in places if place.exists()), None)
        if path is None:
            raise FileNotFoundError(
                f"{self.folder} has none of {', '.join(place.name for place in places if place.suffix != '.gz')}"
                + (" (the protocol r2gen is defined by R2Gen's file)." if self.protocol == "r2gen" else ".")
            )
        return path

    def _projections(self) -> Path:
        source = self.source()
        return source.with_name(source.name.replace("reports", "projections"))

    def annotation_files(self) -> list[Path]:
        """Return the files of the reports."""
        source = self.source()
        if source.is_dir():
            return sorted(source.rglob("*.xml"))
        return [source, self._projections()] if ".csv" in source.suffixes else [source]

    def image_places(self) -> Iterable[Path]:
        """Return the image folders."""
        return self._image_roots() if self.with_images else []

    def _image_roots(self) -> list[Path]:
        return [Path(self.image_dir)] if self.image_dir else [self.folder / name for name in IMAGE_FOLDERS]

    def _studies(self, report: DataReport) -> Iterable[Study]:
        source = self.source()
        if ".json" in source.suffixes:
            return r2gen_studies(source, report)
        if ".csv" in source.suffixes:
            return csv_studies(source, self._projections(), report)
        return xml_studies(source, report)

    def read(self, report: DataReport) -> Annotations:
        """Read the studies, drop those without text or views, and split them by the protocol."""
        studies: list[Study] = []
        uids: set[str] = set()
        for study in self._studies(report):
            if study.study_id in uids:
                report.add(ProblemKind.DUPLICATE, study.file, study.line, f"{study.study_id} occurs twice")
            elif not study.text(tuple(self.sections)):
                report.notes[NO_TEXT] += 1
            elif len(study.images) < self.min_views:
                report.notes[FEW_VIEWS] += 1
            else:
                studies.append(study)
            uids.add(study.study_id)
        divided = self._divide(studies, report)
        splits = {split: [self._row(study) for study in part] for split, part in divided.items() if part}
        expected = {} if self.allow_partial else self._expected(divided)
        return Annotations(splits, STUDY_FEATURES, views=self.max_views != 1, expected=expected)

    def _divide(self, studies: list[Study], report: DataReport) -> dict[str, list[Study]]:
        if self.protocol == "all-as-test":
            return {"test": studies}
        if self.protocol == "visualgpt":
            return self._seeded(studies)
        parts: dict[str, list[Study]] = {"train": [], "validation": [], "test": []}
        for study in studies:
            if study.split in R2GEN_SPLITS:
                parts[R2GEN_SPLITS[study.split]].append(study)
            else:
                message = f"{study.study_id} has the split {study.split!r}; expected train, val or test"
                report.add(ProblemKind.MALFORMED_ROW, study.file, study.line, message)
        return parts

    def _seeded(self, studies: list[Study]) -> dict[str, list[Study]]:
        order = sorted(studies, key=lambda study: (uid_of(study.study_id) or 0, study.study_id))
        random.Random(f"iu_xray/visualgpt/{self.seed}").shuffle(order)
        count = VISUALGPT_TRAIN if len(order) > VISUALGPT_TRAIN else len(order) * 7 // 10
        remaining = order[count:]
        third = len(remaining) // 3
        return {"train": order[:count], "validation": remaining[:third], "test": remaining[third:]}

    def _expected(self, divided: dict[str, list[Study]]) -> dict[str, int]:
        if self.protocol == "r2gen":
            return R2GEN_COUNTS
        return {"train": VISUALGPT_TRAIN} if self.protocol == "visualgpt" else {"test": len(divided["test"])}

    def _row(self, study: Study) -> CaptionRow:
        study.frontal_first()
        names = study.images[: self.max_views]
        text = study.text(tuple(self.sections))
        if not self.keep_marks:
            text = without_marks(text)
        if self.clean:
            text = clean_report(text)
        paths: list[str] = [self._image(name) for name in names] if self.with_images else []
        extra: dict[str, Any] = {
            "uid": uid_of(study.study_id),
            "file_names": names,
            "projections": study.projections[: self.max_views],
            "mesh": study.mesh,
            **{section: study.sections.get(section) for section in SECTIONS},
        }
        image = paths if self.max_views != 1 else next(iter(paths), None)
        return CaptionRow(study.study_id, image, [text], study.file, study.line, extra)

    def _image(self, name: str) -> str:
        # The CSVs and the original archive name the same image 1_IM-0001-4001.dcm.png and CXR1_1_IM-0001-4001.png.
        stem = name.removesuffix(".png").removesuffix(".dcm")
        names = (name, f"{stem}.png", f"CXR{stem}.png")
        candidates = [root / other for root in self._image_roots() for other in names]
        return first_file(candidates)
