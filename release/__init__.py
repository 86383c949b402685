"""Build backend, list of public names, and checks of the distributions of a release."""
