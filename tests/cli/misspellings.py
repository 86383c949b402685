"""Misspelt arguments of every command, each with the intended name or the reported error.

As a program, this file runs all of them in one process that has imported nothing, and prints, for each, its exit
status, the lines that it wrote, which of torch, transformers and datasets were imported for it, and how
many images were opened.
"""

import contextlib
import io
import json
import sys

HEAVY = ("torch", "transformers", "datasets")
# In a folder with `my_images` (metadata.jsonl), `my_gpt2`, `my_vit`, `my_captioner`, `photo.jpg`, `recipe.yaml`, ...
LM, VISION, DATA = ["--language_model", "my_gpt2"], ["--vision_model", "my_vit"], ["--train_dir", "my_images"]
TRAIN = ["train", *DATA, *LM, *VISION, "--output_dir", "out"]
LSTM = ["train", "--architecture", "show_attend_tell", *DATA, *VISION, "--output_dir", "out"]
CAPTION = ["caption", "photo.jpg", "--model", "my_captioner"]
ADAPT = ["train", "--model", "my_captioner", *DATA, "--output_dir", "out"]
EVALUATE = ["evaluate", "my_captioner", "my_images", "--split", "train"]
EXTRACT = ["extract-features", "--data_dir", "my_images", "--output", "out"]
SCORE = ["score", "predictions.jsonl", "references.jsonl"]

