"""`hf-captioners reproduce`, and the recipes of published tables."""

import csv
import json
import re
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from hf_captioners.architectures import list_architectures
from hf_captioners.cli import main
from hf_captioners.metrics.registry import METRICS
from hf_captioners.reproduce.recipe import RECIPES, Recipe, in_percent
from hf_captioners.reproduce.tables import as_markdown
from hf_captioners.reproduce.verification import QUANTILES, smallest_difference
from hf_captioners.training.parser import merge_arguments, read_arguments

FILES = {
    recipe.path.relative_to(RECIPES).as_posix(): (path, recipe)
    for path in sorted(RECIPES.rglob("*.yaml"))
    for recipe in Recipe.load_rows(path)
}
ALL = {name: recipe for name, (_, recipe) in FILES.items()}
# Rows that combine others are not trained: see test_reproduce_combined.py.
CELLS = [
    (name, regime)
    for name, recipe in ALL.items()
    if not (recipe.published and recipe.published.combines)
    for regime in (recipe.published.regimes if recipe.published else (None,))
]
# Sizes of architectures without a language model, which are built at their published size otherwise.
TRANSFORMER = {"hidden_size": 32, "num_attention_heads": 2, "ffn_dim": 32, "encoder_layers": 1, "decoder_layers": 1}
RECURRENT = {"embedding_size": 32, "hidden_size": 32, "refiner_layers": 1}
SMALL = {
    **dict.fromkeys(("transformer", "zodiac", "eta"), TRANSFORMER),
    **dict.fromkeys(("aoanet", "zodiac_aoanet"), RECURRENT),
}
# Tables of this library's own, which are not published elsewhere.
OWN_STUDIES = ("ideas", "languages", "low_data", "self_critical")
# Stands in for Python: "trains" by writing what a seed gives, and fails where the gates are closed too far.
STUB = """
import json, sys
from pathlib import Path
arguments = sys.argv[sys.argv.index("train") + 1:]
value = lambda name: arguments[arguments.index(name) + 1]
output = Path(value("--output_dir"))
with open(output.parents[2] / "calls.txt", "a") as file:
    file.write(" ".join(arguments) + "\\n")
if [text for text in arguments if text.startswith("srau_threshold")][-1].endswith("0.45"):
    sys.exit("the loss is nan, expected a finite number")
figures = {"cider_d": 0.4 + 0.1 * int(value("--seed")), "bleu_4": 0.2, "images": 3}
(output / "test_results.json").write_text(json.dumps(figures))
(output / "card_facts.json").write_text("{}")
"""


@pytest.fixture
def toy(tmp_path):
    """Two rows of a made-up paper, one of which cannot be trained, and a stub instead of Python."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    for row, threshold in (("open", 0.2), ("shut", 0.45)):
        (folder / f"table7_{row}.yaml").write_text(
            "dataset: scenes\nmodel_config: {encoder_layers: 2}\nlearning_rate: 1e-3\nreproduces:\n"
            f"  paper: toy\n  table: 7\n  row: gates {row}\n  seeds: [0, 1]\n  regimes:\n"
            f"    1%:\n      arguments: {{train_share: 0.01, model_config: {{srau_threshold: {threshold}}}}}\n"
            "      published: {bleu_4: [19.5], cider_d: [48.2, 1.5]}\n"
        )
    stub = tmp_path / "stub.py"
    stub.write_text(STUB)
    output = tmp_path / "out"
    typed = ["reproduce", "toy", "--recipes", str(folder), "--output_dir", str(output)]
    return [*typed, "--launcher", f"{sys.executable} {stub}"], output


def calls(output):
    path = output / "calls.txt"
    return path.read_text().splitlines() if path.exists() else []


def test_rows_seeds_and_what_failed(toy, capsys):
    typed, output = toy
    assert main([*typed, "--table", "7", "--data_dir", "images"]) == 1
    printed = capsys.readouterr().out
    assert "| 7 | gates open | 1% | measured, 2 runs | 20.0 ± 0.00 | 45.0 ± 7.07 |" in printed
    assert "| | | | published | 19.5 | 48.2 ± 1.50 |" in printed
    # Student's t with two degrees of freedom, deviation 7.07, two seeds of each row.
    assert f"| | | | smallest difference that 2 seeds show | 0.00 | {4.303 * 50**0.5:.2f} |" in printed
    assert "| 7 | gates shut | 1% | measured, 0 runs, 2 failed |  |  |" in printed
    lines = list(csv.DictReader((output / "results.csv").open()))
    assert [(line["row"], line["seed"], line["status"]) for line in lines] == [
        ("gates open", "0", "done"),
        ("gates open", "1", "done"),
        ("gates shut", "0", "failed"),
        ("gates shut", "1", "failed"),
    ]
    assert "the loss is nan" in lines[2]["error"]
    assert float(lines[1]["cider_d"]) == pytest.approx(0.5)
    assert "--train_share 0.01 --data_dir images --seed 1" in lines[1]["arguments"]
    assert "--model_config encoder_layers=2 srau_threshold=0.2" in lines[1]["arguments"]
    assert not any("--resume" in call for call in calls(output)), "there was nothing to resume"


def test_cards_show_the_row_and_all_its_runs(toy):
    """The first run alone, then both: every card of the row has the mean and deviation, and no other row's figures."""
    typed, output = toy
    main([*typed, "--seeds", "1"])
    folder = output / "table7_open" / "1_percent"
    assert "| CIDEr-D | 48.2 ± 1.50 | 50.0 |" in (folder / "seed_1" / "README.md").read_text()
    main(typed)
    for seed in (0, 1):
        card = (folder / f"seed_{seed}" / "README.md").read_text()
        assert "Reproduces row gates open of table 7 of `toy`, regime 1%:" in card
        assert "| BLEU-4 | 19.5 | 20.0 ± 0.00 |\n| CIDEr-D | 48.2 ± 1.50 | 45.0 ± 7.07 |" in card
        assert "over the seeds 0, 1." in card
    assert not list((output / "table7_shut").rglob("README.md")), "that row failed"


