"""Every data set known to `load_captions`, as a folder of six drawn images in its own format."""

import io
import json
import tarfile
from pathlib import Path

import datasets

TRAIN, VALIDATION = range(4), range(4, 6)
FOR_EVALUATION = ("nocaps",)  # without a training split


def _karpathy(root, scenes, name, file_name, folder=None):
    """Write Karpathy's split file, with `filepath` for COCO's folders."""
    images = []
    for number, row in enumerate(scenes):
        split = "train" if number in TRAIN else "val" if number in VALIDATION else "test"
        entry = {"filename": file_name(number), "imgid": number, "split": split}
        entry["sentences"] = [
            {"raw": caption, "tokens": caption.split(), "sentid": number * 10 + place, "imgid": number}
            for place, caption in enumerate(row["captions"])
        ]
        path = root / (folder or "Images") / entry["filename"]
        path.parent.mkdir(parents=True, exist_ok=True)
        row["image"].save(path)
        images.append(entry | ({"filepath": folder, "cocoid": number} if folder else {}))
    (root / name).write_text(json.dumps({"images": images, "dataset": "x"}))
    return []


def coco(root, scenes):
    return _karpathy(
        root, scenes, "dataset_coco.json", lambda number: f"COCO_val2014_{number:012d}.jpg", folder="val2014"
    )


def flickr8k(root, scenes):
    return _karpathy(root, scenes, "dataset_flickr8k.json", lambda number: f"{number}_a.jpg")


def flickr30k(root, scenes):
    return _karpathy(root, scenes, "dataset_flickr30k.json", lambda number: f"{number}.jpg")


def conceptual_captions(root, scenes):
    for name, split, rows in (
        ("Train_GCC-training.tsv", "train", TRAIN),
        ("Validation_GCC-1.1.0-Validation.tsv", "validation", VALIDATION),
    ):
        (root / split).mkdir()
        lines = []
        for line, number in enumerate(rows):
            lines.append(f"{scenes[number]['captions'][0]}\thttp://example.org/{number}.png\n")
            scenes[number]["image"].save(root / split / f"{line:09d}.png")
        (root / name).write_text("".join(lines))
    return []


def iu_xray(root, scenes):
    """Write studies with two views each, in R2Gen's format."""
    content = {"train": [], "val": [], "test": []}
    for number, row in enumerate(scenes):
        study = f"CXR{number + 1}_IM-{number:04d}"
        (root / "images" / study).mkdir(parents=True)
        for view in (0, 1):
            scenes[(number + view) % len(scenes)]["image"].save(root / "images" / study / f"{view}.png")
        split = "train" if number in TRAIN else "val"
        paths = [f"{study}/0.png", f"{study}/1.png"]
        content[split].append({"id": study, "report": row["captions"][0], "image_path": paths, "split": split})
    (root / "annotation.json").write_text(json.dumps(content))
    return ["protocol=r2gen", "allow_partial=true", "max_views=2"]


def _save(root, folder, name, image):
    (root / folder).mkdir(parents=True, exist_ok=True)
    image.save(root / folder / name, format="png")  # readers go by the contents


def nocaps(root, scenes):
    """The official validation file, with two images of each domain; there is no training split."""
    images, annotations = [], []
    for number, row in enumerate(scenes):
        name = f"{number:016x}"
        _save(root, "val", f"{name}.jpg", row["image"])
        images.append({"id": number, "open_images_id": name, "height": 32, "width": 32, "license": 0})
        images[-1] |= {"coco_url": f"http://example.org/{name}.jpg", "file_name": f"{name}.jpg"}
        images[-1] |= {"domain": ("in-domain", "near-domain", "out-domain")[number % 3]}
        for caption in row["captions"]:
            annotations.append({"image_id": number, "id": len(annotations), "caption": caption})
    content = {"licenses": [], "info": {}, "images": images, "annotations": annotations}
    (root / "nocaps_val_4500_captions.json").write_text(json.dumps(content))
    return []


