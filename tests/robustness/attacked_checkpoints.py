"""Damaged checkpoints, configurations, recipes and cards, and hostile text in cards."""

import contextlib
import io
import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard
from safetensors import safe_open

from hf_captioners.cli import main
from hf_captioners.hub.card_facts import CheckpointFacts, DataFacts, EvaluationFacts, SampleFacts, TrainingFacts
from hf_captioners.hub.card_merging import BEGIN, END, merge_cards, read_card
from hf_captioners.hub.cards import render_card
from hf_captioners.reproduce.recipe import RECIPES, Recipe

from .isolated import Attempt
from .mutators import ODD_VALUES, mutated, mutated_json
from .watched_files import CANARIES

CODE = "open('executed', 'w')\n\nclass X:\n    pass\n"
HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=http://tracker.example/x.png onerror=alert(1)>",
    "![](http://tracker.example/x.png)",
    "[click](javascript:alert(1))",
    "[ref]: http://tracker.example/x.png",
    "![a][ref]",
    "http://tracker.example/x and www.tracker.example and me@tracker.example",
    "a | b | c",
    "a\\| ![](http://tracker.example/x.png) \\",
    "`a` ``b`` <b>`",
    "``` \n\n<script>alert(1)</script>",
    "name\n---\nlicense: mit",
    "---\n# Heading\n\n- list",
    "\u2028<script>\u2029",
    "lone \ud800 surrogate",
    "&lt;script&gt; &#60;img&#62;",
    f"{END} <!-- {BEGIN} -->",
    "{{ 7 * 7 }} {% raw %}",
    "<!-- comment",
    "long" * 200,
    "",
]


def card_of(text):
    data = DataFacts(
        name=text, split=text, images=3, captions=6, licence=text, citation=text, homepage=text, description=text
    )
    sample = SampleFacts(
        image=text, file="sample_eval_1.jpg", caption=text, references=[text, text], visual_scores=[(text, 0.5)]
    )
    unscored = SampleFacts(image=text, file=None, caption=text, references=[text])
    evaluation = EvaluationFacts(
        data=data,
        figures={"bleu_4": 0.25, "cider_d": 0.7},
        variants={"bleu_4": text},
        tokenizer=text,
        document_frequency=text,
        generation={"stop": text},
        samples=[sample, unscored],
    )
    training = TrainingFacts(
        data=data,
        evaluations=[evaluation],
        licence=text,
        language=text,
        started_from=[text],
        converted_from=text,
        arguments={"run_name": text},
        hardware=text,
        versions={text: text},
    )
    return render_card("owner/name", CheckpointFacts(), training, frozenset(["sample_eval_1.jpg"]))


def harmful_parts(text):
    """Return tags, links and images that a renderer of GitHub's Markdown makes of a text."""
    import markdown_it  # here, because it is no dependency of the project

    rendered = markdown_it.MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    allowed = r"/?(p|h\d|table|thead|tbody|tr|t[hd]|code|pre|em|strong|ul|ol|li|br|sub|details|summary|blockquote)"
    tags = re.findall(r"<[^>]*>", rendered)
    return [tag for tag in tags if not re.fullmatch(rf"<{allowed}( class=\"language-\w+\")? ?/?>", tag)], rendered


# Beginnings of the tags that the card of `card_of` has itself.
ALLOWED_TAGS = ('<img src="sample_eval_1.jpg" alt="', "<!-- hf-captioners:")


def attack_checkpoint(material: Any, rng: random.Random, folder: Path) -> Attempt:
    """Change a file of a captioner, and caption an image with it as a person does."""
    copy = Path(shutil.copytree(material.captioner, folder / "captioner"))
    path = rng.choice(sorted(path for path in copy.iterdir() if path.suffix in (".json", ".safetensors")))
    if rng.random() < 0.2:
        how = name_a_canary(copy, rng)
    else:
        content, how = changed_file(path, rng)
        path.write_bytes(content)
    for name in ("modeling_x.py", "x.py", "tokenization_x.py"):
        (copy / name).write_text(CODE)

    def caption() -> None:
        printed = io.StringIO()
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()) as captions:
            status = main(["caption", str(material.images / "scene_000.png"), "--model", str(copy), "--device", "cpu"])
        if status:
            raise ValueError(f"exit status {status}: {printed.getvalue()}")
        assert captions.getvalue().strip() != "" or "\n" in captions.getvalue()

    return Attempt(f"{path.name}: {how}", caption, (str(copy),))


FILES_NAMED = (
    "tokenizer_file",
    "vocab_file",
    "merges_file",
    "name_or_path",
    "_name_or_path",
    "checkpoint_path",
    "file",
)


