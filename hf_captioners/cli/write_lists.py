"""Write the lists that names are checked by before torch is imported: `python -m hf_captioners.cli.write_lists`.

They are the arguments of training, and the options of generate(). Run it after a field of the dataclasses of arguments
or the floor of transformers has changed.
"""

import importlib.metadata
import json

from hf_captioners.captioning.generation_options import known_options
from hf_captioners.output_files import write_text
from hf_captioners.reproduce.argument_list import LIST, as_json
from hf_captioners.reproduce.dataclass_arguments import arguments_of_dataclasses

from .names import GENERATION_OPTIONS


def generation_options_as_json() -> str:
    """Return the content of the list of the options of generate()."""
    content = {"transformers": importlib.metadata.version("transformers"), "options": sorted(known_options())}
    return json.dumps(content, indent=1) + "\n"


if __name__ == "__main__":
    write_text(LIST, as_json(arguments_of_dataclasses()))
    write_text(GENERATION_OPTIONS, generation_options_as_json())
