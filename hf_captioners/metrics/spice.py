"""SPICE by its original Java program, and its comparison of scene graphs for tuples from any parser.

Only scores of the original parsing pipeline are SPICE: other parsers find other tuples.
"""

import json
import math
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .registry import Score
from .scene_graph import CATEGORIES, CategoryScore, FindSynonyms, SceneTuple, compare

ParseCaption = Callable[[str], Sequence[SceneTuple]]
"""Returns the tuples of objects, attributes and relations of a caption."""


class SpiceResult(NamedTuple):
    """SPICE of a corpus and of each image.

    Attributes:
        corpus: the mean of `per_image`.
        per_image: `[images]` F scores over all tuples.
        categories: the mean F score of each category over the images whose references have such tuples; nan if there
            are none.
        details: the scores of each category for each image.
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
    """Compute SPICE from tuples (object, attribute, relation) that `parse` returns for each caption.

    Args:
        predictions: one caption per image.
        references: the reference captions of each image.
        parse: returns the tuples of a caption, such as those that the original parser has found.
        find_synonyms: returns the synset numbers of a phrase, such as `MeteorTables().synonyms.find`.
        merge_synonyms: whether synonyms match.

    Returns:
        The scores. They are SPICE if the tuples are those of the original parser.

    Examples:
        >>> from hf_captioners.metrics import score_scenes
        >>> tuples = {"a big dog": [("dog",), ("dog", "big")], "a dog": [("dog",)]}
        >>> result = score_scenes(["a big dog"], [["a dog"]], tuples.get, find_synonyms=lambda phrase: frozenset())
        >>> result.per_image.round(4).tolist()
        [0.6667]
    """
    tuples_of: dict[str, Sequence[SceneTuple]] = {}
    for caption in [*predictions, *(caption for captions in references for caption in captions)]:
        if caption not in tuples_of:
            tuples_of[caption] = parse(caption)
    details = [
        compare(tuples_of[prediction], [tuples_of[caption] for caption in captions], find_synonyms, merge_synonyms)
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
    """Runner of the original SPICE program `spice-1.0.jar`.

    The program needs Java 8 to 13 (it uses a component that Java 15 removed), about 8 GB of memory, and the models of
    Stanford CoreNLP 3.6.0 in the folder `lib` next to the jar.

    Args:
        jar: path of `spice-1.0.jar`, which is in the folder `spice` of pycocoevalcap.
        java: the Java executable.
        cache_dir: folder in which the program caches parsed captions between runs. By default nothing is cached.
        timeout: time limit in seconds.

    Raises:
        FileNotFoundError: the jar does not exist.

    Examples:
        >>> from hf_captioners.metrics import OriginalSpice
        >>> spice = OriginalSpice("spice-1.0.jar")  # doctest: +SKIP
        >>> spice.score(["a big dog"], [["a dog", "one dog"]]).corpus  # doctest: +SKIP
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
        """Compute SPICE of tokenised captions with the original Java program.

        Args:
            predictions: one tokenised caption per image.
            references: the tokenised reference captions of each image.

        Returns:
            The scores.

        Raises:
            RuntimeError: the program failed; the message contains the end of its output.
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
            process = subprocess.run(
                command, cwd=self._jar.parent, capture_output=True, text=True, timeout=self._timeout, check=False
            )
        except FileNotFoundError as error:
            raise RuntimeError(
                f"There is no program {self._java!r}. SPICE needs Java 8 to 13. Pass its path as `java`."
            ) from error
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"SPICE was stopped after {self._timeout} seconds. Pass a longer `timeout`.") from error
        if process.returncode:
            ending = (process.stdout + process.stderr)[-2000:]
            raise RuntimeError(
                f"SPICE ended with code {process.returncode}. It needs Java 8 to 13, 8 GB of memory and the models of "
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


def score_spice(
    predictions: Sequence[str], references: Sequence[Sequence[str]], spice: OriginalSpice | None = None
) -> Iterator[Score]:
    """Yield the scores of the metric `spice`, computed by the original Java program.

    Raises:
        ValueError: the original program is missing.
    """
    if spice is None:
        raise ValueError(
            "The metric `spice` needs the original Java program: pass spice=OriginalSpice('.../spice-1.0.jar')."
        )
    result, variant = spice.score(predictions, references), "SPICE 1.0, English, original program"
    yield Score("spice", result.corpus, variant, result.per_image.tolist())
    for category, figure in result.categories.items():
        if category != "All":
            yield Score(f"spice_{category.lower()}", figure, f"{variant}; {category} only, images that have any")