def test_what_is_done_is_not_done_again(toy):
    typed, output = toy
    main([*typed, "--row", "open"])
    assert len(calls(output)) == 2
    assert main([*typed, "--row", "open"]) == 0
    assert len(calls(output)) == 2
    main([*typed, "--row", "shut", "--seeds", "0"])
    main([*typed, "--row", "shut", "--seeds", "0"])
    assert len(calls(output)) == 4, "what failed is tried again"
    assert ["--resume" in call for call in calls(output)] == [False, False, False, True]


def test_a_run_is_never_resumed_with_other_arguments(toy, capsys):
    """Finished and interrupted runs stay as they are; failed runs start again."""
    typed, output = toy
    assert main([*typed, "--row", "open"]) == 0
    assert main([*typed, "--row", "open", "--learning_rate", "5e-4"]) == 2
    assert "(then --learning_rate 1e-3; now --learning_rate 0.0005)" in capsys.readouterr().err
    assert len(calls(output)) == 2
    result = next(output.rglob("seed_0/result.json"))
    known = json.loads(result.read_text())
    result.write_text(json.dumps(known | {"status": "begun", "figures": {}}))
    assert main([*typed, "--row", "open", "--learning_rate", "5e-4"]) == 2
    assert main([*typed, "--row", "open"]) == 0
    assert calls(output)[2].endswith("--resume"), "an interrupted run is resumed"
    main([*typed, "--row", "shut", "--seeds", "0"])
    (output / "table7_shut" / "1_percent" / "seed_0" / "checkpoint-5").mkdir()
    assert main([*typed, "--row", "shut", "--seeds", "0", "--model_config", "srau_threshold=0.3"]) == 2
    assert "was run with other arguments" in capsys.readouterr().err, "there is a checkpoint to resume from"
    (output / "table7_shut" / "1_percent" / "seed_0" / "checkpoint-5").rmdir()
    more = ["--model_config", "srau_threshold=0.3", "--test_metrics", "bleu"]
    assert main([*typed, "--row", "shut", "--seeds", "0", *more]) == 0
    assert "--test_metrics bleu" in calls(output)[-1]
    assert not calls(output)[-1].endswith("--resume")
    assert "--model_config encoder_layers=2 srau_threshold=0.3 " in calls(output)[-1]


def test_a_run_of_a_different_process_is_left_to_it(toy, capsys):
    typed, output = toy
    folder = output / "table7_open" / "1_percent" / "seed_0"
    folder.mkdir(parents=True)
    with FileLock(folder / ".reproduce.lock"):
        assert main([*typed, "--row", "open"]) == 0
    assert "is executed by another process" in capsys.readouterr().out
    assert len(calls(output)) == 1 and not (folder / "result.json").exists()
    assert main([*typed, "--row", "open"]) == 0
    assert len(calls(output)) == 2


