"""Captioners in the libraries around transformers: PEFT, accelerate, torchao, bitsandbytes and quanto."""
