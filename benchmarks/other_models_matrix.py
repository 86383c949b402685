"""Run all commands with untrained models of each family, and write the support matrices of docs/other_models*.md.

    python benchmarks/other_models_matrix.py --images PHOTOGRAPHS [--families blip git] [--part training]

A cell has how many of the captions equal those of transformers alone, or says what failed. Ray is needed for
`--engine ray`. Rows are written to `benchmarks/results/other_models_matrix.json`, and the page is written once all
families have one; rows of other families are kept.
"""

import argparse
import asyncio
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from aiohttp.test_utils import TestClient as HttpClient
from aiohttp.test_utils import TestServer
from other_models_training import TRAINING_CELLS, typed
from PIL import Image
from provenance import ROOT, records_of, write_results
from starlette.testclient import TestClient

from hf_captioners.captioning import CaptionBatches
from hf_captioners.captioning.batches import load_pipeline
from hf_captioners.captioning.caption_files import CaptionFile
from hf_captioners.pipelines.image_captioning import TASK
from hf_captioners.review.server import review_app
from hf_captioners.review.table import ReviewTable
from hf_captioners.server.application import make_application

sys.path.insert(0, str(ROOT))
from tests.plain_transformers import PlainCaptioner  # noqa: E402
from tests.tiny_families import FAMILIES, write_family  # noqa: E402

COUNT, BATCH = 6, 2
LENGTH = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
TYPED = ["--device", "cpu", "--batch_size", str(BATCH), "--workers", "0", "--max_new_tokens", "8", "--generate"]
TYPED += ["min_new_tokens=8", "do_sample=false"]
PAGES = {"captioning": ROOT / "docs" / "other_models.md", "training": ROOT / "docs" / "other_models_training.md"}
RESULTS = ROOT / "benchmarks" / "results" / "other_models_matrix.json"


