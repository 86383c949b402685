"""What a release needs: the build backend, the list of public names, and the check of distributions."""
