"""Folders with files of the authors, and their conversion."""

import json
import pickle

import torch

from tests.parity.figures import variants

from .released_files import words, write_m2, write_model_and_infos, write_modules, write_program, write_visualgpt


def visualgpt_settings(sizes):
    names = ("n_head", "bos_token_id", "eos_token_id", "pad_token_id")
    settings = {name: sizes[name] for name in names} | {"srau_threshold": sizes["tau"]}
    settings |= {"normalize_srau": True} if sizes["decoder"] == "srau_normalized" else {}
    settings |= {"identity_map_reordering": True} if sizes.get("identity_map_reordering") else {}
    return ["--set", *(f"{name}={json.dumps(value)}" for name, value in settings.items())]


def convert_visualgpt(figures, folder, new_format):
    write_visualgpt(folder / "best.pth", figures.weights, figures.config, new_format)
    ids = figures.inputs["input_ids"]
    torch.save({"region_features": figures.inputs["features"], "decoder_input_ids": ids}, folder / "inputs.pt")
    return ["visualgpt", str(folder / "best.pth"), *visualgpt_settings(figures.config)]


def compare_visualgpt(figures, logits):
    real = figures.inputs["input_ids"] != figures.config["pad_token_id"]
    return logits.log_softmax(-1)[real], figures.expected["logprobs"][real]


def convert_program(figures, folder, new_format):
    write_program(folder / "model.npz", figures.weights, figures.config["options"])
    sentences, count = figures.inputs["x"].T, figures.config["options"]["n_words"]
    begin = torch.full_like(sentences[:, :1], count)
    inputs = {
        "region_features": figures.inputs["ctx"].float(),
        "decoder_input_ids": torch.cat((begin, sentences[:, :-1]), dim=1),
        "decoder_attention_mask": figures.inputs["mask"].T.long(),
    }
    if "alpha_sample" in figures.inputs:
        drawn = figures.inputs["alpha_sample"].transpose(0, 1)
        inputs["locations"] = (torch.where((drawn.max(-1).values == 1).all(), drawn.argmax(-1), -1),)
    torch.save(inputs, folder / "inputs.pt")
    vocabulary = {word: index + 2 for index, word in enumerate(words(500))}
    (folder / "dictionary.pkl").write_bytes(pickle.dumps(vocabulary, 0))
    return ["show_attend_tell", str(folder / "model.npz"), "--vocab", str(folder / "dictionary.pkl")]


def compare_program(figures, logits):
    real, count = figures.inputs["mask"].bool(), figures.config["options"]["n_words"]
    return logits.log_softmax(-1)[..., :count].transpose(0, 1)[real], figures.expected["logprobs"][real]


def convert_modules(figures, folder, new_format):
    options = figures.config["options"]
    write_modules(folder / "BEST.pth.tar", figures.weights, options, new_format)
    features = figures.inputs["encoder_out"][figures.expected["sort_ind"]].flatten(1, 2).float()
    inputs = {"region_features": features, "decoder_input_ids": figures.expected["sorted_captions"]}
    torch.save(inputs, folder / "inputs.pt")
    table = {word: index + 1 for index, word in enumerate(words(options["vocab_size"] - 4))}
    table |= {"<pad>": 0} | {
        word: options["vocab_size"] - 3 + index for index, word in enumerate(("<unk>", "<start>", "<end>"))
    }
    (folder / "WORDMAP.json").write_text(json.dumps(table))
    settings = ["--set", f"alpha_c={options['alpha_c']}"]
    return ["show_attend_tell", str(folder / "BEST.pth.tar"), "--vocab", str(folder / "WORDMAP.json"), *settings]


def compare_modules(figures, logits):
    lengths = figures.expected["decode_lengths"]
    expected = figures.expected["logprobs"]
    real = torch.arange(expected.shape[1]) < lengths[:, None]
    return logits.log_softmax(-1)[:, : expected.shape[1]][real], expected[real]


def convert_infos_transformer(figures, folder, new_format, architecture="transformer"):
    sizes = figures.config
    options = {"num_att_heads": sizes["num_att_heads"], "max_length": sizes["max_length"], "use_bn": sizes["use_bn"]}
    weights = figures.weights | {"model.tgt_embed.1.pe": torch.zeros(1, 5000, sizes["d_model"])}
    write_model_and_infos(folder, weights, options, sizes["ix_to_word"], new_format)
    inputs = {"region_features": figures.inputs["att_feats"], "region_mask": figures.inputs["att_masks"].bool()}
    captions = figures.inputs["labels"].flatten(0, 1).long()
    torch.save(inputs | {"decoder_input_ids": captions[:, :-1]}, folder / "inputs.pt")
    return [architecture, str(folder / "model.pth")]


def convert_infos_zodiac(figures, folder, new_format):
    """Settings are constants of the released code, which differ in some folders."""
    attention, activation = figures.config["attention"], figures.config["ffn_activation"]
    settings = {name: attention[name] for name in ("zoneout_factor", "gelu", "intensity_pool")}
    settings |= {"intensity_gate": attention["gate"], "pre_gelu": attention["gelu"], "ffn_activation": activation}
    arguments = convert_infos_transformer(figures, folder, new_format, "zodiac")
    return [*arguments, "--set", *(f"{name}={value}" for name, value in settings.items())]


def compare_infos_transformer(figures, logits):
    real = figures.inputs["masks"].flatten(0, 1)[:, 1:].bool()
    return logits.log_softmax(-1)[real], figures.expected["logprobs"][real]


