"""Region features: extraction from images, the stores they are kept in, and other people's files of them."""
