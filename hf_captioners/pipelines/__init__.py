"""hf_captioners.pipelines."""
