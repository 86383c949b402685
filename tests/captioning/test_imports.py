"""What captioning files imports."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_files_are_captioned_without_libraries_of_data_sets():
    """datasets takes a second to import, timm another one."""
    code = (
        "import sys, hf_captioners.captioning.batches; "
        "heavy = {'datasets', 'pandas', 'timm'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
