"""The common tests of transformers, from its source distribution, on every captioner: `make test-transformers`."""
