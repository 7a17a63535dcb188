"""The language model: loading, adapters, quantization, tokenization, and limits on files of strangers."""
