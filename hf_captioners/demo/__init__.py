"""Demonstration: training on drawn scenes, and a page that shows the result."""
