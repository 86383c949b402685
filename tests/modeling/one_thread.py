"""One thread for tests of tiny models."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Use one thread: threads do not speed up tiny tensors, and wait for each other if processes share the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