def name_a_canary(copy: Path, rng: random.Random) -> str:
    """Name a file outside of a captioner in its configurations, or as a part of its weights."""
    canary = rng.choice(("../../canaries/secret.bin", str(copy.parents[1] / CANARIES / "secret.txt")))
    if rng.random() < 0.3:
        (copy / "model.safetensors").rename(copy / "part.safetensors")
        with safe_open(copy / "part.safetensors", "np") as weights:
            places = dict.fromkeys(weights.keys(), "part.safetensors")
        places[rng.choice(list(places))] = canary
        (copy / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
        return f"model.safetensors.index.json names {canary}"
    path = rng.choice([path for path in copy.glob("*.json") if path.name != "tokenizer.json"])
    value = json.loads(path.read_bytes())
    value |= dict.fromkeys(FILES_NAMED, canary)
    for part in [part for part in value.values() if isinstance(part, dict)]:
        part |= dict.fromkeys(FILES_NAMED[3:], canary)
    path.write_text(json.dumps(value))
    return f"{path.name} names {canary}"


def changed_file(path: Path, rng: random.Random) -> tuple[bytes, str]:
    """Change bytes, or values of JSON; a configuration may name code in the folder."""
    content = path.read_bytes()
    if path.suffix == ".safetensors" and rng.random() < 0.6:
        length = int.from_bytes(content[:8], "little")
        text, how = mutated_json(json.loads(content[8 : 8 + length]), rng)
        header = text.encode("utf-8", "surrogatepass")
        return len(header).to_bytes(8, "little") + header + content[8 + length :], f"header: {how}"
    if path.suffix == ".safetensors" or rng.random() < 0.2:
        return mutated(content, rng)
    value = json.loads(content)
    if rng.random() < 0.15:
        names = ("AutoConfig", "AutoModelForImageTextToText", "AutoProcessor", "AutoTokenizer", "AutoImageProcessor")
        value |= {"auto_map": dict.fromkeys(names, rng.choice(("modeling_x.X", "x.X", "owner/name--x.X")))}
        if rng.random() < 0.5:
            value |= {"model_type": "x", "processor_class": "X", "tokenizer_class": "X"}
        return json.dumps(value).encode(), "names code"
    text, how = mutated_json(value, rng)
    return text.encode("utf-8", "surrogatepass"), how


def attack_card(material: Any, rng: random.Random, folder: Path) -> Attempt:
    """Put hostile text into a card, or change a card and merge it with a new one."""
    text = "".join(rng.choice((*HOSTILE, "\n", " ", *map(str, ODD_VALUES[:40]))) for _ in range(rng.randint(1, 4)))[
        :3000
    ]
    if rng.random() < 0.5:
        return Attempt(f"facts of {text!r:.60}", lambda: check_card(card_of(text)), ("README.md",))
    content, how = mutated(card_of("a dog").encode(), rng, [text.encode("utf-8", "replace")])
    path = folder / "README.md"
    present = content.decode("utf-8", "replace")

    def merge() -> None:
        merged = merge_cards(present, card_of("a cat"), str(path))
        assert read_card(merged, "merged").metadata["library_name"]
        assert merge_cards(merged, card_of("a cat"), str(path)) == merged, "merging again changes nothing"

    return Attempt(f"card: {how}", merge, (str(path),))


def check_card(card: str) -> None:
    """Check that a card has metadata, and no tags, links or images but its own."""
    read_card(card, "README.md")
    assert ModelCard(card).data.library_name == "transformers"
    found, rendered = harmful_parts(card.split("---\n", 2)[2])
    assert not [tag for tag in found if not tag.startswith(ALLOWED_TAGS)], found
    assert rendered.count("<img") == 1


def attack_recipe(material: Any, rng: random.Random, folder: Path) -> Attempt:
    """Change a recipe."""
    source = rng.choice(sorted(RECIPES.rglob("*.yaml")))
    path = folder / "recipe.yaml"
    if rng.random() < 0.5:
        text, how = mutated_json(yaml.safe_load(source.read_text()), rng)
        content = text.encode("utf-8", "surrogatepass")
    else:
        others = [
            b"a: &a [*a, *a]\n",
            b"a: &a {b: *a}\n",
            b"!!python/object/apply:os.system ['touch executed']\n",
            b"? {a: b}\n: 1\n",
        ]
        content, how = mutated(source.read_bytes(), rng, others)
    if rng.random() < 0.1:
        levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 12))
        content, how = f"l0: &l0 [x]\n{levels}".encode(), "repeated anchors"
    path.write_bytes(content)

    def load() -> None:
        for recipe in Recipe.load_rows(path):
            assert isinstance(recipe.arguments, dict)

    return Attempt(f"recipe: {how}", load, (str(path),))


def attack_configuration(material: Any, rng: random.Random, folder: Path) -> Attempt:
    """Attack a checkpoint, a card or a recipe."""
    kind = rng.random()
    attack = attack_checkpoint if kind < 0.6 else attack_card if kind < 0.85 else attack_recipe
    return attack(material, rng, folder)


def load_model(material: Any) -> None:
    """Caption an image, so that what captioning imports is there."""
    material.pipeline(str(material.images / "scene_000.png"))