def convert_infos_zodiac_aoanet(figures, folder, new_format):
    sizes, inputs = figures.config, figures.inputs
    vocabulary = {str(index + 1): word for index, word in enumerate([*words(sizes["vocab_rows"] - 2), "UNK"])}
    options = {name: sizes[name] for name in ("num_heads", "max_length", "out_res", "ctx_drop")}
    options |= {"caption_model": "z-aoa"}
    path = write_model_and_infos(folder, figures.weights, options, vocabulary, new_format)
    captions = inputs["labels"].flatten(0, 1).long()
    given = {"region_features": inputs["att_feats"], "decoder_input_ids": captions[:, :-1]}
    given |= {"region_mask": inputs["att_masks"].bool()} if "att_masks" in inputs else {}
    given |= {} if sizes["mean_feats"] else {"global_features": inputs["fc_feats"]}
    torch.save(given, folder / "inputs.pt")
    attention = sizes["attention"] | {"intensity_gate": sizes["attention"]["gate"]}
    settings = (f"{name}={value}" for name, value in attention.items() if name != "gate")
    return ["zodiac_aoanet", str(path), "--set", *settings]


def convert_aoanet(figures, folder, new_format):
    options, inputs = figures.config["options"], figures.inputs
    vocabulary = {str(index + 1): word for index, word in enumerate([*words(options["vocab_size"] - 1), "UNK"])}
    path = write_model_and_infos(folder, figures.weights, options, vocabulary, new_format)
    given = {"region_features": inputs["att_feats"], "decoder_input_ids": inputs["labels"][:, :-1]}
    given |= {"region_mask": inputs["att_masks"].bool()} if "att_masks" in inputs else {}
    given |= {} if options["mean_feats"] else {"global_features": inputs["fc_feats"]}
    torch.save(given, folder / "inputs.pt")
    return ["aoanet", str(path)]


def compare_aoanet(figures, logits):
    real = figures.inputs["masks"][:, 1:].bool()
    return logits.log_softmax(-1)[real], figures.expected["logprobs"][real]


def convert_image_transformer(figures, folder, new_format):
    _, path = convert_aoanet(figures, folder, new_format)
    given = torch.load(folder / "inputs.pt") | {"region_relations": figures.inputs["flag_feats"]}
    torch.save(given, folder / "inputs.pt")
    return ["image_transformer", path]


def convert_m2(figures, folder, new_format):
    sizes = figures.config
    write_m2(folder / "m2_best.pth", figures.weights, sizes, new_format)
    (folder / "vocabulary.txt").write_text("\n".join(words(sizes["vocab_size"] - 4)) + "\n")
    ids = figures.inputs["input_ids"]
    torch.save({"region_features": figures.inputs["features"], "decoder_input_ids": ids}, folder / "inputs.pt")
    settings = {"n_head": sizes["n_head"], "identity_map_reordering": sizes.get("identity_map_reordering", False)}
    typed = ["--set", *(f"{name}={json.dumps(value)}" for name, value in settings.items())]
    return ["m2_transformer", str(folder / "m2_best.pth"), "--vocab", str(folder / "vocabulary.txt"), *typed]


def convert_aoa(figures, folder, new_format):
    write_visualgpt(folder / "best.pth", figures.weights, figures.config, new_format)
    ids = figures.inputs["input_ids"]
    torch.save({"region_features": figures.inputs["features"], "decoder_input_ids": ids}, folder / "inputs.pt")
    names = ("n_head", "bos_token_id", "eos_token_id", "pad_token_id")
    typed = ["--set", *(f"{name}={figures.config[name]}" for name in names)]
    return ["aoa_transformer", str(folder / "best.pth"), *typed]


# The architecture, and functions that write a checkpoint and compare its logits, by the beginning of a folder's name.
FAMILIES = {
    "visualgpt/": ("visualgpt", convert_visualgpt, compare_visualgpt),
    "show_attend_tell_arctic/": ("show_attend_tell", convert_program, compare_program),
    "show_attend_tell/": ("show_attend_tell", convert_modules, compare_modules),
    "zodiac_transformer/baseline_transformer": (
        "transformer",
        convert_infos_transformer,
        compare_infos_transformer,
    ),
    "aoanet/": ("aoanet", convert_aoanet, compare_aoanet),
    "image_transformer/": ("image_transformer", convert_image_transformer, compare_aoanet),
    "m2_transformer/main": ("m2_transformer", convert_m2, compare_visualgpt),
    "m2_transformer/enc": ("m2_transformer", convert_m2, compare_visualgpt),
    "m2_transformer/no_memory": ("m2_transformer", convert_m2, compare_visualgpt),
    "aoa_transformer/ma": ("aoa_transformer", convert_aoa, compare_visualgpt),
    "zodiac_aoa/": ("zodiac_aoanet", convert_infos_zodiac_aoanet, compare_infos_transformer),
    **{
        f"zodiac_transformer/{start}": ("zodiac", convert_infos_zodiac, compare_infos_transformer)
        for start in ("abl", "paper", "sigmoid", "tanh")
    },
}


FOLDERS = [
    name
    for family, _, start in (beginning.partition("/") for beginning in FAMILIES)
    for name in variants(family, start=start)
    if not name.endswith(("_lstmenc", "/optimizers", "/adjacency", "/missing"))  # refused, no models, not committed
]


def family_of(name):
    return next(functions for beginning, functions in FAMILIES.items() if name.startswith(beginning))
