"""Captioning of many images, of data sets, and the scores of captions."""
