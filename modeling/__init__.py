"""Models and configurations; every file here may be copied into a checkpoint."""
