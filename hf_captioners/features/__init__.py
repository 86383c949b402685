"""Region features: extraction from images, the feature store, and readers of files from other projects."""
