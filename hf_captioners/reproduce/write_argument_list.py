"""Write the list of training arguments: `python -m hf_captioners.reproduce.write_argument_list`."""

from hf_captioners.output_files import write_text

from .argument_list import LIST, as_json
from .dataclass_arguments import arguments_of_dataclasses

if __name__ == "__main__":
    write_text(LIST, as_json(arguments_of_dataclasses()))
