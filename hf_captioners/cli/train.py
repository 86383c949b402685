"""`hf-captioners train`: a captioner from a folder of images with captions."""

import argparse
import dataclasses
import functools
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from hf_captioners.reproduce.recipe import NULL, Recipe

NAME = "train"
HELP = "train a captioner on your own images and captions"


@dataclasses.dataclass
class TestArguments:
    """What the finished captioner is tested on.

    Args:
        test_split: split to caption; None: no test.
        test_metrics: names of metrics.
        test_tokenizer: how captions become words.
    """

    test_split: str | None = dataclasses.field(
        default=None, metadata={"help": "At the end, caption this split and write test_results.json."}
    )
    test_metrics: list[str] = dataclasses.field(
        default_factory=lambda: ["bleu", "rouge_l", "cider_d"],
        metadata={"help": "Metrics of that; default: bleu rouge_l cider_d."},
    )
    test_tokenizer: Literal["ptb", "none"] = dataclasses.field(
        default="ptb", metadata={"help": "none: words are split already, as reports of radiographs are scored."}
    )


def parent_parsers() -> list[argparse.ArgumentParser]:
    """Arguments of the starting point, the data, the training run and its test; `null` is None where that is known."""
    from transformers import HfArgumentParser

    kinds = (*argument_types(self_critical=True), TestArguments)
    hints = {name: hint for kind in kinds for name, hint in typing.get_type_hints(kind).items()}
    parser = HfArgumentParser(kinds, add_help=False, allow_abbrev=False)
    for action in parser._actions:
        action.default = argparse.SUPPRESS  # what is not typed shall not be there: the dataclasses know their defaults
        if type(None) in typing.get_args(hints[action.dest]) and callable(action.type) and not action.choices:
            action.type = _or_null(action.type)
    return [parser]


def _or_null(read: Callable[[str], Any]) -> Callable[[str], Any]:
    @functools.wraps(read)
    def read_or_null(text: str) -> Any:
        return None if text == NULL else read(text)

    return read_or_null


