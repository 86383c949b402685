"""hf_captioners.cli."""
def main(): pass
