"""Captioning of many images: the list of images, and files of captions that survive a kill."""