# Refused within a second, without importing a library: commands, flags, choices, paths, devices, keys of YAML.
FAST = [
    (["trian"], "`train`"),
    (["captoin", "photo.jpg"], "`caption`"),
    (["evalute", "my_captioner"], "`evaluate`"),
    (["extract_features"], "`extract-features`"),
    (["check_data", "my_images"], "`check-data`"),
    (["--tracebak", "env"], "`--traceback`"),
    (["attributes", "trian"], "`train`"),
    (["train", "--trian_dir", "my_images"], "`--train_dir`"),
    (["train", "--langage_model", "my_gpt2"], "`--language_model`"),
    (["train", "--vision-modle", "my_vit"], "`--vision_model`"),
    (["train", "--output", "out"], "`--output_dir`"),
    (["train", "--batch_size", "8"], "`--per_device_train_batch_size`"),
    (["train", "--epochs", "3"], "`--num_train_epochs`"),
    (["train", "--lr", "1e-4"], "`--learning_rate`"),
    (["train", "--learning-rat=1e-4"], "`--learning_rate`"),
    (["train", "--resme"], "`--resume`"),
    (["train", "--num_beams", "3"], "`--generation_num_beams`"),
    (["train", "--max_new_tokens", "30"], "`--generation_max_new_tokens`"),
    (["train", "--device", "cpu"], "`--use_cpu`"),
    (["caption", "photo.jpg", "--modle", "my_captioner"], "`--model`"),
    ([*CAPTION, "--beam_size", "3"], "`--num_beams`"),
    ([*CAPTION, "--max_length", "30"], "`--max_new_tokens`"),
    ([*CAPTION, "--out", "captions.txt"], "`--output`"),
    ([*EVALUATE, "--spilt", "train"], "`--split`"),
    (["score", "a", "b", "--metric", "bleu"], "`--metrics`"),
    ([*EXTRACT, "--vison_model", "my_vit"], "`--vision_model`"),
    (["explain", "photo.jpg", "--modl", "my_captioner"], "`--model`"),
    (["check-data", "my_images", "--option", "a=b"], "`--data_options`"),
    (["push", "my_captioner", "me/it", "--privat"], "`--private`"),
    (["convert", "visualgpt", "photo.jpg", "--outptu", "x"], "`--output`"),
    (["reproduce", "visualgpt", "--tabel", "1"], "`--table`"),
    (["reproduce", "visualgpt", "--data", "my_images"], "`--data_dir`"),
    (["train", "--data", "my_images"], "`--train_dir`"),
    (["download-images", "--data-dri", "x"], "`--data_dir`"),
    (["demo", "--quik"], "`--quick`"),
    (["attributes", "train", "--epochs", "3"], "`--num_train_epochs`"),
    ([*TRAIN, "--learning_rate", "fast"], "a number"),
    ([*TRAIN, "--max_steps", "2.5"], "a whole number"),
    ([*TRAIN, "--bf16", "perhaps"], "true or false"),
    ([*TRAIN, "--eval_strategy", "epochs"], "`epoch`"),
    ([*TRAIN, "--lr_scheduler_type", "cosin"], "`cosine`"),
    ([*TRAIN, "--optim", "adamw_troch"], "`adamw_torch`"),
    ([*TRAIN, "--report_to", "tensorbord"], "`tensorboard`"),
    ([*TRAIN, "--share_unit", "captions"], "`caption`"),
    ([*TRAIN, "--train_sampling_strategy", "group_by_lenght"], "`group_by_length`"),
    ([*TRAIN, "--scst", "--sampling", "beam"], "`beams`"),
    ([*TRAIN, "--scst", "--baseline", "gredy"], "`greedy`"),
    ([*EXTRACT, *VISION, "--kind", "float-16"], "`float16`"),
    ([*SCORE, "--format", "jsn"], "`json`"),
    (["train", "wrong_key.yaml"], "wrong_key.yaml:3: There is no argument `learning_rat`. Did you mean"),
    (["train", "wrong_value.yaml"], "wrong_value.yaml:2: `num_train_epochs` is 'many'"),
    (["train", "recipe.yml"], "recipe.yaml"),
    (["train", "show_attend_tel/flickr8k_soft.yaml"], "show_attend_tell/flickr8k_soft.yaml"),
    (["reproduce", "visual_gpt"], "`visualgpt`"),
    (["reproduce", "visualgpt", "--table", "11"], "`visualgpt --table 1`"),
    ([*TRAIN, "--model_config", "srau_threshold"], "name=value"),
    ([*TRAIN, "--straeming"], "`--streaming`"),
    (["train", "--use-pft"], "`--use_peft`"),
    (["train", "--lora_rank", "8"], "`--lora_r`"),
    ([*EVALUATE, "--metrics", "rogue_l"], "`rouge_l`"),
    ([*SCORE, "--metrics", "blue"], "`bleu`"),
    ([*SCORE, "--meteor_stages", "exact", "stems"], "`stem`"),
    ([*CAPTION, "--dtype", "fp16"], "`float16`"),
    ([*CAPTION, "--dtype", "bfloat"], "`bfloat16`"),
    ([*CAPTION, "--device", "cud"], "`cuda`"),
    (["caption", "photo.jpg", "--model", "defualt"], "`default`"),
    ([*ADAPT, "--model", "defalt"], "`default`"),
    (["review", "nowhere"], "there is no file or folder nowhere."),
    ([*CAPTION, "--device", "cuda0"], "`cuda`"),
    ([*CAPTION, "--num_beams", "0"], "at least 1"),
    (["caption", "foto.jpg", "--model", "my_captioner"], "`photo.jpg`"),
    (["caption", "photo.jpg", "--model", "my_captoiner"], "`my_captioner`"),
    (["caption", "photo.jpg", "--model", "runs/last"], "There is no folder runs"),
    ([*CAPTION, "--output", "predictions.jsonl"], "predictions.jsonl exists. Pass `--overwrite`"),
    ([*CAPTION, "--output", "captions.txtt"], "expected a name that ends with .jsonl"),
    (["evaluate", "my_captionr", "my_images", "--split", "train"], "`my_captioner`"),
    (["explain", "photo.jpeg", "--model", "my_captioner"], "`photo.jpg`"),
    (["score", "prediction.jsonl", "references.jsonl"], "`predictions.jsonl`"),
    (["train", "--train_dir", "my_image", *LM, *VISION], "`my_images`"),
    (["train", *DATA, "--language_model", "my_gtp2", *VISION], "`my_gpt2`"),
    (["train", *DATA, *LM, "--vision_model", "my_vot"], "`my_vit`"),
    (["train", *DATA, *LM, *VISION, "--tokenizer", "my_gpt"], "`my_gpt2`"),
    ([*TRAIN, "--validation_dir", "my_imges"], "`my_images`"),
    ([*TRAIN, "--resume_from_checkpoint", "my_captoiner"], "`my_captioner`"),
    ([*EXTRACT, "--detector", "my_detecter"], "`my_detector`"),
    (["attributes", "detect", "photo.jpg", "--detector", "my_detectr"], "`my_detector`"),
    (["check-data", "my_imags"], "`my_images`"),
    (["push", "my_captionr", "me/it"], "`my_captioner`"),
    (["push", "my_captioner", "me/it/twice"], "OWNER/NAME"),
    (["convert", "visualgpt", "foto.jpg", "--output", "x"], "`photo.jpg`"),
    (["download-images", "--data_dir", "my_imags", "--split", "train"], "`my_images`"),
    (["download-images", "--data_dir", "my_images", "--split", "trian"], "`train`"),
]

