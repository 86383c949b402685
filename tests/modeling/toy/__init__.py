"""An architecture as another package adds it, see docs/adding_an_architecture.md."""

from hf_captioners.architectures import Architecture
from hf_captioners.registration import register_architecture

TOY = Architecture(
    name="toy", model_type="captioning_toy", prefix="Toy", tokenizer="words", paper="none", package=__name__
)
register_architecture(TOY)
