"""Quantisation of the weights of exported ONNX graphs to 8-bit integers."""

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Matrices and tables of embeddings; convolutions stay in float32, where integers are slower on most CPUs.
OPERATORS = ("MatMul", "Gemm", "Gather")


def quantize_graph(path: Path) -> None:
    """Quantise the weight matrices in an ONNX file to 8-bit integers; activations are quantised at run time.

    Weights use 7 of the 8 bits: the products of processors without VNNI add pairs in 16 bits, which 8 bits overflow.

    Args:
        path: a graph in float32 in which no two operations share a matrix; it is replaced.

    Raises:
        ValueError: the quantiser of onnxruntime refuses the graph.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory(dir=path.parent) as folder, _quiet():
        smaller = Path(folder, path.name)
        try:
            quantize_dynamic(
                path,
                smaller,
                op_types_to_quantize=list(OPERATORS),
                weight_type=QuantType.QInt8,
                reduce_range=True,
                extra_options={"MatMulConstBOnly": True},
            )
        except Exception as error:  # it raises errors of many types
            raise ValueError(
                f"{path.name} cannot be quantised: {type(error).__name__}: {' '.join(str(error).split())[:300]}. Pass "
                "`weights=float32`."
            ) from error
        smaller.replace(path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence onnxruntime's advice to pre-process graphs, which the exporter already does."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
