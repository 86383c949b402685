"""CHAIR: the share of objects in captions that are not in the image.

Source: Rohrbach et al., "Object Hallucination in Image Captioning", EMNLP 2018, section 2.1 (CHAIRi and CHAIRs).
"""

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from hf_captioners.names import did_you_mean

from .registry import Score

_COCO = Path(__file__).parent / "coco_objects.json"
_IRREGULAR = {"men": "man", "women": "woman", "geese": "goose", "mice": "mouse", "oxen": "ox", "children": "child"}
# Endings of plurals and what they replace, in order.
_PLURALS = (("s", ""), ("es", ""), ("ies", "y"), ("ves", "f"), ("ves", "fe"), ("men", "man"))
_EXAMPLE = 'For example {"cat": ["kitten", "tabby"], "dog": []}.'


class ObjectTable:
    """Object categories, and the words and phrases that name them in captions.

    Captions are searched for the longest phrases first, so that a `hot dog` is no dog. Plurals are recognised.

    Args:
        objects: for each object its synonyms; the name of the object itself is one.
        ignored: phrases that name no object, although a word of them would, such as `home plate`.
        unless: words that name no object in a caption that has another word, by word: a `seat` beside a `toilet`.

    Attributes:
        names: the objects.

    Raises:
        ValueError: there is no object, or two objects share a synonym.

    Examples:
        >>> from hf_captioners.metrics import ObjectTable
        >>> table = ObjectTable({"dog": ["puppy"], "hot dog": []})
        >>> table.find("two puppies eat a hot dog")
        [('puppy', 'dog'), ('hot dog', 'hot dog')]
    """

    def __init__(
        self,
        objects: Mapping[str, Sequence[str]],
        ignored: Sequence[str] = (),
        unless: Mapping[str, str] | None = None,
    ) -> None:
        if not objects:
            raise ValueError(f"The table has no objects. {_EXAMPLE}")
        self.names, self._unless = tuple(objects), dict(unless or {})
        self._object_of: dict[tuple[str, ...], str | None] = {tuple(phrase.split()): None for phrase in ignored}
        for name, synonyms in objects.items():
            if isinstance(synonyms, str) or not all(isinstance(synonym, str) for synonym in synonyms):
                raise ValueError(f"The synonyms of {name!r} are {synonyms!r}, expected a list of words. {_EXAMPLE}")
            for phrase in (name, *synonyms):
                earlier = self._object_of.setdefault(tuple(phrase.lower().split()), name)
                if earlier not in (name, None):
                    raise ValueError(f"{phrase!r} is a synonym of both {earlier!r} and {name!r}; keep one of them.")
        self._words = {word for phrase in self._object_of for word in phrase}
        self._longest = max(map(len, self._object_of))

    def find(self, caption: str) -> list[tuple[str, str]]:
        """Return (phrase, object) of each phrase of a tokenised caption that names an object, in caption order."""
        words = [self._singular(word) for word in caption.split()]
        matches = list(self._match(words))
        named = {word for phrase, _ in matches for word in phrase.split()}
        return [(phrase, name) for phrase, name in matches if self._unless.get(phrase) not in named]

    def object_of(self, name: str) -> str:
        """Return the object of the table that an annotated object name, such as a synonym, stands for.

        Raises:
            ValueError: it is no object of the table; the message has the nearest one.
        """
        object_name = self._object_of.get(tuple(name.lower().split()))
        if object_name is None:
            raise ValueError(f"{name!r} is no object of the table.{did_you_mean(name, self.names)}")
        return object_name

    def _match(self, words: list[str]) -> Iterator[tuple[str, str]]:
        start = 0
        while start < len(words):
            for length in range(min(self._longest, len(words) - start), 0, -1):
                phrase = tuple(words[start : start + length])
                if phrase in self._object_of:
                    name = self._object_of[phrase]
                    if name is not None:
                        yield " ".join(phrase), name
                    break
            start += length

    def _singular(self, word: str) -> str:
        """Return the singular of a plural if the table has it, otherwise the word itself."""
        if word in self._words:
            return word
        candidates = [_IRREGULAR.get(word, word)]
        candidates += [word.removesuffix(end) + singular for end, singular in _PLURALS if word.endswith(end)]
        return next((candidate for candidate in candidates if candidate in self._words), word)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "ObjectTable":
        """Read an `ObjectTable` from a JSON file: `{"object": ["synonym", ...], ...}`.

        Raises:
            ValueError: the file is no such table.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is no JSON file ({error}). {_EXAMPLE}") from error
        if not isinstance(content, dict):
            raise ValueError(f"{path} is a {type(content).__name__}, expected objects with synonyms. {_EXAMPLE}")
        if set(content) == {"objects", "ignored", "unless"}:
            return cls(**content)
        return cls(content)


@cache
def coco_objects() -> ObjectTable:
    """Return the table of the 80 object categories of COCO, with the synonyms and rules of the published evaluation.

    Examples:
        >>> from hf_captioners.metrics import coco_objects
        >>> len(coco_objects().names)
        80
        >>> coco_objects().find("a baby elephant and two women")
        [('baby elephant', 'elephant'), ('woman', 'person')]
    """
    return ObjectTable.load(_COCO)


class ChairResult(NamedTuple):
    """Scores of CHAIR. Lower is better; captions that name no object have 0.

    Attributes:
        chair_i: hallucinated mentions divided by all mentions of objects.
        chair_s: share of captions with a hallucinated object.
        per_image_i: for each image the share of mentions that are hallucinated.
        mentions: for each image the objects of its caption.
        hallucinated: for each image those that are neither annotated nor in its references.
    """

    chair_i: float
    chair_s: float
    per_image_i: list[float]
    mentions: list[list[str]]
    hallucinated: list[list[str]]


class Chair:
    """Scorer of CHAIR, the share of objects in captions that are not in the image.

    Args:
        table: objects and synonyms. Default: the 80 categories of COCO.
        instances: for each image the objects of its annotations. None: an image has the objects of its references
            only. The published figures use both.

    Examples:
        >>> from hf_captioners.metrics import Chair
        >>> captions, references = ["a dog on a bench", "two cats"], [["a puppy outside"], ["kittens on a sofa"]]
        >>> result = Chair().score(captions, references)
        >>> round(result.chair_i, 4), result.chair_s, result.hallucinated
        (0.3333, 0.5, [['bench'], []])
        >>> Chair(instances=[["dog", "bench"], ["cat"]]).score(captions, references).chair_i
        0.0
    """

    def __init__(self, table: ObjectTable | None = None, instances: Sequence[Collection[str]] | None = None) -> None:
        self.table = coco_objects() if table is None else table
        self.instances = None if instances is None else [{*map(self.table.object_of, names)} for names in instances]

    def score(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> ChairResult:
        """Compute CHAIR of tokenised captions against the objects in references and annotations of their images.

        Args:
            predictions: one tokenised caption per image.
            references: the tokenised references of each image.

        Raises:
            ValueError: there are annotations of a different number of images.
        """
        instances = [set[str]()] * len(predictions) if self.instances is None else self.instances
        if len(instances) != len(predictions):
            raise ValueError(f"There are annotations of {len(instances)} images and {len(predictions)} captions.")
        mentions, hallucinated = [], []
        for caption, texts, annotated in zip(predictions, references, instances, strict=True):
            present = annotated | {name for text in texts for _, name in self.table.find(text)}
            mentions.append([name for _, name in self.table.find(caption)])
            hallucinated.append([name for name in mentions[-1] if name not in present])
        shares = [
            len(wrong) / len(names) if names else 0.0 for wrong, names in zip(hallucinated, mentions, strict=True)
        ]
        total = sum(map(len, mentions))
        return ChairResult(
            sum(map(len, hallucinated)) / total if total else 0.0,
            sum(map(bool, hallucinated)) / len(predictions),
            shares,
            mentions,
            hallucinated,
        )


def read_instances(path: str | os.PathLike[str], images: Sequence[str]) -> list[list[str]]:
    """Read the names of the annotated objects of each image from a JSON file.

    Args:
        path: COCO's `instances_*.json`, or `{"image id": ["object", ...], ...}`.
        images: names of the images; in a file of COCO these are ids or file names.

    Returns:
        For each image the names of its objects; an image that the file does not have gets none.

    Raises:
        ValueError: the file has none of the images, or another form.

    Examples:
        >>> import json, pathlib
        >>> from hf_captioners.metrics import read_instances
        >>> _ = pathlib.Path("objects.json").write_text(json.dumps({"7": ["cat"]}))  # doctest: +SKIP
        >>> read_instances("objects.json", ["7", "8"])  # doctest: +SKIP
        [['cat'], []]
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        names_of_image = (
            _of_coco(content)
            if "annotations" in content
            else {str(image_id): list(content[image_id]) for image_id in content}
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} has no annotated objects ({type(error).__name__}: {error}): expected COCO's instances or "
            '{"image id": ["object", ...]}.'
        ) from error
    if not any(image in names_of_image for image in images):
        raise ValueError(
            f"{path} has none of the {len(images):,} images, such as {images[0]!r}; its images are called, for "
            f"example, {next(iter(names_of_image), None)!r}."
        )
    return [names_of_image.get(image, []) for image in images]


