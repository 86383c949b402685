"""Models and configurations; every file here may travel inside a checkpoint."""
