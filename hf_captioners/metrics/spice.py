"""SPICE with its own parser, and the same comparison of scene graphs with other parsers.

Only figures of the original parsing pipeline may be called SPICE: other parsers find other tuples.
"""

import json
import math
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .scene_graph import CATEGORIES, CategoryScore, FindSynonyms, SceneTuple, compare

ParseCaption = Callable[[str], Sequence[SceneTuple]]
"""Turns a caption into tuples of objects, attributes and relations."""


class SpiceResult(NamedTuple):
    """Figures of one of the SPICE family.

    Attributes:
        corpus: the mean of `per_image`.
        per_image: `[images]` F figures over all tuples.
        categories: the mean F of each category over the images that have such tuples in their references; nan if
            none has.
        details: for each image the figures of each category.
    """

    corpus: float
    per_image: NDArray[np.float64]
    categories: dict[str, float]
    details: list[dict[str, CategoryScore]]


def score_scenes(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    parse: ParseCaption,
    find_synonyms: FindSynonyms,
    merge_synonyms: bool = True,
) -> SpiceResult:
    """Parse captions and compare them as SPICE does.

    Args:
        predictions: one caption per image.
        references: for each image its captions.
        parse: turns a caption into tuples.
        find_synonyms: gives the numbers of the sets of synonyms of a phrase, as `MeteorTables().synonyms.find`.
        merge_synonyms: whether synonyms count as the same.
    """
    known: dict[str, Sequence[SceneTuple]] = {}
    for caption in [*predictions, *(caption for captions in references for caption in captions)]:
        if caption not in known:
            known[caption] = parse(caption)
    details = [
        compare(known[prediction], [known[caption] for caption in captions], find_synonyms, merge_synonyms)
        for prediction, captions in zip(predictions, references, strict=True)
    ]
    return _summarize(details)


def _summarize(details: list[dict[str, CategoryScore]]) -> SpiceResult:
    per_image = np.array([scores["All"].f for scores in details])
    categories = {}
    for category in CATEGORIES:
        figures = [scores[category].f for scores in details if not math.isnan(scores[category].f)]
        categories[category] = float(np.mean(figures)) if figures else math.nan
    return SpiceResult(float(per_image.mean()), per_image, categories, details)


class OriginalSpice:
    """Runs the original program `spice-1.0.jar`, for those who have it working.

    The program needs Java 8 to 13 (its output needs a part that Java 15 removed), about 8 GB of memory, and the
    models of Stanford CoreNLP 3.6.0 in `lib` beside the jar.

    Args:
        jar: path of `spice-1.0.jar`; the folder `spice` of pycocoevalcap has it.
        java: the Java program to start.
        cache_dir: where the program keeps parsed captions between runs; without it nothing is kept.
        timeout: seconds after which the program is stopped.

    Raises:
        FileNotFoundError: there is no such jar.
    """

    def __init__(
        self,
        jar: str | os.PathLike[str],
        java: str = "java",
        cache_dir: str | os.PathLike[str] | None = None,
        timeout: float | None = None,
    ) -> None:
        self._jar = Path(jar).resolve()
        if not self._jar.is_file():
            raise FileNotFoundError(
                f"There is no file {self._jar}. Pass the path of `spice-1.0.jar`, which is in the folder `spice` of "
                f"pycocoevalcap."
            )
        self._java, self._cache, self._timeout = java, cache_dir, timeout

    def score(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> SpiceResult:
        """Score tokenised captions.

        Args:
            predictions: one tokenised caption per image.
            references: for each image its tokenised captions.

        Raises:
            RuntimeError: the program failed; the message has the end of what it wrote.
        """
        rows = [
            {"image_id": number, "test": prediction, "refs": list(captions)}
            for number, (prediction, captions) in enumerate(zip(predictions, references, strict=True))
        ]
        with tempfile.TemporaryDirectory(prefix="spice-") as folder:
            source, target = Path(folder, "captions.json"), Path(folder, "scores.json")
            source.write_text(json.dumps(rows), encoding="utf-8")
            command = [self._java, "-jar", "-Xmx8G", str(self._jar), str(source), "-out", str(target)]
            if self._cache is not None:
                Path(self._cache).mkdir(parents=True, exist_ok=True)
                command += ["-cache", str(Path(self._cache).resolve())]
            self._run([*command, "-subset", "-silent"])
            return _read_scores(target, len(rows))

    def _run(self, command: list[str]) -> None:
        try:
            done = subprocess.run(
                command, cwd=self._jar.parent, capture_output=True, text=True, timeout=self._timeout, check=False
            )
        except FileNotFoundError as error:
            raise RuntimeError(
                f"There is no program {self._java!r}. SPICE needs Java 8 to 13; install one and pass its path as "
                f"`java`."
            ) from error
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"SPICE was stopped after {self._timeout} seconds. Pass a longer `timeout`.") from error
        if done.returncode:
            ending = (done.stdout + done.stderr)[-2000:]
            raise RuntimeError(
                f"SPICE ended with code {done.returncode}. It needs Java 8 to 13, 8 GB of memory and the models of "
                f"CoreNLP 3.6.0 in {self._jar.parent / 'lib'}. The end of its output:\n{ending}"
            )


def _read_scores(path: Path, n_images: int) -> SpiceResult:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError) as error:
        raise RuntimeError("SPICE ended without an error, but wrote no scores that can be read.") from error
    by_image = {row["image_id"]: row["scores"] for row in rows}
    missing = sorted(set(range(n_images)) - set(by_image))
    if missing:
        raise RuntimeError(f"SPICE gave no score for {len(missing)} of {n_images} images, first {missing[0]}.")
    return _summarize([{name: _category(by_image[number][name]) for name in CATEGORIES} for number in range(n_images)])


def _category(figures: Mapping[str, Any]) -> CategoryScore:
    f, precision, recall = (math.nan if figures[key] is None else float(figures[key]) for key in ("f", "pr", "re"))
    return CategoryScore(f, precision, recall, int(figures["tp"]), int(figures["fp"]), int(figures["fn"]))
