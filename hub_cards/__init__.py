"""Templates of model cards."""
