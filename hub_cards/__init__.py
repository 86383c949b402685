"""Templates of model cards and Spaces, request handler of Inference Endpoints, and the demo page."""
