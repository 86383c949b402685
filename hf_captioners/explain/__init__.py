"""What a captioner looked at: attention over regions, as arrays and as drawings."""
