"""Measure `hf-captioners serve` under load, with batch sizes 16 and 1.

    python benchmarks/serving.py --images photographs --vision_model $HF_CAPTIONERS_DATA_DIR/mobilenetv2/hf \\
        --tokenizer $HF_CAPTIONERS_DATA_DIR/gpt2_tokenizer

An untrained VisualGPT of 4 layers and 256 features captions with 3 beams and 20 tokens, in one thread. 32 clients send
one photograph after the other. The two servers are measured in turn; the CPU seconds are those of the server. Every
caption is compared with that of a client that is alone. With `--minutes`, the memory of the server under load is
measured as well.
"""

import argparse
import http.client
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from provenance import write_results

TICKS = os.sysconf("SC_CLK_TCK")


def write_captioner(folder: str, vision_model: str, tokenizer: str) -> None:
    """Save an untrained captioner."""
    import torch
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    from hf_captioners.training.starting import ModelArguments, start_captioner

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as language_model:
        words = AutoTokenizer.from_pretrained(tokenizer)
        GPT2LMHeadModel(GPT2Config(n_embd=256, n_layer=4, n_head=4)).save_pretrained(language_model)
        words.save_pretrained(language_model)
        arguments = ModelArguments(language_model=language_model, vision_model=vision_model, image_size=224)
        model, processor = start_captioner(arguments)[:2]
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


class Server:
    """Process of `hf-captioners serve`.

    Args:
        captioner: its directory.
        batch_size: images per batch.
    """

    def __init__(self, captioner: str, batch_size: int) -> None:
        options = ["--batch_size", str(batch_size), "--num_beams", "3", "--max_new_tokens", "20", "--device", "cpu"]
        command = [sys.executable, "-m", "hf_captioners.cli", "serve", captioner, "--port", "0", *options]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        command += ["--generate", "min_new_tokens=20", "--timeout", "600"]
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if "Running on" in line:
                self.port = int(line.rpartition(":")[2].split()[0])
                break
        else:
            raise SystemExit("The server did not start.")

    def ask(self, content: bytes) -> str:
        """Request the caption of an image."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=900)
        connection.request("POST", "/caption", content, {"Content-Type": "image/jpeg"})
        answer = connection.getresponse()
        body = json.loads(answer.read())
        connection.close()
        assert answer.status == 200, body
        return body["caption"]

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of the server so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def megabytes(self) -> float:
        """Return the server's resident memory in MB."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def load(self, contents: list[bytes], clients: int) -> tuple[dict[str, float], list[str]]:
        """Send images from several clients; return requests per second of wall and CPU time, and the captions."""
        wall, spent = time.perf_counter(), self.cpu_seconds()
        with ThreadPoolExecutor(clients) as threads:
            captions = list(threads.map(self.ask, contents))
        wall, spent = time.perf_counter() - wall, self.cpu_seconds() - spent
        return {"per_second": len(contents) / wall, "per_cpu_second": len(contents) / spent}, captions


def memory_under_load(server: Server, contents: list[bytes], clients: int, minutes: float) -> list[float]:
    """Return the server's memory in MB every ten seconds under load."""
    sizes, end = [], time.monotonic() + 60 * minutes
    with ThreadPoolExecutor(clients) as threads:

        def send(number: int) -> None:
            while time.monotonic() < end:
                server.ask(contents[number % len(contents)])
                number += clients

        sending = [threads.submit(send, number) for number in range(clients)]
        while time.monotonic() < end:
            time.sleep(10)
            sizes.append(round(server.megabytes(), 1))
        for job in sending:
            job.result()
    return sizes


def main() -> None:
    """Measure both batch sizes in turn, and write the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--vision_model", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/serving.json"))
    args = parser.parse_args()
    contents = [path.read_bytes() for path in sorted(args.images.iterdir())[: args.requests]]
    rows: dict[int, list[dict[str, float]]] = {16: [], 1: []}
    with tempfile.TemporaryDirectory() as captioner:
        write_captioner(captioner, args.vision_model, args.tokenizer)
        servers = {size: Server(captioner, size) for size in rows}
        try:
            alone = [servers[16].ask(content) for content in contents]
            equal = 0
            for _ in range(args.repeats):
                for size, server in servers.items():
                    figures, captions = server.load(contents, args.clients)
                    rows[size].append(figures)
                    equal += sum(caption == other for caption, other in zip(captions, alone, strict=True))
            memory = memory_under_load(servers[16], contents, args.clients, args.minutes) if args.minutes else []
        finally:
            for server in servers.values():
                server.process.terminate()
    result = {
        "rows": [
            {"batch_size": size}
            | {
                name: round(statistics.median(figures_of_round[name] for figures_of_round in figures), 3)
                for name in figures[0]
            }
            for size, figures in rows.items()
        ],
        "requests": len(contents),
        "clients": args.clients,
        "repeats": args.repeats,
        "equal_captions": equal,
        "compared_captions": len(contents) * args.repeats * len(rows),
        "megabytes_every_10_s": memory,
        "processor": platform.processor() or platform.machine(),
    }
    write_results(args.output, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