def test_rows_of_several_calls_stand_in_one_table(toy):
    typed, output = toy
    main([*typed, "--row", "open", "--seeds", "0"])
    main([*typed, "--row", "shut", "--seeds", "0"])
    assert len((output / "results.csv").read_text().splitlines()) == 3
    page = (output / "results.md").read_text()
    assert "gates open" in page and "gates shut" in page


def test_a_study_of_ones_own_has_what_was_measured(toy):
    typed, output = toy
    recipe = Path(typed[3], "table7_open.yaml")
    recipe.write_text(re.sub(r" +published.*\n", "", recipe.read_text()))
    other = recipe.with_name("table7_shut.yaml")
    other.unlink()
    assert main(typed) == 0
    page = (output / "results.md").read_text()
    assert "| 7 | gates open | 1% | measured, 2 runs | 45.0 ± 7.07 | 20.0 ± 0.00 |" in page
    assert "published" not in page
    assert not list(output.rglob("README.md")), "cards stay as they are"


def test_a_dry_run_prints_commands(toy, capsys):
    typed, output = toy
    assert main([*typed, "--dry_run", "--max_steps", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("hf-captioners train --dataset scenes")
    assert "--max_steps 2" in lines[0]
    assert not calls(output)


def test_settings_of_a_machine_override_the_recipes(toy, tmp_path, capsys):
    typed, _ = toy
    (tmp_path / "machine.yaml").write_text("learning_rate: 5e-4\ndata_dir: here\nmodel_config: {encoder_layers: 3}\n")
    machine = ["--with", str(tmp_path / "machine.yaml")]
    assert main([*typed, "--row", "open", *machine, "--dry_run", "--data_dir", "there"]) == 0
    line = capsys.readouterr().out.splitlines()[0]
    assert "--learning_rate 5e-4" in line and "--data_dir there" in line and "1e-3" not in line
    assert "--model_config encoder_layers=3 srau_threshold=0.2 " in line


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--table", "8"], "toy --table 7"),
        (["--regime", "3%"], "regime '3%'"),
        (["--with", "nowhere.yaml"], "no recipe nowhere.yaml"),
        (["--recipes", "nowhere"], "no folder nowhere"),
    ],
)
def test_what_does_not_exist_is_reported(toy, more, said, capsys):
    assert main([*toy[0], *more]) == 2
    assert said in capsys.readouterr().err


def test_deviation_is_that_of_a_sample():
    assert in_percent([0.4, 0.5, 0.6]) == pytest.approx([50, 10])
    assert in_percent([0.4]) == [40]
    assert in_percent([]) == []


def test_a_table_without_runs_is_empty():
    assert as_markdown(list(ALL.values()), []).count("\n") == 2


@pytest.mark.parametrize("content", ["reproduces: {paper: p}", "reproduces: [1]", "reproduces: {regimes: 3}"])
def test_an_incomplete_row_is_reported(tmp_path, content):
    path = tmp_path / "recipe.yaml"
    path.write_text(content)
    with pytest.raises(ValueError, match="needs paper, table, row and regimes"):
        Recipe.load(path)


def test_a_regime_and_a_second_file(tmp_path):
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(
        "seed: 1\nmodel_config: {a: 1, b: 2}\nreproduces: {paper: p, table: 1, row: r, regimes: {x: {arguments: "
        "{model_config: {b: 3}}}}}\n"
    )
    second.write_text("seed: 5\n")
    parts = [Recipe.load(first).with_regime("x"), Recipe.load(second).arguments, {"bf16": "true"}]
    assert merge_arguments(*parts) == {"seed": 5, "model_config": {"a": 1, "b": 3}, "bf16": "true"}
    with pytest.raises(ValueError, match="`regime=y`.* are x"):
        Recipe.load(first).with_regime("y")


TABLE = """
seed: 1
model_config: {encoder_layers: 2, decoder_layers: 3}
reproduces:
  paper: toy
  table: 3
  regimes: {all: {arguments: {train_share: 0.5}}}
rows:
  wide:
    model_config: {encoder_layers: 4}
    reproduces: {row: wide, regimes: {all: {published: {bleu_4: [20.0]}}}}
  plain:
    learning_rate: 1e-3
    reproduces: {row: plain, seeds: [7]}
"""


