"""Local web page for reading, correcting and keeping the captions of an image folder."""
