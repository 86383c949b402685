"""Train a small captioner of each architecture on 500 photographs, and evaluate it on the same photographs.

    python benchmarks/memorization.py --data_dir $HF_CAPTIONERS_DATA_DIR/flickr8k \
        --vision_model $HF_CAPTIONERS_DATA_DIR/mobilenetv2/hf --architectures transformer aoanet

An architecture that can learn describes photographs that it was trained on nearly as their references do; the shuffled
control scores the same captions against the references of the adjacent photograph. The results are no measure of
captions of other photographs. Results are added to `benchmarks/results/memorization.json`; the training folders hold
the captioners.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from provenance import records_of, write_results
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from hf_captioners.data import load_captions

COMMON = (
    "--group_captions --lr_scheduler_type linear --eval_strategy no --save_strategy no --load_best_model_at_end false "
    "--test_split validation --test_metrics cider_d bleu --shuffled_control --logging_steps 100 --seed 0 --use_cpu "
    "--image_size 288 --disable_tqdm true"
)
TRANSFORMER = (
    "--per_device_train_batch_size 50 --learning_rate 1e-3 --num_train_epochs 40 --min_word_count 1 --model_config "
    "vision_grid_size=7 hidden_size=128 num_attention_heads=4 ffn_dim=512 encoder_layers=2 decoder_layers=2 dropout=0 "
)
ATTENTION_LSTM = (
    "--per_device_train_batch_size 15 --learning_rate 1.5e-3 --max_grad_norm 0 --num_train_epochs 26 --model_config "
    "embedding_size=256 hidden_size=256 num_heads=4 dropout=0 context_dropout=0 aoa_dropout=0 "
)
OPTIONS = {
    "transformer": TRANSFORMER + "region_dropout=0 attention_dropout=0 embedding_dropout=0",
    "m2_transformer": TRANSFORMER,
    "aoa_transformer": "--language_model {folder}/gpt2 --random_language_model --per_device_train_batch_size 50 "
    "--learning_rate 1e-3 --num_train_epochs 40 --model_config vision_grid_size=7 encoder_layers=2 aoa_dropout=0 "
    "cross_attention_dropout=0 encoder_dropout=0",
    "aoanet": ATTENTION_LSTM + "vision_grid_size=[1,2,4] refiner_layers=2 attention_dropout=0 residual_dropout=0",
    "image_transformer": ATTENTION_LSTM + "encoder_layers=2 encoder_dropout=0",
    "zodiac": TRANSFORMER + "region_dropout=0 zodiac_dropout=0",
    "zodiac_aoanet": ATTENTION_LSTM + "vision_grid_size=[1,2,4] refiner_layers=2 residual_dropout=0 zodiac_dropout=0",
    "eta": "--attribute_detector {folder}/detector " + TRANSFORMER,
}
DETECTOR = "--num_train_epochs 8 --dropout 0 --image_size 288 --vision_grid_size 7 --use_cpu --seed 0"


def link_photographs(data_dir: Path, folder: Path, count: int) -> None:
    """Write a data folder whose training and validation splits are the same `count` photographs."""
    rows = (data_dir / "train" / "metadata.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    for split in ("train", "validation"):
        (folder / split).mkdir(parents=True, exist_ok=True)
        for row in rows:
            name = json.loads(row)["file_name"]
            if not (link := folder / split / name).exists():
                link.symlink_to((data_dir / "train" / name).absolute())
        (folder / split / "metadata.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")


def write_language_model(folder: Path, data: Path) -> None:
    """Write a small GPT-2 with random weights, and a tokenizer of the captions."""
    captions = [
        caption for row in load_captions("caption_folder", data_dir=data)["train"] for caption in row["captions"]
    ]
    base, end = ByteLevelBPETokenizer(), "<|endoftext|>"
    base.train_from_iterator(captions, vocab_size=2000, special_tokens=[end], show_progress=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=base._tokenizer, bos_token=end, eos_token=end, unk_token=end)
    tokenizer.save_pretrained(folder)
    ends = {"bos_token_id": tokenizer.eos_token_id, "eos_token_id": tokenizer.eos_token_id}
    sizes = {"vocab_size": len(tokenizer), "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 64}
    rates = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
    GPT2LMHeadModel(GPT2Config(**sizes, **rates, **ends)).save_pretrained(folder)


def run(command: list[str], log: Path) -> float:
    """Run a command of the library; return its seconds."""
    start = time.monotonic()
    with open(log, "a", encoding="utf-8") as output:
        subprocess.run([sys.executable, "-m", "hf_captioners.cli", *command], check=True, stdout=output, stderr=output)
    return time.monotonic() - start


def train(architecture: str, folder: Path, vision_model: str) -> dict:
    """Train and evaluate a captioner; return command, seconds and scores."""
    data, output, log = folder / "photographs", folder / architecture, folder / f"{architecture}.log"
    options, parts, seconds = OPTIONS[architecture], ["--vision_model", vision_model], 0.0
    if "/gpt2" in options:
        write_language_model(folder / "gpt2", data)
    if "/detector" in options:
        detector = ["--data_dir", str(data), "--output_dir", str(folder / "detector"), *DETECTOR.split()]
        seconds = run(["attributes", "train", *detector, *parts], log)
    cached = ["--feature_cache_dir", str(folder / "features")]
    chosen = f"{COMMON} {options.format(folder=folder)}".split()
    places = ["--train_dir", str(data), "--output_dir", str(output)]
    seconds += run(["train", "--architecture", architecture, *places, *parts, *cached, *chosen], log)
    figures = json.loads((output / "test_results.json").read_text(encoding="utf-8"))
    kept = {name: figures[name] for name in ("cider_d", "cider_d_shuffled", "bleu_4", "distinct", "images")}
    return {"options": options.format(folder="runs"), "seconds": round(seconds), **kept}


def main() -> None:
    """Train all architectures, and add their scores to the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="folder of Flickr8k, with train/metadata.jsonl")
    parser.add_argument("--vision_model", required=True)
    parser.add_argument("--architectures", nargs="+", choices=OPTIONS, default=list(OPTIONS), metavar="NAME")
    parser.add_argument("--count", type=int, default=500, help="number of photographs")
    parser.add_argument("--folder", type=Path, default=Path("runs/memorization"))
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/memorization.json"))
    args = parser.parse_args()
    link_photographs(args.data_dir, args.folder / "photographs", args.count)
    for architecture in args.architectures:
        result = train(architecture, args.folder, args.vision_model)
        print(architecture, result, flush=True)
        figures = json.loads(args.output.read_text(encoding="utf-8")) if args.output.exists() else {"runs": {}}
        figures |= {"hardware": f"{os.cpu_count()} {platform.machine()} cores, no GPU", "common_options": COMMON}
        figures["runs"][architecture] = result
        write_results(args.output, figures, records_of(args.output))


if __name__ == "__main__":
    main()
