"""`hf-captioners train` on every data set, as a person types it."""

import importlib.util
import json
from pathlib import Path

import pytest
from filelock import FileLock

from hf_captioners.cli import main
from hf_captioners.data import list_datasets, load_captions
from hf_captioners.data.image_digests import image_digests
from hf_captioners.features.feature_store import FeatureStore
from hf_captioners.hub.cards import figure_name
from hf_captioners.names import read_named_values
from tests.variants import slow_unless

FOLDERS = importlib.util.spec_from_file_location("dataset_folders", Path(__file__).with_name("dataset_folders.py"))
dataset_folders = importlib.util.module_from_spec(FOLDERS)
FOLDERS.loader.exec_module(dataset_folders)
FAST = ["--use_cpu", "--disable_tqdm", "true", "--generation_num_beams", "1", "--generation_max_new_tokens", "5"]
TWO_STEPS = ["--max_steps", "2", "--per_device_train_batch_size", "4", *FAST]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def parts(language_model, vision_model):
    return ["--language_model", language_model, "--vision_model", vision_model]


QUICK = ("caption_folder", "by_columns", "coco", "flickr8k", "scenes")


TRAINABLE = [name for name in list_datasets() if name not in dataset_folders.FOR_EVALUATION]


@pytest.mark.parametrize("name", slow_unless(QUICK.__contains__, TRAINABLE))
def test_two_steps_on_every_data_set(name, scenes, parts, tmp_path, capsys):
    typed = ["--dataset", name, *dataset_folders.make_folder(name, tmp_path / "data", scenes)]
    assert main(["train", *typed, *parts, *TWO_STEPS, "--output_dir", str(tmp_path / "run")]) == 0
    assert "Best evaluation" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "trainer_state.json").read_text())["global_step"] == 2
    captions = [json.loads(line) for line in next(Path(tmp_path, "run/captions").glob("*.jsonl")).open()]
    assert len(captions) == 2, "the two validation images"


@pytest.mark.parametrize("name", list_datasets())
def test_streams_give_the_same_rows_in_the_same_order(name, scenes, tmp_path):
    typed = dataset_folders.make_folder(name, tmp_path / "data", scenes)
    options = read_named_values(typed[typed.index("--data_options") + 1 :] if "--data_options" in typed else [], "")
    folder = None if name == "scenes" else str(tmp_path / "data")
    rows, streamed = (load_captions(name, folder, streaming=streaming, **options) for streaming in (False, True))
    counts = {split: len(part) for split, part in rows.items()}
    assert streamed.keys() == rows.keys()
    assert counts == ({"validation": 6} if name in dataset_folders.FOR_EVALUATION else {"train": 4, "validation": 2})
    for split, part in rows.items():
        assert [comparable(row) for row in streamed[split]] == [comparable(row) for row in part]


def test_a_data_set_for_evaluation_has_nothing_to_train_on(scenes, parts, tmp_path, capsys):
    typed = ["--dataset", "nocaps", *dataset_folders.make_folder("nocaps", tmp_path / "data", scenes)]
    assert main(["train", *typed, *parts, *TWO_STEPS, "--output_dir", str(tmp_path / "run")]) == 2
    assert "are validation, expected a split 'train'" in capsys.readouterr().err


def comparable(row):
    """A row with the pixels of its images in their place."""
    shown = row["images"] if "images" in row else [row["image"]]
    pixels = [(image.mode, image.size, image.tobytes()) for image in shown]
    return {**row, "image": None, "images": pixels}


def test_a_share_of_the_captions_is_drawn_kept_and_used_again(scenes, parts, tmp_path):
    folder = ["--dataset", "caption_folder", *dataset_folders.make_folder("caption_folder", tmp_path / "data", scenes)]
    drawn = []
    for more in (["--train_share", "0.5"], ["--train_share", "0.5", "--share_seed", "7"]):
        output = tmp_path / f"run{len(drawn)}"
        assert main(["train", *folder, *parts, *TWO_STEPS, *more, "--output_dir", str(output)]) == 0
        drawn.append(json.loads((output / "subset.json").read_text()))
    assert [one["seed"] for one in drawn] == [42, 7]
    assert drawn[0]["ids"] != drawn[1]["ids"]
    again = ["--subset", str(tmp_path / "run1" / "subset.json"), "--output_dir", str(tmp_path / "again")]
    assert main(["train", *folder, *parts, *TWO_STEPS, *again]) == 0
    assert json.loads((tmp_path / "again" / "subset.json").read_text()) == drawn[1]
    weights = [Path(tmp_path, name, "model.safetensors").read_bytes() for name in ("run0", "run1", "again")]
    assert weights[1] == weights[2] != weights[0]


def test_a_share_and_a_list_exclude_each_other(tmp_path, capsys):
    typed = ["train", "--train_dir", ".", "--train_share", "0.5", "--subset", ".", "--output_dir", str(tmp_path)]
    assert main(typed) == 2
    assert "give one" in capsys.readouterr().err


