"""The demonstration: training on drawn scenes, and the page that shows the result."""
