"""Templates of model cards and Spaces, the handler of Inference Endpoints and the demo page."""