def test_the_end_of_a_run_is_tested(scenes, parts, tmp_path, capsys):
    folder = ["--dataset", "caption_folder", *dataset_folders.make_folder("caption_folder", tmp_path / "data", scenes)]
    output = ["--output_dir", str(tmp_path / "run")]
    assert main(["train", *folder, *parts, *TWO_STEPS, *output, "--test_split", "nowhere"]) == 2
    assert "has no split 'nowhere'" in capsys.readouterr().err
    more = ["--test_split", "validation", "--test_metrics", "rouge_l", "cider_d", "--test_tokenizer", "none"]
    more += ["--shuffled_control"]
    assert main(["train", *folder, *parts, *TWO_STEPS, *output, *more]) == 0
    figures = json.loads((tmp_path / "run" / "test_results.json").read_text())
    assert figures["images"] == 2
    assert {"rouge_l", "cider_d", "cider_d_shuffled"} <= figures.keys()
    assert figures["tokenizer"] == "none"
    card = (tmp_path / "run" / "README.md").read_text()
    for name in ("rouge_l", "cider_d", "cider_d_shuffled"):
        assert f"| {figure_name(name)} | {figures[name]:.4f} |" in card
    assert "Tokenizer: `none`" in card


def test_one_run_of_a_recipe_stands_beside_the_published_row(scenes, parts, tmp_path, capsys):
    folder = ["--dataset", "caption_folder", *dataset_folders.make_folder("caption_folder", tmp_path / "data", scenes)]
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "test_split: validation\nreproduces: {paper: visualgpt, table: 1, row: VisualGPT, regimes: {1%: {published: "
        "{bleu_1: [69.3, 0.84]}}}}\n"
    )
    output = tmp_path / "run"
    assert main(["train", *folder, "--reproduces", str(recipe), "2%", "--output_dir", str(output)]) == 2
    assert "--regime 2%" in capsys.readouterr().err
    typed = ["train", str(recipe), "--regime", "1%", *folder, *parts, *TWO_STEPS, "--output_dir", str(output)]
    assert main([*typed, "--seed", "3"]) == 0
    measured = 100 * json.loads((output / "test_results.json").read_text())["bleu_1"]
    card = (output / "README.md").read_text()
    assert "Reproduces row VisualGPT of table 1 of `visualgpt`, regime 1%" in card
    assert f"| BLEU-1 | 69.3 ± 0.84 | {measured:.1f} |" in card
    assert "Measured with the seed 3." in card


def test_reports_are_generated_as_long_as_reports_are(scenes, parts, tmp_path):
    typed = ["--dataset", "iu_xray", *dataset_folders.make_folder("iu_xray", tmp_path / "data", scenes)]
    given_arguments = []

    def record(*given, **options):
        given_arguments.append(given[2])
        raise RuntimeError("recorded")

    for more in ([], ["--generation_max_new_tokens", "20"]):
        output = str(tmp_path / f"run{len(more)}")
        with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="recorded"):
            patch.setattr("hf_captioners.training.running.train_captioner", record)
            main(["train", *typed, *parts, "--use_cpu", *more, "--output_dir", output])
    assert [(one.generation_max_new_tokens, one.generation_num_beams) for one in given_arguments] == [(60, 3), (20, 3)]


def test_both_views_of_a_study_are_learned_from(scenes, parts, tmp_path):
    """Stored features of a study are those of both of its X-rays."""
    typed = ["--dataset", "iu_xray", *dataset_folders.make_folder("iu_xray", tmp_path / "data", scenes)]
    cache = ["--feature_cache_dir", str(tmp_path / "features")]
    assert main(["train", *typed, *parts, *TWO_STEPS, *cache, "--output_dir", str(tmp_path / "run")]) == 0
    (folder,) = (path for path in (tmp_path / "features").iterdir() if path.is_dir())
    options = {"protocol": "r2gen", "allow_partial": True}
    rows = load_captions("iu_xray", tmp_path / "data", "train", **options)
    store = FeatureStore(folder)
    keys = image_digests(rows.select_columns(["images"]))
    assert [store[key].features.shape for key in keys] == [(32, 16)] * 4  # twice 16 cells
    first, second = store[keys[0]].features, store[keys[1]].features
    assert (first[16:] == second[:16]).all()  # the second view of one study is the first of the next


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--dataset", "nowhere"], "no data set 'nowhere'"),
        (["--dataset", "coco", "--data_dir", "missing"], "missing"),
        (["--data_dir", ".", "--train_dir", "."], "give one"),
        (["--data_dir", "a", "--data_options", "protocol"], "NAME=VALUE"),
        (["--data_dir", ".", "--data_options", "colour=red"], "has no option colour"),
        (["--data_dir", ".", "--features", ".", "--validation_dir", "."], "exclude each other"),
    ],
)
def test_bad_input_is_answered(parts, tmp_path, capsys, typed, said):
    assert main(["train", *typed, *parts, *FAST, "--output_dir", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_that_another_run_writes_to_is_left_alone(images, parts, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("hf_captioners.output_files.PATIENCE", 0.1)
    typed = ["train", "--train_dir", str(images), *parts, *TWO_STEPS, "--validation_share", "0.3"]
    (tmp_path / "run").mkdir()
    with FileLock(tmp_path / "run" / ".run.lock"):
        assert main([*typed, "--output_dir", str(tmp_path / "run")]) == 2
    assert "Another run is writing into" in capsys.readouterr().err
    assert main([*typed, "--output_dir", str(tmp_path / "run")]) == 0