def textcaps(root, scenes):
    """The official files, with one entry for each caption."""
    for split, part, rows in (("train", "train", TRAIN), ("val", "val", VALIDATION)):
        entries = []
        for number in rows:
            name, captions = f"{number:016x}", scenes[number]["captions"]
            _save(root, "train_images", f"{name}.jpg", scenes[number]["image"])
            for place, caption in enumerate(captions):
                entry = {"image_id": name, "image_name": name, "image_path": f"train/{name}.jpg", "set_name": part}
                entry |= {"image_classes": ["Shape"], "image_width": 32, "image_height": 32}
                entry |= {"caption_id": number * 10 + place, "caption_str": caption, "caption_tokens": caption.split()}
                entry |= {"reference_strs": captions, "reference_tokens": [text.split() for text in captions]}
                entries.append(entry)
        content = {"dataset_name": "textcaps", "dataset_version": "0.1", "dataset_type": split, "data": entries}
        (root / f"TextCaps_0.1_{split}.json").write_text(json.dumps(content))
    return []


def vizwiz(root, scenes):
    """The official files; the last caption of each image is rejected."""
    (root / "annotations").mkdir()
    for split, rows in (("train", TRAIN), ("val", VALIDATION)):
        images, annotations = [], []
        for number in rows:
            name = f"VizWiz_{split}_{number:08d}.jpg"
            _save(root, split, name, scenes[number]["image"])
            images.append({"file_name": name, "id": number, "vizwiz_url": "http://example.org", "text_detected": True})
            for place, caption in enumerate(scenes[number]["captions"]):
                entry = {"caption": caption, "image_id": number, "id": len(annotations), "text_detected": True}
                annotations.append(entry | {"is_precanned": False, "is_rejected": place == 4})
        content = {"info": {}, "images": images, "annotations": annotations}
        (root / "annotations" / f"{split}.json").write_text(json.dumps(content))
    return []


def caption_folder(root, scenes):
    for split, rows in (("train", TRAIN), ("validation", VALIDATION)):
        (root / split).mkdir()
        with open(root / split / "metadata.jsonl", "w") as file:
            for place, number in enumerate(rows):  # the same names in both splits
                scenes[number]["image"].save(root / split / f"{place}.png")
                file.write(json.dumps({"file_name": f"{place}.png", "captions": scenes[number]["captions"]}) + "\n")
    return []


def by_columns(root, scenes):
    for split, rows in (("train", TRAIN), ("validation", VALIDATION)):
        photos = {
            "photo": [scenes[number]["image"] for number in rows],
            "alt": [scenes[number]["captions"][0] for number in rows],
        }
        made = datasets.Dataset.from_dict(photos).cast_column("photo", datasets.Image())
        made.to_parquet(root / f"{split}-0.parquet")
    return ["path=parquet", "image_column=photo", "caption_columns=[alt]"]


def containers(root, scenes):
    """Write WebDataset shards with a text file per image."""
    for split, rows in (("train", TRAIN), ("validation", VALIDATION)):
        with tarfile.open(root / f"{split}-000.tar", "w") as shard:
            for number in rows:
                image = io.BytesIO()
                scenes[number]["image"].save(image, "png")
                texts = "\n".join(scenes[number]["captions"]).encode()
                for ending, content in (("png", image.getvalue()), ("txt", texts)):
                    member = tarfile.TarInfo(f"{number:06d}.{ending}")
                    member.size = len(content)
                    shard.addfile(member, io.BytesIO(content))
    return []


def scenes(root, scenes):
    return ["num_images={train: 4, validation: 2}", "image_size=32"]


MAKERS = {
    maker.__name__: maker
    for maker in (
        by_columns,
        caption_folder,
        coco,
        conceptual_captions,
        containers,
        flickr30k,
        flickr8k,
        iu_xray,
        nocaps,
        scenes,
        textcaps,
        vizwiz,
    )
}


def make_folder(name: str, root: Path, scenes: datasets.Dataset) -> list[str]:
    """Write a data set; return the arguments after `--dataset NAME`."""
    root.mkdir()
    options = MAKERS[name](root, [scenes[number] for number in range(6)])
    folder = [] if name == "scenes" else ["--data_dir", str(root)]
    return [*folder, *(["--data_options", *options] if options else [])]