def _of_coco(content: Mapping[str, Any]) -> dict[str, list[str]]:
    names = {category["id"]: category["name"] for category in content["categories"]}
    names_of_image: dict[str, list[str]] = {str(image["id"]): [] for image in content.get("images", [])}
    for annotation in content["annotations"]:
        names_of_image.setdefault(str(annotation["image_id"]), []).append(names[annotation["category_id"]])
    for image in content.get("images", []):
        if "file_name" in image:
            names_of_image[image["file_name"]] = names_of_image[str(image["id"])]
    return names_of_image


def score_chair(
    predictions: Sequence[str], references: Sequence[Sequence[str]], chair: Chair | None = None
) -> list[Score]:
    """Compute the metric `chair`: hallucinated objects per named object, and captions with any of them."""
    scorer = chair or Chair()
    result = scorer.score(predictions, references)
    source = "references" if scorer.instances is None else "annotations and references"
    about = f"{len(scorer.table.names)} objects, those of an image from {source}"
    return [
        Score("chair_i", result.chair_i, f"CHAIRi, share of mentioned objects; {about}", result.per_image_i),
        Score(
            "chair_s",
            result.chair_s,
            f"CHAIRs, share of captions with such an object; {about}",
            [float(bool(wrong)) for wrong in result.hallucinated],
        ),
    ]