# Refused by the library, before images are read.
LIBRARY = [
    ([*TRAIN, "--num_samples", "3"], "pass `--scst` too"),
    ([*TRAIN, "--scst"], "`--scst_after_patience 5`"),
    (["train", "wrong_field.yaml"], "`srau_threshold`"),
    ([*TRAIN, "--architecture", "visual_gpt"], "`visualgpt`"),
    ([*TRAIN, "--architecture", "VisualGPT2"], "`visualgpt`"),
    ([*TRAIN, "--model_config", "srau_treshold=0.3"], "`srau_threshold`"),
    ([*TRAIN, "--model_config", "fusion=sraw"], "`srau`"),
    ([*TRAIN, "--model_config", "encoder_layers=two"], "expected int"),
    ([*TRAIN, "--model_config", "encoder_dropout=1.5"], "expected a number in [0.0, 1.0)"),
    ([*TRAIN, "--model_config", "encoder_layers=0"], "expected at least 1"),
    ([*LSTM, "--model_config", "attention_typ=hard"], "`attention_type`"),
    ([*LSTM, "--model_config", "attention_type=sof"], "`soft`"),
    (["train", "--model", "my_captioner", *DATA, "--model_config", "srau_treshold=0.3"], "`srau_threshold`"),
    ([*TRAIN, "--processor_config", "lowercas=false"], "`lowercase`"),
    ([*TRAIN, "--streaming"], "`--max_steps`"),
    ([*TRAIN, "--streaming", "--max_steps", "9"], "set `--eval_strategy` to 'steps' with `--eval_steps`"),
    ([*TRAIN, "--use_peft"], "pass `--model`, or leave it out"),
    ([*ADAPT, "--lora_r", "8"], "pass `--use_peft` too"),
    ([*ADAPT, "--use_peft", "--lora_r", "0"], "expected at least 1"),
    ([*ADAPT, "--use_peft", "--lora_dropout", "1.5"], "[0, 1)"),
    ([*ADAPT, "--use_peft", "--lora_target_modules", "c_attn", "q_prj"], "`q_proj`"),
    ([*TRAIN, "--data_options", "image_dri=photos"], "`image_dir`"),
    ([*TRAIN, "--data_options", "file_column=file_nam"], "`file_name`"),
    ([*TRAIN, "--data_options", "caption_columns=[caption]"], "`captions`"),
    (["check-data", "my_images", "--data_options", "metadata_file=metadta.jsonl"], "`metadata.jsonl`"),
    ([*EVALUATE, "--data_options", "caption_columns=[captoins]"], "`captions`"),
    ([*EXTRACT, *VISION, "--data_options", "file_column=name"], "has no column 'name'"),
    ([*TRAIN, "--dataset", "caption_foldr"], "`caption_folder`"),
    (["check-data", "my_images", "--dataset", "flickr_8k"], "`flickr8k`"),
    ([*EVALUATE[:2], "coko"], "`coco`"),
    ([*TRAIN, "--eval_metrics", "bleu", "cidre_d"], "`cider_d`"),
    ([*TRAIN, "--metric_for_best_model", "cider"], "`cider_d`"),
    ([*TRAIN, "--metric_for_best_model", "eval_bleu4"], "`bleu_4`"),
    ([*TRAIN, "--test_metrics", "metoer"], "`meteor`"),
    ([*TRAIN, "--scst", "--reward_funcs", "cider"], "`cider_d`"),
    ([*TRAIN, "--test_split", "tset"], "has no split 'tset'"),
    ([*EVALUATE, "--split", "trian"], "`train`"),
    ([*EXTRACT, *VISION, "--dataset", "coc"], "`coco`"),
    (["convert", "visualgtp", "photo.jpg", "--output", "x"], "`visualgpt`"),
    (["convert", "visualgpt", "photo.jpg", "--output", "x", "--set", "n_heads=4"], "`n_head`"),
    ([*CAPTION, "--generate", "do_smaple=true"], "`do_sample`"),
    ([*EVALUATE, "--generate", "top_q=0.9"], "`top_p`"),
    (["caption", "photo.jpg", "--model", "my_gpt2"], "a model of the type 'gpt2'"),
    (["evaluate", "my_captioner", "my_images"], "has no split 'test'; there are train."),
    (["evaluate", "my_captioner", "my_image"], "`my_images`"),
    (["train", *DATA, "--language_model", "my_vit", *VISION], "needs a 'gpt2' language model"),
    (["train", *DATA, *LM, "--vision_model", "my_gpt2"], "a vision model reads `pixel_values`"),
    (["train", *DATA, *LM, "--vision_model", "timm:mobilnetv2_100"], "`mobilenetv2_100`"),
    (["train", *DATA, *LM, "--vision_model", "timm:resnet50.a1_in1kk"], "`a1_in1k`"),
    (["train", *DATA, *VISION], "`--language_model` is missing"),
    (["train", *DATA, *LM], "`--vision_model` is missing"),
    (["train", *LM, *VISION], "`--train_dir` is missing"),
    ([*LSTM, *LM], "is not used by ShowAttendTell"),
]
MISSPELT = [*FAST, *LIBRARY]


def run_all() -> list[dict]:
    """Run all command lines in this process; return the outcomes."""
    silence_libraries()
    results = [run_one(arguments) for arguments, _ in FAST]
    import PIL.Image

    opened, open_image = [], PIL.Image.open
    PIL.Image.open = lambda *args, **options: opened.append(args) or open_image(*args, **options)
    for arguments, _ in LIBRARY:
        results.append(run_one(arguments) | {"images": len(opened)})
        opened.clear()
    return results


def run_one(arguments: list[str]) -> dict:
    """Run one command line; return the outcome."""
    out, err = io.StringIO(), io.StringIO()
    imported = [name for name in HEAVY if name in sys.modules]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(arguments)
        except SystemExit as ended:
            status = ended.code
    return {
        "status": status,
        "out": out.getvalue(),
        "err": err.getvalue(),
        "imported": [name for name in HEAVY if name in sys.modules and name not in imported],
    }


if __name__ == "__main__":
    from hf_captioners.cli import main
    from hf_captioners.cli.quiet import silence_libraries

    print(json.dumps(run_all()))
