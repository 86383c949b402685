"""A local page on which a person reads, corrects and keeps the captions of a folder of images."""