def test_rows_of_one_file(tmp_path, monkeypatch, capsys):
    """A row adds to what the file's rows share, replaces it field by field, and is named like a file of the folder."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "rows" / "table3.yaml"
    file.parent.mkdir()
    file.write_text(TABLE)
    wide, plain = (Recipe.load(f"rows/{name}.yaml") for name in ("wide", "plain"))
    assert wide.arguments == {"seed": 1, "model_config": {"encoder_layers": 4, "decoder_layers": 3}}
    assert wide.with_regime("all")["train_share"] == 0.5
    assert wide.published.regimes["all"].published == {"bleu_4": [20.0]}
    assert plain.arguments["model_config"] == {"encoder_layers": 2, "decoder_layers": 3}
    assert (plain.published.row, plain.published.table, plain.published.seeds) == ("plain", "3", [7])
    assert plain.published.regimes["all"].published == {}
    assert main(["reproduce", "toy", "--recipes", "rows", "--output_dir", "out", "--dry_run"]) == 0
    outputs = re.findall(r"--output_dir (\S+)", capsys.readouterr().out)
    assert outputs == ["out/wide/all/seed_42", "out/plain/all/seed_7"]


@pytest.mark.parametrize(
    ("old", "new", "source", "said"),
    [
        ("", "", "table3.yaml", "has 2 rows, expected one recipe.*for example .*wide.yaml"),
        ("", "", "wid.yaml", "Did you mean .*wide.yaml"),
        ("learning_rate", "learning_rat", "plain.yaml", "table3.yaml:13: There is no argument `learning_rat`"),
        ("seed: 1", "sead: 1", "plain.yaml", "table3.yaml:2: There is no argument `sead`"),
        ("train_share", "train_shar", "plain.yaml", "table3.yaml:7: There is no argument `train_shar`"),
        ("  plain:", "  beside:", "wide.yaml", "table3.yaml:12: .*beside.*is the name of a file"),
        ("  plain:", "  ../plain:", "wide.yaml", "table3.yaml:12: .*'../plain'"),
        ("  wide:\n", "  wide: 3\n  other:\n", "other.yaml", "table3.yaml:8: expected `rows`"),
    ],
)
def test_wrong_rows_are_refused_with_their_line(tmp_path, old, new, source, said):
    (tmp_path / "table3.yaml").write_text(TABLE.replace(old, new) if old else TABLE)
    (tmp_path / "beside.yaml").write_text("seed: 1\n")
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        Recipe.load(tmp_path / source)


def test_two_files_with_one_row(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(TABLE)
    with pytest.raises(ValueError, match="a.yaml and b.yaml both have a row wide"):
        Recipe.load(tmp_path / "wide.yaml")


@pytest.mark.parametrize("name", ALL)
def test_a_recipe_says_what_it_is(name):
    """Table, command, hardware, published and measured stand at its head; published metrics are metrics of ours."""
    head = re.match("(#.*\n)+", FILES[name][0].read_text())[0].lower()
    published = ALL[name].published
    own = published is not None and published.paper in OWN_STUDIES
    for word in ("hf-captioners", "hardware", "measured", *(() if own else ("table", "published"))):
        assert word in head, word
    if published is None or own:
        return
    names = {metric for regime in published.regimes.values() for metric in regime.published}
    assert names
    assert all(metric.startswith(tuple(METRICS)) for metric in names), names
    assert not any(regime.published == {} for regime in published.regimes.values())


@pytest.mark.parametrize(("name", "regime"), CELLS)
def test_a_recipe_is_read_by_the_dataclasses_of_the_command_line(name, regime, tmp_path):
    from hf_captioners.data import list_datasets

    values = merge_arguments(ALL[name].with_regime(regime), {"output_dir": str(tmp_path), "use_cpu": True})
    start, data, training, _, _ = read_arguments(values)
    assert data.dataset in list_datasets()
    assert training.output_dir == str(tmp_path)
    folder, published = RECIPES.joinpath(name).parent.name, ALL[name].published
    # A paper's folder also holds the rows of the captioners that it compares with.
    paper = published.paper if published is not None else start.architecture
    assert start.model or folder in (paper, *OWN_STUDIES)
    assert start.architecture in list_architectures()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "regime"), CELLS)
def test_a_recipe_runs_two_steps(name, regime, language_model, vision_model, attribute_detector, tmp_path):
    """On drawn scenes, with tiny models from a second file, as in docs/training_recipes.md."""
    tiny, started = tmp_path / "tiny.yaml", tmp_path / "started"
    arguments = ALL[name].with_regime(regime)
    sizes = SMALL.get(arguments.get("architecture", ""), {})
    if not sizes and "decoder_layers" in arguments.get("model_config", {}):
        sizes = {"decoder_layers": 1}  # the tiny language model has fewer layers than a recipe may keep
    tiny.write_text(
        "dataset: scenes\ndata_options: {num_images: {train: 12, validation: 4, test: 4}, image_size: 32}\n"
        f"vision_model: {vision_model}\nimage_size: 32\ntrain_share: 0.5\nmax_steps: 2\nuse_cpu: true\n"
        "per_device_train_batch_size: 4\ntest_metrics: [bleu, cider_d]\ngeneration_max_new_tokens: 5\n"
        + (f"language_model: {language_model}\n" if "language_model" in arguments else "")
        + (f"model_config: {json.dumps(sizes)}\n" if sizes else "")
        + (f"model: {started}\n" if "model" in arguments else "")
        + (
            f"attribute_detector: {attribute_detector}\nmin_word_count: 1\n"
            if arguments.get("architecture") == "eta"
            else ""
        )
        + ("scst_after_epochs: 1\ncross_entropy_batch_size: 10\n" if arguments.get("scst") else "")
    )
    if "model" in arguments:
        parts = ["--language_model", str(language_model), "--vision_model", str(vision_model), "--image_size", "32"]
        options = ['num_images={"train": 4, "validation": 2}', "image_size=32"]
        drawn = ["--dataset", "scenes", "--data_options", *options, "--max_steps", "1", "--use_cpu"]
        assert main(["train", *drawn, *parts, "--output_dir", str(started)]) == 0
    chosen = [] if regime is None else ["--regime", regime]
    output = tmp_path / "run"
    typed = [str(RECIPES / name), str(tiny), *chosen, "--output_dir", str(output), "--test_split", "test"]
    assert main(["train", *typed]) == 0
    assert json.loads((output / "trainer_state.json").read_text())["global_step"] == 2
    figures = json.loads((output / "test_results.json").read_text())
    assert figures["images"] == 4
    assert 0 <= figures["bleu_1"] <= 1
    drawn = json.loads((output / "subset.json").read_text())
    assert len(drawn["ids"]) == (30 if drawn["unit"] == "caption" else 6)


def measured_before(folder, mean, deviation):
    """Give the rows of the toy study figures of earlier runs, in percent."""
    for path in folder.glob("*.yaml"):
        measured = f"      measured: {{cider_d: [{mean}, {deviation}]}}\n"
        path.write_text(path.read_text().replace("srau_threshold: 0.45", "srau_threshold: 0.2") + measured)


# The stub gives a run of seed s a CIDEr-D of 40 + 10 s percent: far from 45 for seeds above 1,000.
@pytest.mark.parametrize(("mean", "deviation", "inside"), [(45.0, 5.0, "OUTSIDE"), (5e6, 5e6, "inside")])
def test_random_cells_are_run_again_with_new_seeds(toy, capsys, mean, deviation, inside):
    typed, output = toy
    measured_before(output.parent / "recipes", mean, deviation)
    assert main([*typed, "--verify"]) == 0
    printed = capsys.readouterr().out
    low = mean - 12.706 * deviation * 1.5**0.5  # two seeds: one degree of freedom
    assert f"is {inside} the interval {low:.1f} to" in printed
    assert f"{2 if inside == 'inside' else 0} of 2 figures lie in" in printed
    seeds = [int(path.name.removeprefix("seed_")) for path in output.rglob("seed_*")]
    assert len(seeds) == 2 and min(seeds) >= 1000
    assert not (output / "results.md").exists(), "they are not part of the study's own runs"


def test_what_cannot_be_verified(toy, capsys):
    typed, output = toy
    assert main([*typed, "--verify"]) == 2
    assert "none of these recipes has `measured` figures" in capsys.readouterr().err
    measured_before(output.parent / "recipes", 45.0, 5.0)
    assert main([*typed, "--verify", "--seeds", "3"]) == 2
    assert "`--verify` draws its own seeds" in capsys.readouterr().err


def test_intervals_of_seeds_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    for degrees, value in enumerate(QUANTILES, 1):
        assert value == pytest.approx(stats.t.ppf(0.975, degrees), abs=5e-4)
    first, second = [1.0, 2.0, 4.0], [3.0, 3.5, 6.0]
    count, smallest = smallest_difference([first, second, [9.0]])
    assert count == 3
    low, high = stats.ttest_ind(first, second).confidence_interval(0.95)
    assert (high - low) / 2 == pytest.approx(smallest, rel=1e-3)
    assert smallest_difference([[1.0], []]) is None
