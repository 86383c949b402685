"""Attention of a captioner over regions, as arrays and as drawings."""