class Family:
    """An untrained checkpoint, some photographs, and their captions by transformers alone.

    Args:
        model_type: the family.
        folder: empty folder.
        photographs: paths of images.
    """

    def __init__(self, model_type: str, folder: Path, photographs: list[Path]) -> None:
        self.model, self.images = str(folder / "model"), folder / "images"
        self.images.mkdir(parents=True)
        for path in photographs:
            shutil.copy(path, self.images)
        self.names = [path.name for path in photographs]
        self.photographs = photographs
        write_family(Path(self.model), model_type)
        rows = [{"file_name": name, "captions": ["a dog"], "split": "test"} for name in self.names]
        (self.images / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
        self.expected = self.of_transformers(self.model)

    def of_transformers(self, model: str) -> dict[str, str]:
        """Caption the photographs with transformers alone."""
        plain, captions = PlainCaptioner(model), {}
        for first in range(0, len(self.photographs), BATCH):
            batch = self.photographs[first : first + BATCH]
            tokens = plain([Image.open(path).convert("RGB") for path in batch], **LENGTH)
            for path, (row, _) in zip(batch, tokens, strict=True):
                text = plain.tokenizer.decode(row, skip_special_tokens=True)
                if plain.model_type == "kosmos-2":  # as its documentation reads captions, without marks of places
                    text = plain.processor.post_process_generation(text)[0]
                captions[path.name] = text.strip()
        return captions

    def cell(self, captions: dict[str, str], expected: dict[str, str] | None = None) -> str:
        """Return the matrix cell: the number of captions that equal those of transformers."""
        expected = self.expected if expected is None else expected
        equal = sum(
            captions.get(name) == " ".join(text.splitlines()) or captions.get(name) == text
            for name, text in expected.items()
        )
        return f"{equal}/{len(expected)}"


def by_name(file: Path, key: str) -> dict[str, str]:
    """Return the captions of a .jsonl file by the names of images."""
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {Path(row[key]).name: row["caption"] for row in rows}


def sidecars(family: Family) -> str:
    """`caption --sidecar`."""
    typed("caption", str(family.images), "--model", family.model, "--sidecar", "caption", *TYPED)
    return family.cell({name: text_beside(family, name) for name in family.names})


def text_beside(family: Family, name: str) -> str:
    """Return the text of the file beside an image."""
    return (family.images / name).with_suffix(".caption").read_text(encoding="utf-8").removesuffix("\n")


def resumed(family: Family) -> str:
    """`caption --output`, killed after the first batch, then `--resume`."""
    output = family.images.parent / "resumed.jsonl"
    job = ["caption", str(family.images), "--model", family.model, "--output", str(output), *TYPED]
    child = os.fork()
    if child == 0:
        add = CaptionFile.add

        def add_and_end(self: Any, *arguments: Any) -> None:
            add(self, *arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        CaptionFile.add = add_and_end  # type: ignore[method-assign]
        typed(*job)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) or output.exists():
        raise RuntimeError("the job was not killed")
    typed(*job, "--resume")
    return family.cell(by_name(output, "image"))


def on_ray(family: Family) -> str:
    """`caption --engine ray`."""
    output = family.images.parent / "ray.jsonl"
    typed("caption", str(family.images), "--model", family.model, "--output", str(output), *TYPED, "--engine", "ray")
    return family.cell(by_name(output, "image"))


def evaluated(family: Family) -> str:
    """`evaluate`."""
    each = family.images.parent / "each.jsonl"
    typed(
        "evaluate",
        family.model,
        str(family.images),
        "--per_image",
        str(each),
        "--metrics",
        "bleu",
        *TYPED[:4],
        *TYPED[6:],
    )
    return family.cell(by_name(each, "image_id"))


def reviewed(family: Family) -> str:
    """`review` of the text files that `caption --sidecar` wrote."""
    folder = family.images.parent / "review"
    folder.mkdir()
    for name in family.names:
        for path in (family.images / name, (family.images / name).with_suffix(".caption")):
            shutil.copy(path, folder)
    table = ReviewTable(str(folder), None, "caption")
    client = TestClient(review_app(table, "127.0.0.1:8123", "token"), base_url="http://127.0.0.1:8123")
    items = [client.get(f"/token/captions/{place}").json() for place in range(len(table.images))]
    return family.cell({item["name"]: (item["captions"] or [""])[0] for item in items})


def served(family: Family) -> str:
    """Requests to `serve`."""
    captioner = CaptionBatches(load_pipeline(family.model, "cpu"), **LENGTH)

    async def ask() -> dict[str, str]:
        captions = {}
        async with HttpClient(TestServer(make_application(captioner, BATCH))) as client:
            for name in family.names:
                content = (family.images / name).read_bytes()
                answer = await client.post("/caption", data=content, headers={"Content-Type": "image/jpeg"})
                captions[name] = (await answer.json())["caption"]
        return captions

    return family.cell(asyncio.run(ask()))


def pipelined(family: Family) -> str:
    """`pipeline("image-captioning")`."""
    captioner = transformers.pipeline(TASK, model=family.model, device="cpu")
    records = captioner([str(family.images / name) for name in family.names], batch_size=BATCH, **LENGTH)
    return family.cell({name: row[0]["generated_text"] for name, row in zip(family.names, records, strict=True)})


CELLS: dict[str, Callable[[Family], str]] = {
    "`caption --sidecar`": sidecars,
    "killed, `--resume`": resumed,
    "`--engine ray`": on_ray,
    "`evaluate`": evaluated,
    "`review`": reviewed,
    "`serve`": served,
    "pipeline": pipelined,
}


def row_of(model_type: str, cells: dict[str, Callable[[Family], str]], photographs: list[Path]) -> dict[str, str]:
    """Return the matrix cells of a family by name; for a cell that fails, its error."""
    row = {}
    with tempfile.TemporaryDirectory() as folder:
        family = Family(model_type, Path(folder), photographs)
        for name, cell in cells.items():
            try:
                row[name] = cell(family)
            except Exception as error:
                row[name] = f"{type(error).__name__}: {error}"[:200]
    print(model_type, *row.values(), sep=" | ", flush=True)
    return row


def page_with(text: str, part: str, rows: dict[str, dict[str, str]]) -> str:
    """Replace a matrix in the text of the page."""
    begin, end = f"<!-- matrix of {part} -->", f"<!-- end of matrix of {part} -->"
    names = list(next(iter(rows.values())))
    lines = [f"| family | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| `{family}` | {' | '.join(row.values())} |" for family, row in rows.items()]
    return text.split(begin)[0] + "\n".join([begin, *lines, end]) + text.split(end)[1]


def main() -> None:
    """Fill the matrices, and write them into the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True, help="folder of JPEG files")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--part", choices=["captioning", "training"], help="default: both")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    photographs = sorted(Path(args.images).rglob("*.jpg"))[:COUNT]
    parts = {"captioning": CELLS, "training": TRAINING_CELLS}
    if args.part != "training":
        import ray

        if not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)  # for all jobs
    figures = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    for part in parts if args.part is None else [args.part]:
        rows = figures.setdefault(part, {})
        for model_type in args.families:
            rows[model_type] = row_of(model_type, parts[part], photographs)
            write_results(RESULTS, figures, records_of(RESULTS))
        if all(family in rows for family in FAMILIES):
            text = page_with(PAGES[part].read_text(encoding="utf-8"), part, {name: rows[name] for name in FAMILIES})
            PAGES[part].write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