def argument_types(self_critical: bool) -> tuple[type, ...]:
    """The dataclasses that arguments are read into."""
    from hf_captioners.training.arguments import CaptioningTrainingArguments
    from hf_captioners.training.data_arguments import DataArguments
    from hf_captioners.training.scst_arguments import SCSTArguments
    from hf_captioners.training.starting import ModelArguments

    return ModelArguments, DataArguments, SCSTArguments if self_critical else CaptioningTrainingArguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What only the command line knows."""
    from transformers.hf_argparser import string_to_bool

    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on from the last complete checkpoint in --output_dir, if any; or from --resume_from_checkpoint",
    )
    parser.add_argument(
        "--scst",
        type=string_to_bool,
        nargs="?",
        const=True,
        default=False,
        help="self-critical training: on the rewards of captions that the model draws itself",
    )
    parser.add_argument(
        "--reproduces",
        nargs=2,
        metavar=("RECIPE", "REGIME"),
        help="tell the row that this recipe reproduces, beside the figures of --test_split, on the card",
    )
    parser.epilog = (
        "YAML files of these arguments may be given first, the later ones override: hf-captioners train recipe.yaml "
        "[--regime NAME] [--NAME VALUE]"
    )


def run(args: argparse.Namespace) -> int:
    """Load, train, save; a summary on stdout."""
    from hf_captioners.output_files import only_run_in, require_writable_folder
    from hf_captioners.training.checkpoints import require_complete

    start_kind, data_kind, training_kind = argument_types(args.scst)
    _refuse_unread(args, training_kind)
    data = data_kind(**_typed(args, data_kind))
    start = start_kind(**_typed(args, start_kind))
    training = training_kind(**(data.generation_arguments | _typed(args, training_kind)))
    final = TestArguments(**_typed(args, TestArguments))
    require_writable_folder(training.output_dir)
    if training.resume_from_checkpoint:
        require_complete(training.resume_from_checkpoint)
    if args.reproduces:
        recipe, regime = args.reproduces
        Recipe.load(Path(recipe)).with_regime(regime)  # whether there is such a row is known before any work
    if final.test_split:
        from hf_captioners.metrics import compute_caption_metrics

        # Whether all metrics can be computed here, METEOR's tables among what they need, is known before any work.
        compute_caption_metrics(["a dog", "a cat"], [["a dog"], ["a cat"]], final.test_metrics, final.test_tokenizer)
    with only_run_in(training.output_dir, training.process_index == 0):
        return _train(args, start, data, training, final)


def _typed(args: argparse.Namespace, kind: type) -> dict[str, Any]:
    names = (field.name for field in dataclasses.fields(kind) if field.init)
    return {name: getattr(args, name) for name in names if hasattr(args, name)}


def _refuse_unread(args: argparse.Namespace, training_kind: type) -> None:
    """Refuse arguments of self-critical training where there is none.

    Raises:
        ValueError: there are some.
    """
    known = {field.name for field in dataclasses.fields(training_kind)}
    unread = [name for name in _typed(args, argument_types(self_critical=True)[-1]) if name not in known]
    if unread:
        raise ValueError(f"`--{unread[0]}` belongs to self-critical training: pass --scst too.")


def _train(args: argparse.Namespace, start: Any, data: Any, training: Any, final: TestArguments) -> int:
    from transformers import set_seed

    from hf_captioners.training import CaptioningTrainer, SCSTTrainer, last_complete_checkpoint, last_scst_checkpoint
    from hf_captioners.training.data_arguments import fit_to_features, load_training_data
    from hf_captioners.training.starting import start_captioner

    find_checkpoint, trainer_kind = (
        (last_scst_checkpoint, SCSTTrainer) if args.scst else (last_complete_checkpoint, CaptioningTrainer)
    )
    checkpoint = training.resume_from_checkpoint or find_checkpoint(training.output_dir)
    begun = checkpoint or next(Path(training.output_dir).glob("checkpoint-*"), None)
    resume = args.resume or training.resume_from_checkpoint is not None
    if begun is not None and not resume:
        raise FileExistsError(
            f"{training.output_dir} holds a run already ({begun}). Pass --resume to go on with it, or another "
            "--output_dir."
        )
    train_rows, validation_rows = load_training_data(data, training.seed)
    if data.drawn is not None and training.process_index == 0:
        data.drawn.save(Path(training.output_dir, "subset.json"))
    test_rows = data.test_rows(final.test_split) if final.test_split else None
    fit_to_features(start, data)
    set_seed(training.seed)
    captions = (caption for captions in train_rows["captions"] for caption in captions)
    model, processor = start_captioner(start, captions)
    trainer = trainer_kind(
        model, training, train_dataset=train_rows, eval_dataset=validation_rows, processing_class=processor
    )
    if resume:
        print(f"Going on from {checkpoint}." if checkpoint else "There is no complete checkpoint: starting anew.")
    result = trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    trainer.save_state()
    trainer.save_metrics("train", result.metrics)
    if test_rows is not None:
        test(trainer, test_rows, final, args.reproduces)
        trainer.save_model()  # now its card tells the figures, too
    print(summary(trainer, training))
    return 0


def test(trainer: Any, rows: Any, final: TestArguments, reproduces: tuple[str, str] | None) -> None:
    """Caption a split with the finished captioner, write all figures beside it, and tell the card."""
    from hf_captioners.output_files import as_json, write_text

    figures = trainer.test(rows, final.test_metrics, final.test_tokenizer)
    if reproduces:
        recipe, regime = reproduces
        row = Recipe.load(Path(recipe)).published
        assert row is not None
        trainer.card.reproduces = row.beside(regime, {trainer.args.seed: figures})
    if trainer.is_world_process_zero():
        told = {**figures.conditions, **figures, "images": len(rows)}
        write_text(Path(trainer.args.output_dir, "test_results.json"), as_json(told) + "\n")


def summary(trainer: Any, training: Any) -> str:
    """What came out, and what to type next."""
    lines = [f"Saved the captioner in {training.output_dir}."]
    key = training.best_metric_key
    evaluated = [entry for entry in trainer.state.log_history if key in entry]
    if evaluated:
        choose = max if training.greater_is_better else min
        best = choose(evaluated, key=lambda entry: entry[key])
        figures = ", ".join(
            f"{name} {best[f'eval_{name}']:.4f}" for name in ("cider_d", "bleu_4", "loss") if f"eval_{name}" in best
        )
        when = f"at epoch {best['epoch']:g}" if best["step"] else "that of the start, which no later one surpassed"
        lines.append(f"Best evaluation, {when}: {figures}.")
    lines.append(f"Caption with it: hf-captioners caption IMAGES --model {training.output_dir}")
    return "\n".join(lines)
